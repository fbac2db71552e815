"""The address where others dial this peer, and whether they can: found out before it takes its place."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import grpc

from peer.network import admission
from protocol.addresses import WILDCARDS, is_loopback, join, read_host, split
from protocol.clock import unix_time
from protocol.errors import FormatError, PeerError, RefusedError, UnreachableError, UserError
from protocol.files import write_atomically
from protocol.limits import DOOR_SHARE
from protocol.net import gate as gates
from protocol.net.channels import Credentials, options
from protocol.net.connection_limits import AT_DOOR
from protocol.trust import certificates
from protocol.trust.keys import Identity
from protocol.trust.ticket import Ticket

FOUND = "reach"
"""The file that says why this peer cannot be dialled, or nothing."""

ReachMode = Literal["auto", "direct", "relay"]

MOMENT_SECONDS = 600.0
"""The life of the certificate that is shown to the node that dials back; nobody else looks at it."""


@dataclass(frozen=True, slots=True)
class Wish:
    """The user's wish. `listen` None: the interface towards the operator, any port. `announce`: the host, or host and
    port, that others dial where that is another. `way` auto: behind relays if the peer cannot be dialled."""

    listen: str | None = None
    announce: str | None = None
    way: ReachMode = "auto"


@dataclass(frozen=True, slots=True)
class Reach:
    """This peer listens at `host:port` (0: any), and `announced` is what others dial: host, and port (None: the one on
    which it listens). `objection` is why they cannot, with what to do about it; empty: they can, as far as is known."""

    host: str
    port: int
    announced: tuple[str, int | None]
    objection: str = ""
    doubt: str = ""
    """Why it is not known whether they can."""
    forwarded: bool = False
    """The user has said what others dial."""

    @property
    def hidden(self) -> bool:
        """Whether others cannot dial this peer."""
        return bool(self.objection)

    @property
    def libp2p_port(self) -> int:
        """Where libp2p listens: who forwards a port can forward the next one, too; else any."""
        return self.port + 1 if self.forwarded and self.port else 0

    def address(self, port: int) -> str:
        """The address that others dial, where this peer got that port."""
        host, forwarded = self.announced
        return join(host, forwarded or port)


async def find(wish: Wish, ticket: Ticket, identity: Identity, folder: Path, asks: bool = True) -> Reach:
    """Find where this peer is to listen, and what others dial, as a node of the operator's has tried it; unless it
    `asks` nobody, as `folder` has it from the last time.

    Raises:
        UserError: the wish makes no sense.
        UnreachableError: no interface of this machine leads to the operator.
        ResourceError: the port is taken, or the address is not this machine's.
    """
    reach = _wanted(wish, ticket)
    if wish.way == "relay":
        return replace(reach, objection="others are not to dial this peer, but to come by relays (--reach)")
    if wish.way == "direct":
        return reach
    if not asks:
        return replace(reach, objection=_remembered(folder))
    reach = await _tried(wish, reach, ticket, identity)
    if reach.doubt and wish.announce is None:
        return replace(reach, objection=_remembered(folder))
    write_atomically(folder / FOUND, reach.objection.encode())
    return reach


def _remembered(folder: Path) -> str:
    try:
        return (folder / FOUND).read_text(encoding="utf-8")
    except (OSError, ValueError):
        return ""


async def _tried(wish: Wish, reach: Reach, ticket: Ticket, identity: Identity) -> Reach:
    """Of a port that nobody has named, any other will do as well afterwards: another process may take it meanwhile."""
    async with answering(identity, reach.host, reach.port) as port:
        try:
            dialled, objection = await admission.dial_back(ticket, identity.peer_id, reach.address(port))
        except (UnreachableError, RefusedError, PeerError) as error:
            return replace(reach, doubt=f"cannot tell whether others can dial {reach.address(port)}: {error}")
    if dialled == reach.address(port):
        return replace(reach, objection=objection and _told(objection, reach, port, dialled))
    if wish.announce is not None:
        doubt = f"cannot tell whether others can dial {reach.address(port)}: from outside, this peer is at {dialled}"
        return replace(reach, doubt=doubt)
    if objection:
        return replace(reach, objection=_told(objection, reach, port, dialled))
    return replace(reach, announced=(split(dialled)[0], None))  # a router forwards the port already


def _wanted(wish: Wish, ticket: Ticket) -> Reach:
    if wish.listen is None:
        host, port = admission.address_towards(ticket.operator), 0
    else:
        try:
            host, port = split(wish.listen)
        except FormatError as error:
            raise UserError(f"--listen takes HOST:PORT: {error}") from None
    if wish.announce is not None:
        try:
            return Reach(host, port, read_host(wish.announce), forwarded=True)
        except FormatError as error:
            raise UserError(f"--announce takes HOST or HOST:PORT: {error}") from None
    return Reach(host, port, (admission.address_towards(ticket.operator) if host in WILDCARDS else host, None))


def _told(objection: str, reach: Reach, port: int, dialled: str) -> str:
    advice = _advice(reach, port, dialled)
    return f"others cannot dial this peer at {dialled} ({objection}); it is reached by relays. To do without: {advice}"


def _advice(reach: Reach, port: int, dialled: str) -> str:
    """The advice to a volunteer on how to be dialled."""
    seen, named = split(dialled)[0], reach.announced[1]
    if is_loopback(reach.host):
        return f"listen where others call, with --listen 0.0.0.0:{port}: on {reach.host} only this machine does"
    if seen == reach.host:
        return f"let TCP port {port} through this machine's firewall, and name it: --listen {join(seen, port)}"
    if named is not None and named != port:
        return f"forward port {named} on the router to port {port} of this machine ({reach.host})"
    return (
        f"forward TCP port {port} on the router to this machine ({reach.host}), and name it: "
        f"--listen {join(reach.host, port)} --announce {seen}"
    )


@asynccontextmanager
async def answering(identity: Identity, host: str, port: int) -> AsyncIterator[int]:
    """Listen for a moment as the peer will, without a place in a run: who dials back sees that this key is here. The
    port, which is free again afterwards.

    Raises:
        ResourceError: the port is taken, or the address is not this machine's.
    """
    own = certificates.certify(identity, identity.key.public_key(), unix_time(), MOMENT_SECONDS)
    server = grpc.aio.server(options=options(None))
    shown = Credentials(certificates.private_key(identity), own, own)
    gate = await gates.bind(host, port, AT_DOOR, DOOR_SHARE)
    try:
        await gate.serve(server, shown.at_the_door())
        yield gate.port
    finally:
        await gate.close(0.0)
