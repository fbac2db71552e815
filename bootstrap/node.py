"""The operator's node: the way into the DHT, the registration service of the run, and its files for those who have come
in."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc

from bootstrap.admission.admission_policy import AdmissionPolicy
from bootstrap.admission.places import Admission
from bootstrap.admission.registration import RegistrationService
from bootstrap.admission.registration_answers import Measuring, StatusAnswers
from bootstrap.data.published_text import lookup
from bootstrap.monitor.holders import Holders
from bootstrap.monitor.rounds import SwarmPace
from bootstrap.monitor.watch import Monitor, MonitorService
from protocol.addresses import join_address, moved
from protocol.clock import unix_time
from protocol.files import write_atomically
from protocol.identity import PeerId
from protocol.limits import PEERS_SHARE, REGISTRATION_SHARE
from protocol.monitor import NodeWord
from protocol.net import dht as dhts
from protocol.net import gate as gates
from protocol.net.blobs import BlobService
from protocol.net.channels import Credentials, options, registration_options
from protocol.net.connection_limits import OF_PEERS, OF_REGISTRATION
from protocol.net.dht import Dht
from protocol.net.guard import Guard
from protocol.net.lenient import AnyBytes
from protocol.net.relay import Relay
from protocol.patience import HEARTBEAT_SECONDS
from protocol.run.run_files import Descriptor
from protocol.schemas import blobs_pb2_grpc, monitor_pb2_grpc, run_pb2_grpc
from protocol.trust import certificates
from protocol.trust.keys import Identity, load_or_create
from protocol.trust.membership_card import Authority
from protocol.trust.records import Register
from protocol.trust.ticket import ADDRESSES_KEPT, Ticket, recall_addresses, remember_addresses

NODE_GRACE_SECONDS = 2.0
"""The seconds that calls in flight may take to end when the node stops."""

RECORDS_SECONDS = 2.0
"""The shortest interval at which the records of peers are read: at once where one is known to be outdated."""


@dataclass(frozen=True, slots=True)
class Listen:
    """The ports of a node: registration at `host:port`, libp2p and the port for peers at the next two (port 0: any
    three). `announced` are the hosts that go into the ticket where they are others than `host`."""

    host: str
    port: int
    announced: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ServingRights:
    """The rights by which a node serves: its certificates, a gateway's card (the operator needs none), the other nodes
    that it knows of, and how long the certificates last that it issues."""

    credentials: Credentials
    certificate_seconds: float
    card: bytes = b""
    known: Ticket | None = None


def as_operator(identity: Identity, certificate_seconds: float) -> ServingRights:
    """The operator is the run's authority itself."""
    root = certificates.authority(identity)
    return ServingRights(Credentials(certificates.private_key(identity), root, root), certificate_seconds)


async def serve_node(
    descriptor: Descriptor,
    directory: Path,
    where: Listen,
    rights: ServingRights,
    tell: Callable[[Ticket], None],
    stop: asyncio.Event,
    mirrors: tuple[str, ...] = (),
    monitor: Monitor | None = None,
    keeps: bool = False,
) -> None:
    """Serve a run whose files are in `directory` until `stop` is set. `tell` is given the ticket once all is up, who is
    admitted the `mirrors` of the run's prepared text. `monitor` is shown what this node sees of the run; None: one of
    its own. `keeps`: this node takes over the states that last holders would take with them.

    Raises:
        ResourceError: a port is taken.
    """
    identity = load_or_create(directory)
    addresses = rights.known.addresses if rights.known else ()
    admission_policy = AdmissionPolicy(directory)
    authority = Authority(
        descriptor.run_id, descriptor.operator, lambda gateway: bool(admission_policy.objection(gateway))
    )
    register = Register(authority, descriptor.manifest)
    if monitor is None:
        monitor = await asyncio.to_thread(Monitor.of, descriptor.manifest, descriptor.run_id, directory)
    holders = await asyncio.to_thread(Holders, authority, directory)
    dht = await dhts.start(identity, where.host, where.port and where.port + 1, register, addresses)

    def word() -> NodeWord:
        return NodeWord(
            monitor.finished(), monitor.taking(), monitor.fold.finished, holders.named(), holders.signed_rewind, keeps
        )

    service = MonitorService(descriptor.manifest, monitor, admission_policy.objection)
    async with AsyncExitStack() as opened:
        opened.push_async_callback(dht.stop)
        peers_gate = await gates.bind(where.host, where.port and where.port + 2, OF_PEERS, PEERS_SHARE)
        opened.push_async_callback(peers_gate.close, NODE_GRACE_SECONDS)
        registration_gate = await gates.bind(where.host, where.port, OF_REGISTRATION, REGISTRATION_SHARE)
        opened.push_async_callback(registration_gate.close, NODE_GRACE_SECONDS)
        opened.callback(service.hang_up)
        interceptors = [Guard(admission_policy.objection, peers_gate.authenticate), AnyBytes()]
        peers_server = grpc.aio.server(options=options(descriptor.manifest), interceptors=interceptors)
        registration_server = grpc.aio.server(options=registration_options(), interceptors=[AnyBytes()])
        admission, measuring = Admission(descriptor.manifest), Measuring()
        registration = RegistrationService(
            descriptor,
            dht,
            register,
            admission,
            identity,
            rights.credentials,
            peers_gate.port,
            rights.certificate_seconds,
            admission_policy,
            rights.card,
            measuring=measuring,
            mirrors=mirrors,
            named=registration_gate.caller,
            status=StatusAnswers(monitor.view),
            word=word,
        )
        run_pb2_grpc.add_RunServicer_to_server(registration, registration_server)
        blobs = BlobService(descriptor.manifest, await asyncio.to_thread(lookup, descriptor, directory))
        blobs_pb2_grpc.add_BlobsServicer_to_server(blobs, peers_server)
        monitor_pb2_grpc.add_MonitorServicer_to_server(service, peers_server)
        await peers_gate.serve(peers_server, rights.credentials.serving())
        await registration_gate.serve(registration_server, rights.credentials.for_registration())
        ticket = _ticket(descriptor, dht.addresses, registration_gate.port, where, rights)
        write_atomically(directory / "ticket", f"{ticket}\n".encode())
        await Relay(dht.streams, register.authority, admission_policy.objection).open()
        tell(ticket)
        acquainted = list(await asyncio.to_thread(recall_addresses, directory))
        following = _follow(
            dht, register, measuring.pace, monitor, holders, admission_policy.is_revoked, directory, acquainted
        )
        attached = dht.keep_attached(lambda: [*addresses, *acquainted])
        await dht.while_alive(_until(stop, following, monitor.keep(), attached))


async def _follow(
    dht: Dht,
    register: Register,
    pace: SwarmPace,
    monitor: Monitor,
    holders: Holders,
    is_revoked: Callable[[PeerId], bool],
    directory: Path,
    acquainted: list[str],
) -> None:
    """Read the DHT's records for as long as the node runs, and give them to `pace`, `monitor`, which also learns
    who `is_revoked`, and `holders`. The peers' libp2p addresses go into `acquainted`, by which the DHT stays attached,
    and for the next start into `directory`."""
    while True:
        entries_found = await dht.read_all()
        records = register.read(entries_found)
        pace.see(records, register.manifest.outer.liars, unix_time())
        monitor.see_records(records, is_revoked)
        await asyncio.to_thread(holders.see, records, entries_found, monitor.fold.finished)
        libp2p_addresses = sorted(record.libp2p for record in records if record.libp2p)[:ADDRESSES_KEPT]
        if libp2p_addresses and libp2p_addresses != acquainted:
            acquainted[:] = libp2p_addresses
            await asyncio.to_thread(remember_addresses, directory, libp2p_addresses)
        await asyncio.sleep(RECORDS_SECONDS)
        await monitor.until_outdated(HEARTBEAT_SECONDS - RECORDS_SECONDS)


async def _until(stop: asyncio.Event, *work: Coroutine[Any, Any, None]) -> None:
    """Do all of it until `stop` is set."""
    async with asyncio.TaskGroup() as tasks:
        keeping = [tasks.create_task(service) for service in work]
        await stop.wait()
        for task in keeping:
            task.cancel()


def _ticket(descriptor: Descriptor, libp2p: Sequence[str], port: int, where: Listen, rights: ServingRights) -> Ticket:
    """The way in through this node; through the others, too, if it knows some."""
    ticket = Ticket(
        descriptor.run_id,
        certificates.public_key(rights.credentials.root),
        tuple(join_address(host, port) for host in where.announced or (where.host,)),
        tuple(dict.fromkeys(moved(address, host) for address in libp2p for host in where.announced) or libp2p),
    )
    if rights.known is None:
        return ticket
    return replace(
        ticket,
        node_addresses=ticket.node_addresses + rights.known.node_addresses,
        addresses=ticket.addresses + rights.known.addresses,
    )
