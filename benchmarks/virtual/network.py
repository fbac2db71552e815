"""Virtual time, and links in it.

Every peer has one uplink and one downlink. Blobs leave an uplink one after another in the order they were asked for,
and enter a downlink likewise; a blob's time is that of the slower of both ends, once both are free. Where TCP would
share a link among its transfers, all of them end when the last one does here: the throughput is the same, the order is
not.
Control messages are not queued behind blobs; what they occupy of a link is taken from the next blob on it.
"""

import heapq
import itertools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Clock:
    """What is to happen, in order of time."""

    now: float = 0.0
    events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = field(default_factory=list)
    numbers: Any = field(default_factory=itertools.count)

    def after(self, seconds: float, act: Callable[..., None], *arguments: Any) -> None:
        """Call `act` in so many seconds."""
        heapq.heappush(self.events, (self.now + seconds, next(self.numbers), act, arguments))

    def run(self, until: Callable[[], bool]) -> None:
        """Let time pass until a condition holds."""
        while self.events and not until():
            self.now, _, act, arguments = heapq.heappop(self.events)
            act(*arguments)


@dataclass(frozen=True, slots=True)
class Link:
    """What connects a peer to the world, in bytes a second."""

    up: float
    down: float


@dataclass(slots=True)
class Traffic:
    """What one peer sent and received."""

    messages: int = 0
    control_up: int = 0
    control_down: int = 0
    blobs_up: int = 0
    blobs_down: int = 0


@dataclass(slots=True)
class Transfer:
    """A blob on its way. `done` is called at its arrival."""

    source: int
    target: int
    size: int
    done: Callable[[], None]


@dataclass(slots=True)
class Network:
    """All links, what waits at them, and what went over them."""

    clock: Clock
    links: list[Link]
    latency: float
    traffic: list[Traffic] = field(init=False)
    waiting: list[deque[Transfer]] = field(init=False)
    sending: list[bool] = field(init=False)
    down_free: list[float] = field(init=False)
    owed: list[float] = field(init=False)

    def __post_init__(self) -> None:
        peers = range(len(self.links))
        self.traffic = [Traffic() for _ in peers]
        self.waiting = [deque() for _ in peers]
        self.sending = [False for _ in peers]
        self.down_free = [0.0 for _ in peers]
        self.owed = [0.0 for _ in peers]

    def message(self, source: int, target: int, size: int, act: Callable[..., None], *arguments: Any) -> None:
        """A message of `size` bytes; `act` is called where it arrives."""
        sender, receiver = self.traffic[source], self.traffic[target]
        sender.messages += 1
        sender.control_up += size
        receiver.control_down += size
        self.owed[source] += size / self.links[source].up
        self.down_free[target] += size / self.links[target].down
        pace = max(size / self.links[source].up, size / self.links[target].down)
        self.clock.after(self.latency + pace, act, *arguments)

    def blob(self, transfer: Transfer) -> None:
        """Queue a blob at its source."""
        self.waiting[transfer.source].append(transfer)
        if not self.sending[transfer.source]:
            self._next(transfer.source)

    def _next(self, source: int) -> None:
        queue = self.waiting[source]
        self.sending[source] = bool(queue)
        if not queue:
            return
        each, now = queue.popleft(), self.clock.now
        self.traffic[source].blobs_up += each.size
        self.traffic[each.target].blobs_down += each.size
        sent = now + self.owed[source] + each.size / self.links[source].up
        self.owed[source] = 0.0
        begun = max(now, self.down_free[each.target])
        arrived = max(sent, begun + each.size / self.links[each.target].down)
        self.down_free[each.target] = begun + each.size / self.links[each.target].down
        self.clock.after(sent - now, self._next, source)
        self.clock.after(arrived - now + self.latency, each.done)
