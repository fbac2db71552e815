"""The address where others dial this peer, and whether they can: found out before it takes its place."""

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from ipaddress import ip_address
from pathlib import Path
from typing import Literal

import grpc

from peer.network import admission
from protocol.addresses import LOOPBACK, WILDCARDS, is_ip, is_loopback, join_address, read_host, split_address
from protocol.clock import unix_time
from protocol.errors import FormatError, PeerError, RefusedError, UnreachableError, UserError
from protocol.files import write_atomically
from protocol.identity import PeerId
from protocol.limits import ADDRESSES_NAMED, REGISTRATION_SHARE
from protocol.net import gate as gates
from protocol.net.channels import Credentials, options
from protocol.net.connection_limits import OF_REGISTRATION
from protocol.trust import certificates
from protocol.trust.keys import Identity
from protocol.trust.ticket import Ticket

FOUND = "reach"
"""The file that says why this peer cannot be dialled, or nothing."""

ReachMode = Literal["auto", "direct", "relay"]

MOMENT_SECONDS = 600.0
"""The life of the certificate that is shown to the node that dials back; nobody else looks at it."""


Announced = tuple[str, int | None]
"""An address that others dial: a host, and a port (None: the one on which this peer listens)."""


@dataclass(frozen=True, slots=True)
class MachineAddresses:
    """The IP addresses of this machine now, and which of them the system calls the operator from (empty: it has no
    way there)."""

    own: frozenset[str]
    towards: str


@dataclass(frozen=True, slots=True)
class Wish:
    """The user's wish. `listen` None: the interface towards the operator, any port. `announce`: the hosts, or hosts and
    ports, that others dial where those are others, the first one first. `way` auto: behind relays if the peer cannot be
    dialled."""

    listen: str | None = None
    announce: tuple[str, ...] = ()
    way: ReachMode = "auto"

    @property
    def listens(self) -> tuple[str, int] | None:
        """The address at which the user wants this peer to listen, host and port; None: the user names none.

        Raises:
            UserError: it is none.
        """
        try:
            return split_address(self.listen) if self.listen is not None else None
        except FormatError as error:
            raise UserError(f"--listen takes HOST:PORT: {error}") from None

    @property
    def announced(self) -> tuple[Announced, ...]:
        """The addresses that the user has named, in their order.

        Raises:
            UserError: one is none, or there are too many.
        """
        if len(self.announce) > ADDRESSES_NAMED + 1:
            raise UserError(f"--announce: others try {ADDRESSES_NAMED + 1} addresses of a peer at most")
        try:
            named = [read_host(text) for text in self.announce]
            return tuple((str(ip_address(host)) if is_ip(host) else host, port) for host, port in named)
        except FormatError as error:
            raise UserError(f"--announce takes HOST or HOST:PORT: {error}") from None


@dataclass(frozen=True, slots=True)
class Reach:
    """This peer listens at `host:port` (0: any), and others dial `announced`, or one of `others`. `objection` is why
    they cannot, with what to do about it; empty: they can, as far as is known."""

    host: str
    port: int
    announced: Announced
    objection: str = ""
    doubt: str = ""
    """The reason why it is not known whether others can dial this peer."""
    forwarded: bool = False
    """The user has said what others dial."""
    others: tuple[Announced, ...] = ()
    also: tuple[str, ...] = ()
    """Hosts beside `host` at which this peer listens: those of this machine that the user announces."""

    @property
    def hidden(self) -> bool:
        """Whether others cannot dial this peer."""
        return bool(self.objection)

    @property
    def libp2p_port(self) -> int:
        """The port of libp2p: who forwards a port can forward the next one, too; else any."""
        return self.port + 1 if self.forwarded and self.port else 0

    @property
    def hosts(self) -> tuple[str, ...]:
        """All hosts at which the gRPC server listens."""
        return self.host, *self.also

    def address(self, port: int) -> str:
        """The address that others dial first, where this peer got that port."""
        return _dialled(self.announced, port)

    def other_addresses(self, port: int) -> list[str]:
        """The addresses that others dial where the first one does not answer."""
        return [_dialled(address, port) for address in self.others]


def _dialled(announced: Announced, port: int) -> str:
    host, forwarded = announced
    return join_address(host, forwarded or port)


async def find_reach(wish: Wish, ticket: Ticket, identity: Identity, folder: Path, asks: bool = True) -> Reach:
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
    if reach.doubt and not wish.announce:
        return replace(reach, objection=_remembered(folder))
    write_atomically(folder / FOUND, reach.objection.encode())
    return reach


def _remembered(folder: Path) -> str:
    try:
        return (folder / FOUND).read_text(encoding="utf-8")
    except (OSError, ValueError):
        return ""


async def _tried(wish: Wish, reach: Reach, ticket: Ticket, identity: Identity) -> Reach:
    """Try a port. Where it was not named by the owner, any other will do as well afterwards, as another process may
    take it meanwhile."""
    async with answering(identity, reach.host, reach.port) as port:
        return await try_out(wish, reach, port, ticket, identity.peer_id)


async def try_out(wish: Wish, reach: Reach, port: int, ticket: Ticket, peer: PeerId) -> Reach:
    """Ask a node of the operator's whether others can dial this peer, whose key answers now at `port`."""
    try:
        dialled, objection = await admission.dial_back(ticket, peer, reach.address(port))
    except (UnreachableError, RefusedError, PeerError) as error:
        return replace(reach, doubt=f"cannot tell whether others can dial {reach.address(port)}: {error}")
    if dialled == reach.address(port):
        return replace(reach, objection=objection and _explained(objection, reach, port, dialled))
    if wish.announce:
        doubt = f"cannot tell whether others can dial {reach.address(port)}: from outside, this peer is at {dialled}"
        return replace(reach, doubt=doubt)
    if objection:
        return replace(reach, objection=_explained(objection, reach, port, dialled))
    return replace(reach, announced=(split_address(dialled)[0], None))  # a router forwards the port already


def _wanted(wish: Wish, ticket: Ticket) -> Reach:
    """The addresses that a peer with this wish has, before anybody has tried them."""
    machine = MachineAddresses(admission.own_addresses(), "")
    needs_way = wish.listens is None or (not wish.announce and wish.listens[0] in WILDCARDS)
    if needs_way:
        machine = replace(machine, towards=admission.address_towards(*ticket.node_addresses))
    return reach_at(wish, machine, machine.own)


def reach_at(wish: Wish, machine: MachineAddresses, had: Collection[str], port: int = 0) -> Reach:
    """The addresses of a peer with this wish on a machine. `had` are all that the machine has had: an announced address
    that is not among them is a router's. `port`: the one that a peer has which named none.

    Where the host of --listen is none of this machine's any more, the peer listens nowhere but on loopback, which
    relays reach: its owner may have meant that network alone.
    """
    host, wished_port = wish.listens or (machine.towards, 0)
    port = wished_port or port
    if host in had and host not in machine.own:
        reason = f"{host}, where this peer is to listen (--listen), is no address of this machine now"
        return Reach(LOOPBACK, port, (LOOPBACK, None), f"{reason}; it is reached by relays")
    named = [address for address in wish.announced if address[0] in machine.own or address[0] not in had]
    if not named:
        return Reach(host, port, (machine.towards if host in WILDCARDS else host, None))
    also = () if host in WILDCARDS else tuple(name for name, _ in named if name in machine.own and name != host)
    return Reach(host, port, named[0], forwarded=True, others=tuple(named[1:]), also=also)


def after_change(
    wish: Wish, reach: Reach, before: MachineAddresses, now: MachineAddresses, had: Collection[str], port: int
) -> Reach | None:
    """The addresses of a peer, which has `port`, after those of its machine have changed; None: it stays as it is.

    It moves where an address is gone that it listens at, has announced, or calls from; and where one is back that its
    owner has named. Any other may come and go: a container's bridge, another network card.
    """
    departed, arrived = before.own - now.own, now.own - before.own
    used = {*reach.hosts, reach.announced[0], *(host for host, _ in reach.others), before.towards}
    wished = {host for host, _ in (*wish.announced, wish.listens or ("", 0))}
    if not now.towards or not (departed & used or arrived & wished):
        return None
    return reach_at(wish, now, had, port)


def _explained(objection: str, reach: Reach, port: int, dialled: str) -> str:
    advice = _advice(reach, port, dialled)
    return f"others cannot dial this peer at {dialled} ({objection}); it is reached by relays. To do without: {advice}"


def _advice(reach: Reach, port: int, dialled: str) -> str:
    """The advice to a volunteer on how to be dialled."""
    dialled_host, named = split_address(dialled)[0], reach.announced[1]
    if is_loopback(reach.host):
        return f"listen where others call, with --listen 0.0.0.0:{port}: on {reach.host} only this machine does"
    if dialled_host == reach.host:
        wanted = join_address(dialled_host, port)
        return f"let TCP port {port} through this machine's firewall, and name it: --listen {wanted}"
    if named is not None and named != port:
        return f"forward port {named} on the router to port {port} of this machine ({reach.host})"
    return (
        f"forward TCP port {port} on the router to this machine ({reach.host}), and name it: "
        f"--listen {join_address(reach.host, port)} --announce {dialled_host}"
    )


@asynccontextmanager
async def answering(identity: Identity, host: str, port: int) -> AsyncIterator[int]:
    """Listen for a moment as the peer will, without a place in a run: who dials back sees that this key is here. The
    port, which is free again afterwards.

    Raises:
        ResourceError: the port is taken, or the address is not this machine's.
    """
    own_certificate = certificates.certify(identity, identity.key.public_key(), unix_time(), MOMENT_SECONDS)
    server = grpc.aio.server(options=options(None))
    shown = Credentials(certificates.private_key(identity), own_certificate, own_certificate)
    gate = await gates.bind(host, port, OF_REGISTRATION, REGISTRATION_SHARE)
    try:
        await gate.serve(server, shown.for_registration())
        yield gate.port
    finally:
        await gate.close(0.0)
