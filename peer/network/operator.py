"""Talking to the operator's node: what the run is, a place in it, and its files."""

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from protocol.blobs import fetch_file
from protocol.cards import Authority, Card, Role
from protocol.channels import connect, handshake
from protocol.errors import FormatError, UnreachableError
from protocol.identity import PeerId
from protocol.limits import CALL_SECONDS
from protocol.run_files import Descriptor, RunFile, parse
from protocol.schemas import run_pb2 as pb
from protocol.schemas import run_pb2_grpc
from protocol.ticket import Ticket

ROLES = {"volunteer": pb.VOLUNTEER, "datacenter": pb.DATACENTER, "observer": pb.OBSERVER, "gateway": pb.GATEWAY}


async def describe(ticket: Ticket) -> Descriptor:
    """What the run is, checked against the id in the ticket.

    Raises:
        UnreachableError: the operator's node does not answer.
        FormatError: it answers with something else than this run.
    """
    try:
        async with connect(ticket.operator, None) as channel:
            reply = await run_pb2_grpc.RunStub(channel).Describe(pb.DescribeRequest(), timeout=CALL_SECONDS)
    except UnreachableError as error:
        raise UnreachableError(
            f"the run's bootstrap node at {ticket.operator} does not answer: is it up, and is this address "
            f"reachable from here? ({error})"
        ) from None
    return parse(reply.descriptor_json, ticket.run_id)


async def admit(
    ticket: Ticket, descriptor: Descriptor, peer: PeerId, role: Role | Literal["gateway"], stage: int | None
) -> tuple[Card, bytes]:
    """A place in the run, and the signed card that shows it.

    Raises:
        RefusedError: there is none.
        FormatError: the answer is no card for this peer.
    """
    request = pb.AdmitRequest(peer_id=peer, role=ROLES[role], stage=stage)
    async with connect(ticket.operator, descriptor.manifest) as channel:
        stub = run_pb2_grpc.RunStub(channel)
        reply = await stub.Admit(request, metadata=handshake(descriptor.manifest), timeout=CALL_SECONDS)
    card = Authority(descriptor.run_id, descriptor.operator).read(reply.card)
    if card.peer != peer or card.role != role:
        raise FormatError(f"{ticket.operator} admitted another peer or role than asked for")
    return card, reply.card


async def fetch_files(
    ticket: Ticket,
    descriptor: Descriptor,
    names: list[str],
    directory: Path,
    progress: Callable[[RunFile, int], None],
) -> None:
    """Fetch the run's files of these names that `directory` lacks."""
    async with connect(ticket.operator, descriptor.manifest) as channel:
        for name in names:
            file = descriptor.file(name)

            def tell(received: int, file: RunFile = file) -> None:
                progress(file, received)

            await fetch_file(channel, descriptor.manifest, file, directory, tell)


def address_towards(operator: str) -> str:
    """The host address of this machine's interface that leads to the operator. Sends nothing.

    Raises:
        UnreachableError: no interface does.
    """
    host, port = operator.rsplit(":", 1)
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, int(port)))
            return str(probe.getsockname()[0])
    except OSError as error:
        raise UnreachableError(f"no way from this machine to {operator}: {error.strerror}") from None
