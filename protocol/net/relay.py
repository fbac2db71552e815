"""A stream relay: peers that cannot be dialled stay connected to it, and others reach them through it.

It sees TLS between the two, and nothing of what is inside; it can drop and delay. What it carries is for members of the
run alone: both show the card by which they were admitted, libp2p has checked their keys, and neither may be one to whom
this node objects. Two peers have a budget of bytes, a number of streams, and a time for each.

    greeting: msgpack [word, card, peer], answered by an empty message, or a reason
    "hold", card, ""        from then on each byte is answered by one, until somebody hangs up
    "call", card, peer      from then on the bytes are those of a tunnel into the peer's gRPC port
"""

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal

import msgpack

from protocol.clock import monotonic
from protocol.errors import FormatError, RefusedError, UnreachableError
from protocol.identity import PeerId
from protocol.limits import (
    RELAY_BYTES_PER_SECOND,
    RELAY_BYTES_SAVED,
    RELAY_GREETING_BYTES,
    RELAY_GREETINGS_OF_PEER,
    RELAY_GREETINGS_OF_STRANGERS,
    RELAY_IDLE_SECONDS,
    RELAY_OPEN_SECONDS,
    RELAY_PAIRS_KEPT,
    RELAY_PEERS,
    RELAY_PING_SECONDS,
    RELAY_POLL_SECONDS,
    RELAY_SILENCE_SECONDS,
    RELAY_STREAM_SECONDS,
    RELAY_STREAMS,
    RELAY_STREAMS_OF_PAIR,
    RELAY_STREAMS_OF_PEER,
)
from protocol.net.allowances import TokenBucket
from protocol.net.guard import Objection, no_objection
from protocol.net.streams import Spend, Stream, Streams, expect_yes, open_tunnel, splice, unlimited
from protocol.net.tasks import Children
from protocol.trust.membership_card import Authority

RELAY = "hetpeer/relay/1"

Word = Literal["hold", "call"]

PeerPair = frozenset[PeerId]

Clock = Callable[[], float]


@dataclass(slots=True)
class Budget:
    """The bytes that two peers may still send each other, and the number of their streams."""

    bytes: TokenBucket = field(default_factory=lambda: TokenBucket(RELAY_BYTES_PER_SECOND, RELAY_BYTES_SAVED))
    streams: int = 0

    def wait_seconds(self, count: int, now: float) -> float:
        """Take so many bytes. Return how long to wait before they are passed on."""
        self.bytes.take(count, now)
        return self.bytes.wait_seconds(0, now)


@dataclass(slots=True)
class Relay:
    """A public node's relay for peers that cannot be dialled. `objection` tells why it serves a peer no longer, and is
    asked again while a stream goes on."""

    streams: Streams
    authority: Authority
    objection: Objection = no_objection
    pay: Spend = unlimited
    """A function that waits for the turn of so many bytes on this node's own line, each way."""
    clock: Clock = monotonic
    held: dict[PeerId, Stream] = field(default_factory=dict)
    budgets: OrderedDict[PeerPair, Budget] = field(default_factory=OrderedDict)
    greeting: Counter[PeerId] = field(default_factory=Counter)
    """The number of greetings of each peer that are awaited."""
    welcome: OrderedDict[PeerId, None] = field(default_factory=OrderedDict)
    """The peers that have shown a valid card; strangers are allowed fewer greetings."""
    opened: dict[Stream, PeerId] = field(default_factory=dict)
    """The streams that are carried, and the peer that has opened each."""

    async def open(self) -> None:
        """Serve as a relay from now on."""
        await self.streams.serve(RELAY, self._answer)

    async def _answer(self, peer: PeerId, stream: Stream) -> None:
        most = RELAY_STREAMS if peer in self.welcome else RELAY_GREETINGS_OF_STRANGERS
        if self.greeting.total() >= most or self.greeting[peer] >= RELAY_GREETINGS_OF_PEER:
            return
        self.greeting[peer] += 1
        try:
            async with asyncio.timeout(RELAY_OPEN_SECONDS):
                greeting = await stream.receive_message(RELAY_GREETING_BYTES)
        finally:
            self.greeting[peer] -= 1
            if not self.greeting[peer]:
                del self.greeting[peer]
        word, other = self._admit(peer, greeting)
        if word == "hold":
            await self._hold(peer, stream)
        else:
            await self._carry(peer, other, stream)

    def _admit(self, peer: PeerId, greeting: bytes) -> tuple[Word, PeerId]:
        """Check the card in a peer's greeting, and let the peer greet as a member from now on (`welcome`). Returns what
        it asks for: the word, and the other peer.

        Raises:
            FormatError, RefusedError: the greeting is malformed, its card is not valid, or there is an objection to it.
        """
        try:
            fields = msgpack.unpackb(greeting, max_array_len=3)
        except (ValueError, msgpack.UnpackException):
            fields = None
        match fields:
            case ["hold" | "call" as word, bytes(card), str(other)]:
                self.authority.admitted_now(peer, card)
                self.welcome[peer] = None
                if len(self.welcome) > RELAY_PAIRS_KEPT:
                    self.welcome.popitem(last=False)
                self._require_no_objection((peer,))
                return word, PeerId(other)
        raise FormatError("no greeting of a relay's")

    async def _hold(self, peer: PeerId, stream: Stream) -> None:
        """Hold a peer, so that others reach it, until it hangs up or says nothing for a while. A peer that is held
        already has lost its connection: it has to connect anew first."""
        if peer not in self.held and len(self.held) >= RELAY_PEERS:
            raise RefusedError("this relay holds as many peers as it can")
        if (before := self.held.pop(peer, None)) is not None:
            before.close()
            await self.streams.hang_up(peer)  # the connection that it had is dead, and tunnels would go over that one
            return
        self.held[peer] = stream
        try:
            await stream.send_message(b"")
            while True:
                async with asyncio.timeout(2 * RELAY_PING_SECONDS + RELAY_SILENCE_SECONDS):
                    await stream.reader.readexactly(1)
                if self.objection(peer):
                    return
                stream.writer.write(b"\0")
                await stream.writer.drain()
        finally:
            if self.held.get(peer) is stream:
                del self.held[peer]

    async def _carry(self, peer: PeerId, other: PeerId, stream: Stream) -> None:
        """Carry bytes between two peers until one hangs up, or they may no longer."""
        if other not in self.held:
            raise RefusedError(f"peer {str(other)[-8:]} is not behind this relay")
        pair = frozenset((peer, other))
        self._require_no_objection(pair)
        budget = self._budget(pair)
        mine = sum(opener == peer for opener in self.opened.values())
        too_many = budget.streams >= RELAY_STREAMS_OF_PAIR or mine >= RELAY_STREAMS_OF_PEER
        if too_many or (len(self.opened) >= RELAY_STREAMS and not self._make_room(mine)):
            raise RefusedError("this relay carries as many streams as it can")
        budget.streams += 1
        self.opened[stream] = peer
        try:
            tunnel = await open_tunnel(self.streams, other)
            try:
                await stream.send_message(b"")
                await self._watched(pair, budget, stream, tunnel)
            finally:
                tunnel.close()
        finally:
            budget.streams -= 1
            self.opened.pop(stream, None)

    def _make_room(self, mine: int) -> bool:
        """Hang up on the newest stream of the peer that has opened most, if it has more than the peer that asks, which
        has `mine`, would have. Returns whether there is room now."""
        ((greedy, most),) = Counter(self.opened.values()).most_common(1)
        if most <= mine + 1:
            return False
        newest = [stream for stream, peer in self.opened.items() if peer == greedy][-1]
        del self.opened[newest]
        newest.close()
        return True

    async def _watched(self, pair: PeerPair, budget: Budget, stream: Stream, tunnel: Stream) -> None:
        """Splice two streams, and look now and then whether that may go on."""
        began = last_heard = self.clock()

        async def spend(count: int) -> None:
            nonlocal last_heard
            last_heard = self.clock()
            if wait := budget.wait_seconds(count, self.clock()):
                await asyncio.sleep(wait)
            await self.pay(count)

        async with Children() as children:
            carrying = children.spawn(splice(stream, tunnel, spend))
            while not carrying.done():
                await asyncio.wait((carrying,), timeout=RELAY_POLL_SECONDS)
                now = self.clock()
                idle, old = now - last_heard > RELAY_IDLE_SECONDS, now - began > RELAY_STREAM_SECONDS
                if idle or old or any(self.objection(peer) for peer in pair):
                    break

    def _budget(self, pair: PeerPair) -> Budget:
        budget = self.budgets.get(pair)
        if budget is None:
            budget = self.budgets[pair] = Budget()
            unused = (other for other, theirs in self.budgets.items() if other != pair and not theirs.streams)
            if len(self.budgets) > RELAY_PAIRS_KEPT and (oldest := next(unused, None)) is not None:
                del self.budgets[oldest]
        self.budgets.move_to_end(pair)
        return budget

    def _require_no_objection(self, peers: Iterable[PeerId]) -> None:
        for peer in peers:
            if reason := self.objection(peer):
                raise RefusedError(reason)


async def be_held(streams: Streams, address: str, card: bytes) -> tuple[PeerId, Stream]:
    """Stay connected to a relay, from which others then reach this peer. Returns the relay, and the stream to keep
    (`ping`).

    Raises:
        UnreachableError, RefusedError: it is not there, or does not want to.
    """
    relay, stream = await _opened(streams, address)
    try:
        await _greet(stream, relay, "hold", card, "")
    except UnreachableError:  # it takes this peer for held: that was over another connection
        await streams.hang_up(relay)
        relay, stream = await _opened(streams, address)
        await _greet(stream, relay, "hold", card, "")
    return relay, stream


async def ping(stream: Stream) -> bool:
    """Ask the relay that holds this peer whether it is there."""
    try:
        stream.writer.write(b"\0")
        async with asyncio.timeout(RELAY_SILENCE_SECONDS):
            await stream.reader.readexactly(1)
    except (OSError, EOFError, TimeoutError):
        return False
    return True


async def call_by(streams: Streams, address: str, card: bytes, peer: PeerId) -> Stream:
    """Open a tunnel to a peer by a relay that holds it.

    Raises:
        UnreachableError, RefusedError: the relay is not there, or the peer is not there, or one does not want to.
    """
    relay, stream = await _opened(streams, address)
    await _greet(stream, relay, "call", card, peer)
    return stream


async def _opened(streams: Streams, address: str) -> tuple[PeerId, Stream]:
    """Open a stream to a relay at an address. A connection that is there may be dead, since an address of one of its
    ends is gone: if nothing comes back over it, the relay is dialled anew.

    Raises:
        UnreachableError: it is not there.
    """
    relay = await streams.connect(address)
    try:
        return relay, await streams.open(relay, RELAY)
    except UnreachableError:
        await streams.hang_up(relay)
        await streams.connect(address)
        return relay, await streams.open(relay, RELAY)


async def _greet(stream: Stream, relay: PeerId, word: Word, card: bytes, peer: str) -> None:
    """Send the greeting on a stream to a relay, and wait for its yes. The stream is closed where there is none.

    Raises:
        UnreachableError, RefusedError: the relay says nothing, or no.
    """
    try:
        await stream.send_message(msgpack.packb([word, card, peer]))
        await expect_yes(stream, f"the relay {relay[-8:]}")
    except OSError:
        stream.close()
        raise RefusedError(f"the relay {relay[-8:]} hung up") from None
    except BaseException:
        stream.close()
        raise
