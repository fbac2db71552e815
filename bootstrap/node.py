"""The operator's node: the way into the DHT, the run's files, and the places in the run."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from bootstrap.admission import Admission, PlaceRole
from protocol import dht as dhts
from protocol.atomic import write_atomically
from protocol.blobs import BlobService
from protocol.cards import Authority, Card, issue
from protocol.channels import listen, options, refuse, require_manifest
from protocol.dht import Dht
from protocol.errors import RefusedError
from protocol.identity import PeerId
from protocol.keys import Identity, load_or_create
from protocol.records import Register
from protocol.run_files import Descriptor
from protocol.schemas import blobs_pb2_grpc, run_pb2_grpc
from protocol.schemas import run_pb2 as pb
from protocol.ticket import Ticket

ROLES: dict[int, PlaceRole] = {
    pb.VOLUNTEER: "volunteer",
    pb.DATACENTER: "datacenter",
    pb.OBSERVER: "observer",
    pb.GATEWAY: "gateway",
}

GRACE_SECONDS = 2.0
"""How long calls in flight may take to end when the node stops."""


@dataclass(slots=True)
class RunService(run_pb2_grpc.RunServicer):
    """The run, as a newcomer sees it."""

    descriptor: Descriptor
    dht: Dht
    register: Register
    admission: Admission
    identity: Identity
    own_card: bytes = b""
    """A gateway's; the operator itself needs none."""

    async def Describe(self, request: pb.DescribeRequest, context: Any) -> pb.DescribeReply:
        return pb.DescribeReply(descriptor_json=self.descriptor.canonical())

    async def Admit(self, request: pb.AdmitRequest, context: Any) -> pb.AdmitReply:
        await require_manifest(context, self.descriptor.manifest)
        role = ROLES.get(request.role)
        if role is None or not 1 <= len(request.peer_id) <= 64:
            await refuse(context, "this is no request for a place")
        stage = request.stage if request.HasField("stage") else None
        records = self.register.read(await self.dht.read_all())
        alive = {record.peer_id for record in records}
        for record in records:
            self.admission.see(record, time.monotonic())
        try:
            place = self.admission.admit(PeerId(request.peer_id), role, stage, alive, time.monotonic())
        except RefusedError as error:
            await refuse(context, str(error))
        if place.role == "gateway" and self.own_card:
            await refuse(context, "only the operator's own node can admit another one that admits")
        card = Card(PeerId(request.peer_id), place.role, place.stage, place.slot)
        signed = issue(self.identity, self.descriptor.run_id, card, self.own_card)
        return pb.AdmitReply(stage=place.stage, slot=place.slot, card=signed)


async def serve(
    descriptor: Descriptor,
    directory: Path,
    host: str,
    port: int,
    announced: str | None,
    tell: Callable[[Ticket], None],
    stop: asyncio.Event,
    card: bytes = b"",
    addresses: Sequence[str] = (),
) -> None:
    """Serve a run whose files are in `directory` until `stop` is set.

    A gateway serves a run of another operator: it has a `card`, and meets the others at `addresses`.

    gRPC listens on `host:port` and libp2p on the next port (port 0: any two). `announced` is the host that
    goes into the ticket where it is another than `host`. `tell` is given the ticket once all is up.

    Raises:
        ResourceError: a port is taken.
    """
    identity = load_or_create(directory)
    register = Register(Authority(descriptor.run_id, descriptor.operator), descriptor.manifest)
    dht = await dhts.start(identity, host, port and port + 1, register, addresses)
    server = grpc.aio.server(options=options(descriptor.manifest))
    try:
        bound = listen(server, f"{host}:{port}")
        files = {file.sha256: directory / file.name for file in descriptor.files}
        service = RunService(descriptor, dht, register, Admission(descriptor.manifest), identity, card)
        run_pb2_grpc.add_RunServicer_to_server(service, server)
        blobs_pb2_grpc.add_BlobsServicer_to_server(BlobService(descriptor.manifest, files.get), server)
        await server.start()
        own = tuple(_announce(address, announced) for address in dht.addresses)
        ticket = Ticket(descriptor.run_id, f"{announced or host}:{bound}", (*own, *addresses))
        write_atomically(directory / "ticket", f"{ticket}\n".encode())
        tell(ticket)
        await dht.while_alive(stop.wait())
    finally:
        await server.stop(GRACE_SECONDS)
        await dht.stop()


def _announce(address: str, host: str | None) -> str:
    """A libp2p address with another host in it."""
    if host is None:
        return address
    kind = "ip4" if host.replace(".", "").isdigit() else "dns4"
    return "/".join(("", kind, host, *address.split("/")[3:]))
