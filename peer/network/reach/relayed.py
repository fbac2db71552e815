"""The reachability of a peer once it listens. A peer that others cannot dial stays connected to relays, and to every
public peer, and takes tunnels from them."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256

from peer.network.discovery import Discovery
from peer.network.reach.reach import Reach
from protocol.clock import monotonic
from protocol.errors import HetpeerError, RefusedError
from protocol.events.activity import Reached
from protocol.events.event import Listener
from protocol.identity import PeerId
from protocol.limits import RELAY_OPEN_SECONDS, RELAY_PING_SECONDS, RELAYS_KEPT, TUNNELS, TUNNELS_OF_PEER
from protocol.net.bandwidth import Bandwidth
from protocol.net.relay import Relay, be_held, ping
from protocol.net.streams import BROKEN_STREAM_ERRORS, TUNNEL, Stream, Streams, splice
from protocol.net.tasks import Children, first_of, wait_at_most
from protocol.trust.records import is_relay

RELAY_RETRY_SECONDS = 20.0
"""The time for which a node is left alone that did not answer, or refused."""

CONNECT_POLL_SECONDS = 1.0
"""The interval at which this peer looks for others to be connected to."""

NEIGHBOURS = 128
"""The public peers to which this one keeps a connection, so that they can open tunnels over it."""


Connect = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]
"""A function that opens a connection to this peer's own gRPC server."""


@dataclass(slots=True)
class RelayedPeer:
    """A relayed peer's own side. `connect` opens a connection to its own gRPC server; `first` are the libp2p addresses
    of the operator's nodes, which relay."""

    streams: Streams
    discovery: Discovery
    connect: Connect
    first: Sequence[str]
    emit: Listener
    objection: Callable[[PeerId], str] = lambda peer: ""
    held: dict[str, PeerId] = field(default_factory=dict)
    """The relays that hold this peer, by address."""
    avoided: dict[str, float] = field(default_factory=dict)
    """Addresses that did not answer, and until when they are left alone."""
    open: Counter[PeerId] = field(default_factory=Counter)
    reported: list[str] | None = None
    """The relays that this peer's user has heard of last."""
    tasks: Children = field(default_factory=Children)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def begin(self) -> None:
        """Begin to take tunnels, and to be held by relays, if there are any."""
        await self.streams.serve(TUNNEL, self._take)
        await self.discovery.read()
        await asyncio.gather(self._find_relays(), self._meet_all())
        self.discovery.update_record(via=self._named())

    async def keep(self) -> None:
        """Be reached for as long as this peer lives: another relay for each that is lost."""
        self.tasks.spawn(self._keep_meeting())
        try:
            while True:
                self.changed.clear()
                await self._find_relays()
                if self._named() != self.discovery.record.via:
                    await self.discovery.publish(via=self._named())
                await wait_at_most(CONNECT_POLL_SECONDS, self.changed.wait())  # or until a relay is lost
        finally:
            await self.tasks.end()

    # Relays

    def _named(self) -> list[str]:
        """The relays for this peer's record. While none holds it, those that did last, or that may: a record that names
        none would say that this peer can be dialled."""
        return (
            list(self.held) or self.discovery.record.via or [address for address in self.first if is_relay(address)][:1]
        )

    def candidates(self) -> list[str]:
        """Relays that might hold this peer, in an order of its own, so that peers spread; the operator's are among
        them."""
        others = self.discovery.others()
        relays = (*(peer.libp2p for peer in others if peer.relays and not peer.via), *self.first)
        now = monotonic()
        free = {
            address
            for address in relays
            if is_relay(address) and address not in self.held and self.avoided.get(address, 0.0) <= now
        }
        me = self.discovery.record.peer_id
        return sorted(free, key=lambda address: sha256(f"{me} {address}".encode()).digest())

    async def _find_relays(self) -> None:
        """Find relays that hold this peer, as many as there should be, as far as there are."""
        for address in self.candidates():
            if len(self.held) >= RELAYS_KEPT:
                break
            try:
                relay, stream = await be_held(self.streams, address, self.discovery.signer.card)
            except HetpeerError:
                self.avoided[address] = monotonic() + RELAY_RETRY_SECONDS
                continue
            if relay in self.held.values():  # by another of its addresses
                stream.close()
                self.avoided[address] = monotonic() + RELAY_RETRY_SECONDS
                continue
            self.held[address] = relay
            self.tasks.spawn(self._ping(address, relay, stream))
        if self.reported != list(self.held):
            self.reported = list(self.held)
            self.emit(Reached([str(relay) for relay in self.held.values()]))

    async def _ping(self, address: str, relay: PeerId, stream: Stream) -> None:
        """Ping a relay until it is gone."""
        try:
            is_alive = True
            while is_alive and not self.objection(relay):
                is_alive = await ping(stream)
                await asyncio.sleep(RELAY_PING_SECONDS if is_alive else 0)
        finally:
            stream.close()
            self.held.pop(address, None)
            self.avoided[address] = monotonic() + RELAY_RETRY_SECONDS
            self.changed.set()

    # Public peers

    async def _keep_meeting(self) -> None:
        """Stay connected to peers that can be dialled: they can then call this peer without a relay."""
        while True:
            await self._meet_all()
            await asyncio.sleep(CONNECT_POLL_SECONDS)

    async def _meet_all(self) -> None:
        connected, now = await self.streams.connected(), monotonic()
        there = [peer for peer in self.discovery.others() if peer.libp2p and not peer.via][:NEIGHBOURS]
        new = [
            peer.libp2p for peer in there if peer.peer_id not in connected and self.avoided.get(peer.libp2p, 0.0) <= now
        ]
        await asyncio.gather(*map(self._meet, new))

    async def _meet(self, address: str) -> None:
        try:
            await self.streams.connect(address)
        except HetpeerError:
            self.avoided[address] = monotonic() + RELAY_RETRY_SECONDS

    # Tunnels

    async def _take(self, peer: PeerId, stream: Stream) -> None:
        """Carry a tunnel that a relay, or a public peer of the run, has opened, to this peer's gRPC port."""
        relay = peer in self.held.values()
        if not relay and peer not in self.discovery.records:
            raise RefusedError("this peer does not know you")
        if reason := self.objection(peer):
            raise RefusedError(reason)
        if self.open.total() >= TUNNELS or self.open[peer] >= (TUNNELS if relay else TUNNELS_OF_PEER):
            raise RefusedError("too many tunnels: wait a moment")
        self.open[peer] += 1
        try:
            async with asyncio.timeout(RELAY_OPEN_SECONDS):
                inside = Stream(*await self.connect())
            try:
                await stream.send_message(b"")
                await splice(stream, inside)
            finally:
                inside.close()
        except BROKEN_STREAM_ERRORS:
            raise RefusedError("this peer's server is not up") from None
        finally:
            self.open[peer] -= 1
            if not self.open[peer]:
                del self.open[peer]


# The reachability of a peer


@dataclass(slots=True)
class Reachability:
    """The reachability of this peer, whose server is reached by `connect`. It knows the operator's nodes at
    the libp2p addresses `first`. What it carries for others, if it `relays`, takes its turn in `bandwidth`."""

    connect: Connect
    streams: Streams
    discovery: Discovery
    bandwidth: Bandwidth
    first: Sequence[str]
    emit: Listener
    relays: bool = False
    objection: Callable[[PeerId], str] = lambda peer: ""
    relayed: RelayedPeer | None = None
    """This peer's own side of its relays; None: others can dial it."""
    relay: Relay | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def open(self, reach: Reach) -> None:
        """Begin to be reached, and to relay; the gRPC server is up."""
        if self.relays and not reach.hidden and self.relay is None:
            self.relay = Relay(self.streams, self.discovery.signer.authority, self.objection, self._pay)
            await self.relay.open()
        if reach.hidden:
            relayed = RelayedPeer(self.streams, self.discovery, self.connect, self.first, self.emit, self.objection)
            await relayed.begin()
            self.relayed = relayed
        self.changed.set()

    def close(self) -> None:
        """Be reached no longer, until `open` is called again."""
        self.relayed = None
        self.streams.withdraw(TUNNEL)
        self.changed.set()

    async def keep(self) -> None:
        """Be reached for as long as this peer lives."""
        while True:
            self.changed.clear()
            if self.relayed is None:
                await self.changed.wait()
            else:
                await first_of(self.relayed.keep(), self.changed.wait())

    async def _pay(self, count: int) -> None:
        """Wait for the turn of bytes carried for others: they come in and go out, and give way like all bulk."""
        await self.bandwidth.take(count)
        await self.bandwidth.send(count)
