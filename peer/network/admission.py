"""A peer's place in the run: it asks the nodes that let newcomers in what the run is, for a place with a certificate,
and for the run's files. How it keeps that place is in `kept_place.py`."""

import asyncio
import socket
import ssl
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal, TypeVar

import grpc
import psutil
from pydantic import ValidationError

from protocol.addresses import is_ip, join_address, split_address
from protocol.clock import unix_time
from protocol.errors import FormatError, HetpeerError, PeerError, ResourceError, UnreachableError
from protocol.events.activity import Warned
from protocol.events.event import Listener
from protocol.identity import Endpoint, PeerId
from protocol.limits import CLOCK_SLACK_SECONDS, HOLDERS_NAMED, TLS_SECONDS
from protocol.monitor import NodeWord, View
from protocol.net import dht as dhts
from protocol.net.bandwidth import Bandwidth
from protocol.net.blobs import fetch_file
from protocol.net.channels import Credentials, connect, connect_to_registration, handshake
from protocol.net.tasks import first_success
from protocol.net.tls_probe import STAGGER_SECONDS, probe
from protocol.patience import CALL_SECONDS
from protocol.run.dataset import base_urls
from protocol.run.run_files import Descriptor, RunFile, parse_descriptor
from protocol.schemas import run_pb2 as pb
from protocol.schemas import run_pb2_grpc
from protocol.trust import certificates
from protocol.trust.certificates import Caller
from protocol.trust.keys import Identity, load_or_create, peer_id_of_public
from protocol.trust.membership_card import Authority, Card, Role
from protocol.trust.records import Peers, Register
from protocol.trust.ticket import Ticket
from protocol.wording import lasting

ROLE_NUMBERS = {"volunteer": pb.VOLUNTEER, "datacenter": pb.DATACENTER, "observer": pb.OBSERVER, "gateway": pb.GATEWAY}

LAST_TIME = 1e11
"""Seconds since 1970 that no clock shows."""

IP_FAMILIES = (socket.AF_INET, socket.AF_INET6)

Reply = TypeVar("Reply")


@dataclass(frozen=True, slots=True)
class Admitted:
    """A place in the run. `node` is the node that gave it."""

    card: Card
    signed_card: bytes
    credentials: Credentials
    node: Endpoint
    closed: bool
    """Whether the run lets in only newcomers with an invitation."""
    trials: bool
    """Whether what newcomers contribute counts only after a trial."""
    mirrors: tuple[str, ...] = ()
    """The base URLs of the run's prepared text."""
    attestation: bytes = b""
    """The newest attestation of closed rounds, signed by the operator's observer, not checked yet; empty: there is
    none."""
    clock_ahead: float = 0.0
    """Seconds by which this machine's clock is ahead of the node's, to within the time that the answer took."""


async def fetch_descriptor(ticket: Ticket) -> Descriptor:
    """Ask what the run is, and check the answer against the id in the ticket.

    Raises:
        UnreachableError: no node of the ticket answers.
        FormatError: what answers there is not this run.
    """

    async def ask(channel: grpc.aio.Channel, node: Endpoint) -> Descriptor:
        reply = await run_pb2_grpc.RunStub(channel).Describe(pb.DescribeRequest(), timeout=CALL_SECONDS)
        return parse_descriptor(reply.descriptor_json, ticket.run_id)

    descriptor = await _at_a_node(ticket, ask)
    if descriptor.operator != peer_id_of_public(ticket.authority):
        raise FormatError("the ticket names another authority than the run's operator")
    return descriptor


async def ask_node(ticket: Ticket) -> NodeWord:
    """Ask the first of the operator's nodes that answers how far the run is, and whether it is over.

    Raises:
        UnreachableError, PeerError: no node of the ticket answers.
    """

    async def ask(channel: grpc.aio.Channel, node: Endpoint) -> NodeWord:
        reply = await run_pb2_grpc.RunStub(channel).Describe(pb.DescribeRequest(), timeout=CALL_SECONDS)
        holders = tuple(map(bytes, reply.holders[:HOLDERS_NAMED]))
        return NodeWord(reply.finished, reply.taking, reply.run, holders, bytes(reply.rewind), reply.keeps)

    return await _at_a_node(ticket, ask)


async def register(
    ticket: Ticket,
    descriptor: Descriptor,
    identity: Identity,
    role: Role | Literal["gateway"],
    stage: int | None,
    card: bytes = b"",
    revoked: Collection[PeerId] = (),
    servable: Collection[int] = (),
) -> Admitted:
    """Ask for a place in the run, with the signed card that shows it and a certificate. `card` is the card that this
    peer has, if it was admitted before. Nodes of peers that are `revoked` are passed by: what they give holds no
    longer. `servable`: where `stage` is None, the stages that a volunteer can serve; none: any.

    Raises:
        UnreachableError: no node of the ticket answers.
        RefusedError: there is no place.
        FormatError: the answer is no place for this peer.
    """
    key, token = certificates.request(identity), ticket.token
    request = pb.RegisterRequest(
        signing_request=key, role=ROLE_NUMBERS[role], stage=stage, token=token, card=card, stages=servable
    )

    async def ask(channel: grpc.aio.Channel, node: Endpoint) -> Admitted:
        if node.peer_id in revoked:
            raise PeerError(f"the operator has taken out the gateway at {node.address}")
        metadata, requested_at = handshake(descriptor.manifest), unix_time()
        reply = await run_pb2_grpc.RunStub(channel).Register(request, metadata=metadata, timeout=CALL_SECONDS)
        return _admitted(reply, node, (requested_at + unix_time()) / 2)

    def _admitted(reply: pb.RegisterReply, node: Endpoint, answered: float) -> Admitted:
        card = Authority(descriptor.run_id, descriptor.operator).read(reply.card)
        if card.peer != identity.peer_id or card.role != role:
            raise FormatError(f"{node.address} admitted another peer or role than asked for")
        if certificates.public_key(reply.certificate) != identity.public:
            raise FormatError(f"{node.address} certified another key than this peer's")
        if certificates.public_key(reply.authority) != ticket.authority:
            raise FormatError(f"{node.address} names another authority than the ticket")
        credentials = Credentials(certificates.private_key(identity), reply.certificate, reply.authority)
        host = node.address.rpartition(":")[0]
        shown = Endpoint(node.peer_id, f"{host}:{reply.port}")
        if not 0 <= reply.time < LAST_TIME:
            raise FormatError(f"{node.address} tells a time that is none")
        return Admitted(
            card,
            reply.card,
            credentials,
            shown,
            reply.closed,
            reply.trials,
            base_urls(reply.mirrors),
            bytes(reply.attestation),
            answered - reply.time if reply.time else 0.0,
        )

    return await _at_a_node(ticket, ask)


async def dial_back(ticket: Ticket, peer: PeerId, address: str) -> tuple[str, str]:
    """Ask a node whether others can dial this peer: it dials where the question comes from, with the port of
    `address`, and expects that the peer's key answers. `peer.network.reach.reach.answering` lets it, without a place.

    Returns:
        What it dialled, which is `address` if that is where the question came from, and why the peer is not there
        (empty: it is).

    Raises:
        UnreachableError, RefusedError, PeerError: it cannot be asked, or does not do it.
    """
    request = pb.DialBackRequest(peer_id=peer, address=address)

    async def ask(channel: grpc.aio.Channel, node: Endpoint) -> tuple[str, str]:
        reply = await run_pb2_grpc.RunStub(channel).DialBack(request, timeout=CALL_SECONDS)
        try:
            return join_address(*split_address(reply.dialled)), reply.objection[:200]
        except FormatError as error:
            raise PeerError(f"{node.address} dialled back at {error}") from None

    host, _ = split_address(address)
    if is_ip(host):  # else the node, called over IPv6, would dial a peer that listens on IPv4 there
        node_addresses = await asyncio.gather(
            *(asyncio.to_thread(_as_reached_from, host, node_address) for node_address in ticket.node_addresses)
        )
        ticket = replace(ticket, node_addresses=tuple(node_addresses))
    return await _at_a_node(ticket, ask)


def _as_reached_from(host: str, node_address: str) -> str:
    """The address of a node that is of the same kind, IPv4 or IPv6, as `host`; `node_address` itself if there is
    none."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return join_address(*socket.getaddrinfo(*split_address(node_address), family, socket.SOCK_STREAM)[0][4][:2])
    except (OSError, FormatError):
        return node_address


async def ask_status(ticket: Ticket) -> View:
    """Ask the operator's nodes for the view of the run; the first that answers gives it.

    Raises:
        UnreachableError: no node of the ticket answers.
        RefusedError: the node does not say; it says why.
        FormatError: what it says is no view of this run.
    """

    async def ask(channel: grpc.aio.Channel, node: Endpoint) -> View:
        reply = await run_pb2_grpc.RunStub(channel).Status(pb.StatusRequest(), timeout=CALL_SECONDS)
        try:
            view = View.model_validate_json(reply.view_json)
        except ValidationError:
            raise FormatError(f"{node.address} does not say how the run goes in a way that is known here") from None
        if view.run_id != ticket.run_id:
            raise FormatError(f"{node.address} tells of another run than the ticket's")
        return view

    return await _at_a_node(ticket, ask)


def require_clock(ahead: float, emit: Listener) -> None:
    """Check this machine's clock, which is so many seconds `ahead` of the node's (less than 0: behind it), and warn
    where others refuse a part of this peer's records, or it theirs.

    Raises:
        ResourceError: it is so wrong that nobody would ever find this peer.
    """
    off = f"this machine's clock is {lasting(abs(ahead))} {'ahead of' if ahead > 0 else 'behind'} the node's"
    if abs(ahead) > 2 * CLOCK_SLACK_SECONDS:
        raise ResourceError(
            f"{off}: no other peer would find this one. Set it (`sudo timedatectl set-ntp true`, or the system's "
            "settings), then give the same command again; if it is right, the node's is wrong: tell its operator"
        )
    if abs(ahead) > CLOCK_SLACK_SECONDS:
        emit(Warned(f"WARNING: {off}: other peers may not find this one; set it, and look at `hetpeer doctor`"))


async def glance(ticket: Ticket) -> View | None:
    """Ask for the view of the run, for people to see; None: nobody gives it."""
    with suppress(HetpeerError):
        return await ask_status(ticket)
    return None


async def read_peers(ticket: Ticket, descriptor: Descriptor) -> Peers:
    """Read what the peers of a run say of themselves now, by a node of its DHT that exists for a moment.

    Raises:
        UnreachableError: no node of the ticket answers, or there is no way to it.
        ResourceError: libp2p's daemon does not start.
    """
    register = Register(Authority(descriptor.run_id, descriptor.operator), descriptor.manifest)
    with tempfile.TemporaryDirectory(prefix="hetpeer-visit-") as temporary:  # libp2p wants an identity of its own
        host = address_towards(ticket.operator)
        dht = await dhts.start(load_or_create(Path(temporary)), host, 0, register, ticket.addresses)
        try:
            return register.read(await dht.read_all())
        finally:
            await dht.stop()


async def fetch_files(
    admitted: Admitted,
    descriptor: Descriptor,
    names: list[str],
    directory: Path,
    progress: Callable[[RunFile, int], None],
    bandwidth: Bandwidth | None = None,
) -> None:
    """Fetch the run's files of these names that `directory` lacks."""
    window = bandwidth.window if bandwidth is not None else None
    async with connect(admitted.node, descriptor.manifest, admitted.credentials, window) as channel:
        for name in names:
            file = descriptor.file(name)

            def on_received(received: int, file: RunFile = file) -> None:
                progress(file, received)

            await fetch_file(channel, descriptor.manifest, file, directory, on_received, bandwidth)


async def _at_a_node(ticket: Ticket, ask: Callable[[grpc.aio.Channel, Endpoint], Awaitable[Reply]]) -> Reply:
    """Ask at the first node that answers: each has `STAGGER_SECONDS` before the next is tried as well. Where it does
    not answer, the others are asked. Returns the answer."""
    failed: dict[str, HetpeerError] = {}

    async def try_node(address: str) -> tuple[str, Caller, bytes]:
        try:
            return address, *await _opened(ticket, address)
        except (UnreachableError, PeerError) as error:  # another may open though this one is wrong
            failed[address] = error
            raise

    while untried := [address for address in ticket.node_addresses if address not in failed]:
        attempts = [partial(try_node, address) for address in untried]
        with suppress(UnreachableError, PeerError):
            address, node, certificate = await first_success(attempts, STAGGER_SECONDS, (UnreachableError, PeerError))
            try:
                async with connect_to_registration(address, node.peer, certificate) as channel:
                    return await ask(channel, Endpoint(node.peer, address))
            except (UnreachableError, PeerError) as error:
                failed[address] = error
    silent = [failed[address] for address in ticket.node_addresses]
    if wrong := [
        refusal for refusal in silent if isinstance(refusal, PeerError)
    ]:  # the ticket, or an address: tell that
        raise wrong[0]
    tried = (
        ticket.node_addresses[0] if len(ticket.node_addresses) == 1 else f"any of {', '.join(ticket.node_addresses)}"
    )
    raise UnreachableError(
        f"the run's bootstrap node at {tried} does not answer: is it up, and is this address reachable from here? "
        f"Whoever is in the run trains on meanwhile ({silent[0]})"
    )


@asynccontextmanager
async def registration_channel(ticket: Ticket, address: str) -> AsyncIterator[tuple[grpc.aio.Channel, Endpoint]]:
    """Open a channel to a registration port that shows a certificate of the ticket's authority, for the block. Yields
    it, and the node's endpoint.

    Raises:
        UnreachableError: nobody answers there.
        PeerError: what answers is no node of the run. Both are also what gRPC's errors in the block become.
    """
    node, certificate = await _opened(ticket, address)
    async with connect_to_registration(address, node.peer, certificate) as channel:
        yield channel, Endpoint(node.peer, address)


async def _opened(ticket: Ticket, address: str) -> tuple[Caller, bytes]:
    """Look at who answers at a registration port. Returns the node, and its certificate (PEM).

    Raises:
        UnreachableError: nobody answers there.
        PeerError: what answers is no node of the run.
    """
    shown = await _certificate_at(address)
    try:
        return certificates.read_registration_certificate(shown, ticket.authority)
    except FormatError as error:
        raise PeerError(f"what answers at {address} is no bootstrap node of this run: {error}") from None


async def _certificate_at(address: str) -> bytes:
    """Read the certificate (DER) that a registration port shows, whoever issued it: gRPC can pin a certificate, but not
    read it."""
    try:
        return (await probe(address, TLS_SECONDS)).certificate
    except ssl.SSLError as error:
        raise PeerError(
            f"what answers at {address} is no bootstrap node: it speaks no TLS ({error.reason or error})"
        ) from None
    except (OSError, ValueError, FormatError) as error:
        raise UnreachableError(f"no answer from {address} ({error})") from None


def address_towards(*node_addresses: str) -> str:
    """The IP address of this machine's interface that leads to the first of these nodes to which one does, of IPv4 if
    one does. Sends nothing.

    Raises:
        UnreachableError: no interface does.
    """
    reason: object = "it has no address"
    for node_address in node_addresses:
        try:
            addresses = socket.getaddrinfo(*split_address(node_address), type=socket.SOCK_DGRAM)
            for family, kind, _, _, where in sorted(addresses, key=lambda address: address[0] != socket.AF_INET):
                try:
                    with socket.socket(family, kind) as probe:
                        probe.connect(where)
                        return str(probe.getsockname()[0])
                except OSError as error:
                    reason = error.strerror
        except (OSError, FormatError) as error:
            reason = error
    raise UnreachableError(f"no way from this machine to {node_addresses[0]}: {reason}")


def own_addresses() -> frozenset[str]:
    """The IP addresses of this machine now, without those of IPv6 that need the name of an interface."""
    interfaces = psutil.net_if_addrs().values()
    ips = (entry.address for interface in interfaces for entry in interface if entry.family in IP_FAMILIES)
    return frozenset(ip for ip in ips if "%" not in ip)
