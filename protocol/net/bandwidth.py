"""The peer's own internet connection: a limit each way, and the pipeline's frames before everything else.

Everything that is large takes its turn here, piece by piece, before it goes out and before it is read. What is read
slowly is sent slowly: HTTP/2 holds the sender back, whose time-outs are for whole seconds without a single piece. But
first it lets megabytes through, which would all be in a frame's way. So while inner steps run, blobs are asked for one
`Direction.stretch` after the other, each when its turn has come.

- With a limit, each piece is paid for with the time that it takes at that rate, packet headers and the acknowledgements
  that go the other way included. A frame goes before all *bulk* that waits, contributions and states; bulk still gets
  `BULK_SHARE` of the limit, so that a round's exchange ends.
- Without one, nobody knows what a link carries. But while inner steps run, bulk goes at a fraction of the frames' rate,
  spread over the time that there is, and not while frames are still unsent. Between them it goes as fast as it can.

What is not counted is small: questions and answers, the DHT.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from protocol.errors import UserError
from protocol.limits import CHUNK_BYTES
from protocol.net.tasks import Notifier
from protocol.patience import CALL_SECONDS

LEAST_MEGABITS = 1.0
"""The lowest limit. Below it, others may take a peer for one that hangs: each of eight transfers at once (`FETCHES`)
then takes 17 s for a chunk, of the `CALL_SECONDS` after which it is cut off. That is said here in words rather than met
there."""

PACKET_BYTES, SEGMENT_BYTES = 1514, 1448
"""The bytes of a packet on the wire (Ethernet, IP and TCP with its time stamps), of which the segment is ours."""

RECORD_BYTES, RECORD_HEAD_BYTES = 16384, 31
"""The largest records of TLS and frames of HTTP/2, 16 KiB, and the 22 and 9 bytes of their own heads."""

WIRE = PACKET_BYTES / SEGMENT_BYTES * (1 + RECORD_HEAD_BYTES / RECORD_BYTES)
"""The bytes on the wire for each byte of a message."""

ACKNOWLEDGED = 66 / (2 * SEGMENT_BYTES)
"""The bytes that go the other way for each byte of a message: one acknowledgement for every second packet."""

BULK_SHARE = 1 / 8
"""The share of a limit that bulk has even where frames alone would take all of it."""

CREDIT_SECONDS = 0.1
"""The time within which unused bandwidth may be made up for: timers are late now and then."""

PIECE_SECONDS, LEAST_PIECE_BYTES = 0.05, 16 * 1024
"""The time that a piece of bulk takes where bulk is slowed down, for a frame may have to wait for it; and the smallest
piece."""

SPREAD_MEGABITS = 2.0
SPREAD_SHARE = 1 / 4
SPREAD_TIME = 1 / 2
"""The rate of bulk while steps run: the most of `SPREAD_MEGABITS`, of this share of the frames' own rate, and of the
rate at which the bulk of the last round takes this part of a round."""

YIELD_SECONDS = 0.25
"""The longest time that a piece of bulk waits for unsent frames: whatever the link, bulk goes on."""

WINDOW_BYTES, LEAST_WINDOW_BYTES, WINDOW_SECONDS = 8 << 20, 64 * 1024, 0.1
"""The bytes that a sender may have on their way to us on one stream: many where links are long, few where a limit is to
hold. The seconds say how many a limit allows."""


@dataclass(slots=True)
class WireTotal:
    """The bytes on the wire, both ways, of all that has taken its turn in a process."""

    wire_bytes: float = 0.0


@dataclass(slots=True)
class Direction:
    """One direction of the connection. `rate` is the limit in bytes a second on the wire; None: there is none."""

    rate: float | None = None
    carried: WireTotal = field(default_factory=WireTotal)
    unsent: int = 0
    """The number of frames that have been handed to the network and that it has not taken yet."""
    stepping: bool = False
    """Whether inner steps run."""
    frames_carried: int = 0
    bulk_carried: int = 0
    """The bytes of frames and of bulk since this peer joined, for people to see."""
    _free_at: float = 0.0
    _owed: float = 0.0
    _frames: deque[tuple[float, asyncio.Future[None]]] = field(default_factory=deque)
    _bulk: deque[tuple[float, asyncio.Future[None]]] = field(default_factory=deque)
    _timer: asyncio.TimerHandle | None = None
    _one_by_one: asyncio.Lock = field(default_factory=asyncio.Lock)
    _changed: Notifier = field(default_factory=Notifier)
    _bulk_free_at: float = 0.0
    _began: float = 0.0
    _frame_bytes: int = 0
    _bulk_bytes: int = 0
    _frame_rate: float = 0.0
    _bulk_rate: float = 0.0

    @property
    def piece(self) -> int:
        """The size in bytes that pieces of bulk should have now."""
        rate = self.rate if self.rate is not None else self.spread if self.stepping else None
        if rate is None:
            return CHUNK_BYTES
        return min(CHUNK_BYTES, max(LEAST_PIECE_BYTES, int(rate * PIECE_SECONDS)))

    @property
    def stretch(self) -> int:
        """The number of bytes of bulk to ask others for at a time; 0: all that there are. Large enough that nobody is
        asked more than twenty times a second, however fast the link: others allow `CALLS_PER_SECOND`."""
        if not self.stepping:
            return 0
        return max(LEAST_PIECE_BYTES, int(min(self.spread, self.rate or self.spread) * PIECE_SECONDS))

    @property
    def spread(self) -> float:
        """The rate of bulk while steps run, in bytes a second."""
        return max(SPREAD_MEGABITS * 1e6 / 8, SPREAD_SHARE * self._frame_rate, self._bulk_rate)

    async def frame(self, count: int) -> None:
        """Wait for the turn of a piece of a frame, of `count` bytes."""
        self._frame_bytes += count
        self.frames_carried += count
        self.carried.wire_bytes += (WIRE + ACKNOWLEDGED) * count
        await self._pay(count, self._frames)

    async def bulk(self, count: int) -> None:
        """Wait for the turn of a piece of bulk, of `count` bytes. Pieces take turns in the order they came."""
        async with self._one_by_one:
            await self._give_way()
            self._bulk_bytes += count
            self.bulk_carried += count
            self.carried.wire_bytes += (WIRE + ACKNOWLEDGED) * count
            self._bulk_free_at = max(self._bulk_free_at, _now()) + count / self.spread
            await self._pay(count, self._bulk)

    def charge(self, wire_bytes: float) -> None:
        """Count bytes on the wire that go without waiting."""
        if self.rate is not None:
            self._free_at = max(self._free_at, _now() - CREDIT_SECONDS) + wire_bytes / self.rate

    @contextlib.contextmanager
    def sending(self) -> Iterator[None]:
        """A frame is unsent as long as the block lasts."""
        self.unsent += 1
        try:
            yield
        finally:
            self.unsent -= 1
            self._look_again()

    def begin_steps(self) -> None:
        """Note that inner steps run from now on: bulk goes beside them at the rate at which it came to be sent since
        they last began, over `SPREAD_TIME`."""
        if not self.stepping:
            now = _now()
            if self._began:
                self._bulk_rate = self._bulk_bytes / max(now - self._began, 1.0) / SPREAD_TIME
            self.stepping, self._began, self._frame_bytes, self._bulk_bytes = True, now, 0, 0
            self._bulk_free_at = now

    def end_steps(self) -> None:
        """Inner steps run no longer: nothing has to give way."""
        if self.stepping:
            self.stepping = False
            self._frame_rate = self._frame_bytes / max(_now() - self._began, 1.0)
            self._look_again()

    def _look_again(self) -> None:
        self._changed.ring()

    async def _give_way(self) -> None:
        """Wait while steps run: until this piece's time has come and no frame is unsent, or `YIELD_SECONDS` are
        over."""
        patience = _now() + YIELD_SECONDS
        while self.stepping:
            until = max(self._bulk_free_at, patience if self.unsent else 0.0)
            left = until - _now()
            if left <= 0:
                return
            await self._changed.wait(left)

    async def _pay(self, count: int, queue: deque[tuple[float, asyncio.Future[None]]]) -> None:
        if self.rate is None:
            return
        turn = asyncio.get_running_loop().create_future()
        queue.append((WIRE * count, turn))
        self._release_pieces()
        await turn

    def _release_pieces(self) -> None:
        """Release the waiting pieces whose time has come, and set the timer for the next one."""
        assert self.rate is not None
        now = _now()
        self._free_at = max(self._free_at, now - CREDIT_SECONDS)
        while (self._frames or self._bulk) and self._free_at <= now:
            cost, turn = self._next()
            if not turn.done():  # a sender that was cancelled takes no turn
                self._free_at += cost / self.rate
                turn.set_result(None)
        if (self._frames or self._bulk) and self._timer is None:
            self._timer = asyncio.get_running_loop().call_at(self._free_at, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._release_pieces()

    def _next(self) -> tuple[float, asyncio.Future[None]]:
        """Choose the next piece: a frame, unless the share of bulk is due or no frame waits."""
        if self._bulk and (not self._frames or self._owed >= self._bulk[0][0]):
            chosen = self._bulk.popleft()
            self._owed = max(0.0, self._owed - chosen[0])
            return chosen
        chosen = self._frames.popleft()
        self._owed = self._owed + chosen[0] * BULK_SHARE / (1 - BULK_SHARE) if self._bulk else 0.0
        return chosen


@dataclass(slots=True)
class Bandwidth:
    """Both directions of a peer's connection."""

    up: Direction = field(default_factory=Direction)
    down: Direction = field(default_factory=Direction)

    @staticmethod
    def of(max_up: float | None, max_down: float | None, carried: WireTotal | None = None) -> "Bandwidth":
        """Make a connection with limits in Mb/s; None: there is none. `carried` counts its bytes.

        Raises:
            UserError: one is too low to be anything but a hang to others.
        """
        for flag, megabits in (("--max-up", max_up), ("--max-down", max_down)):
            if megabits is not None and not megabits >= LEAST_MEGABITS:
                raise UserError(
                    f"{flag} {megabits:g}: below {LEAST_MEGABITS:g} Mb/s a transfer may stand still for longer than "
                    f"the {CALL_SECONDS:.0f} s after which others cut it off; give at least {LEAST_MEGABITS:g}"
                )
        rates = (None if limit is None else limit * 1e6 / 8 for limit in (max_up, max_down))
        counted = carried or WireTotal()
        return Bandwidth(*(Direction(rate, counted) for rate in rates))

    @property
    def window(self) -> int | None:
        """The bytes that a sender may have on their way to us on a stream; None: as many as the link turns out
        to need."""
        if self.down.rate is None:
            return None
        return min(WINDOW_BYTES, max(LEAST_WINDOW_BYTES, int(self.down.rate * WINDOW_SECONDS)))

    async def send_frame(self, count: int) -> None:
        """Wait for the turn of a piece of a frame, before it goes out."""
        await self.up.frame(count)
        self.down.charge(ACKNOWLEDGED * count)

    async def take_frame(self, count: int) -> None:
        """Wait for the turn of a piece of a frame that has come, before the next is read."""
        self.up.charge(ACKNOWLEDGED * count)
        await self.down.frame(count)

    async def send(self, count: int) -> None:
        """Wait for the turn of a piece of bulk, before it goes out."""
        await self.up.bulk(count)
        self.down.charge(ACKNOWLEDGED * count)

    async def take(self, count: int) -> None:
        """Wait for the turn of a piece of bulk, before it is read."""
        await self.down.bulk(count)
        self.up.charge(ACKNOWLEDGED * count)

    def begin_steps(self) -> None:
        """Inner steps run from now on: bulk gives way."""
        self.up.begin_steps()
        self.down.begin_steps()

    def end_steps(self) -> None:
        """Inner steps run no longer."""
        self.up.end_steps()
        self.down.end_steps()


def _now() -> float:
    return asyncio.get_running_loop().time()
