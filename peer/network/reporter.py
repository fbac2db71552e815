"""A peer reports to the operator's node what it does, for people to see. Nothing waits for it or fails with it.

The reporter notes events as they come, in microseconds, and sends them once a second, if there were any, on one
stream for as long as the node answers. While the node does not, the oldest events are forgotten. Every few seconds it
tells how it goes though nothing happened, so that the node knows a long inner step from a peer that is gone.
"""

import asyncio
import random
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import ValidationError

from peer.network.contacts import Contacts
from peer.network.duplex import BROKEN_CALL_ERRORS
from peer.telemetry.status import Status
from protocol.clock import monotonic
from protocol.errors import HetpeerError
from protocol.events.activity import Progress, Pulse, RoundDone
from protocol.events.event import Event, PeerState, Sink
from protocol.events.lines import reported_event, row_of
from protocol.events.peer_report import (
    BATCH_BYTES,
    EVENTS_REPORTED,
    MOST_AGO_SECONDS,
    PeerReport,
    ReportedStatus,
    pack_report,
)
from protocol.net.allowances import pause_after
from protocol.net.channels import Reachable, handshake
from protocol.net.tasks import Children, wait_at_most
from protocol.patience import CALL_SECONDS
from protocol.schemas import monitor_pb2 as pb
from protocol.schemas import monitor_pb2_grpc

BATCH_SECONDS = 1.0
"""The shortest time between two batches of events that are sent to the node."""

SIGN_OF_LIFE_SECONDS = 3.0
"""The longest time between two batches: the node takes it that who is silent for some 10 seconds is not at work."""

MOST_WAITING = 256
"""The events that wait to be sent, at most: some minutes of a peer whose node is away."""

LAST_REPORT_SECONDS = 1.0
"""The time for the last batch, while this peer leaves."""

LEAST_PAUSE_SECONDS, MOST_PAUSE_SECONDS = 1.0, 30.0
"""The pauses before a node is called again that did not answer."""

TimedEvent = tuple[float, Event]
"""The time of an event by `monotonic`, and the event."""


@dataclass(slots=True, eq=False)
class Reporter:
    """A listener of one peer's events, from its joining to its leaving. `status` has heard each event before."""

    status: Status
    waiting: deque[TimedEvent] = field(default_factory=lambda: deque(maxlen=MOST_WAITING))
    left_out: int = 0
    """The number of events that were forgotten, of which the node has not been told yet."""
    _sent: tuple[int, int] = (0, 0)
    """The bytes sent in the pipeline, and of contributions, at the end of the last round that the node was told of."""
    _changed: bool = False
    _last: ReportedStatus | None = None
    """The status with which this peer goes."""
    _closing: asyncio.Event = field(default_factory=asyncio.Event)
    _children: Children = field(default_factory=Children)

    def __call__(self, event: Event) -> None:
        if Sink.NODE in event.sinks:
            self.left_out += len(self.waiting) == MOST_WAITING
            self.waiting.append((monotonic(), event))
        self._changed = self._changed or not isinstance(event, Progress | Pulse)

    def start(self, contacts: Contacts, node: Callable[[], Reachable | None]) -> None:
        """Report from now on to the node that `node` names. `node` may read a file, and is asked off the event loop."""
        self._children.spawn(self._keep_telling(contacts, node))

    async def close(self, paused: str) -> None:
        """Tell the node, if that can be done at once, that this peer pauses, with the reason `paused`; or, if there is
        no reason or the run is over, that it goes."""
        self._closing.set()
        over = self.status.over
        state, why = PeerState.GONE, "its owner has stopped it, or it failed"
        if over or paused:
            state, why = (PeerState.GONE, "the run is over") if over else (PeerState.PAUSED, paused)
        self._last = replace(self.status, state=state, doing=why)
        if telling := [*self._children]:
            await asyncio.wait(telling, timeout=LAST_REPORT_SECONDS)
        self._children.cancel()

    async def _keep_telling(self, contacts: Contacts, node: Callable[[], Reachable | None]) -> None:
        failures = 0
        while not self._closing.is_set():
            if (to := await asyncio.to_thread(node)) is not None:
                began = monotonic()
                with suppress(HetpeerError, *BROKEN_CALL_ERRORS):
                    async with contacts.alone(to) as channel:
                        metadata = handshake(contacts.manifest)
                        await self._tell(monitor_pb2_grpc.MonitorStub(channel).Tell(metadata=metadata))
                if monotonic() - began > MOST_PAUSE_SECONDS:  # it did answer: it may be there again at once
                    failures = 0
            failures += 1
            pause = pause_after(failures, LEAST_PAUSE_SECONDS, MOST_PAUSE_SECONDS)
            await wait_at_most(pause * random.uniform(0.75, 1.25), self._closing.wait())

    async def _tell(self, stream: Any) -> None:
        """Send batches on a stream until this peer leaves, or the node ends the stream."""
        due_at = monotonic()  # a node that has just come knows nothing
        while not stream.done():
            closing = self._closing.is_set()
            if self._changed or closing or monotonic() >= due_at:
                self._changed, due_at = False, monotonic() + SIGN_OF_LIFE_SECONDS
                took = [self.waiting.popleft() for _ in range(min(len(self.waiting), EVENTS_REPORTED))]
                message = pb.Batch(batch_json=self._packed(took))
                try:
                    async with asyncio.timeout(CALL_SECONDS):
                        await stream.write(message)
                except (TimeoutError, *BROKEN_CALL_ERRORS):
                    self.waiting.extendleft(reversed(took))
                    raise
                self.left_out = 0
                ends = [event for _, event in took if isinstance(event, RoundDone)]
                self._sent = (ends[-1].pipeline_sent, ends[-1].outer_sent) if ends else self._sent
                self._changed = self._changed or bool(self.waiting)
            if closing:
                await stream.done_writing()
                with suppress(*BROKEN_CALL_ERRORS):
                    await stream.read()
                return
            await wait_at_most(BATCH_SECONDS, self._closing.wait())

    def _packed(self, took: Sequence[TimedEvent]) -> bytes:
        """The status and these events as one batch. Events that break a bound are left out, and, where the batch is too
        long, the oldest."""
        now = monotonic()
        events = [(min(MOST_AGO_SECONDS, now - at), event) for at, event in took if _is_within_bounds(event)]
        left_out = self.left_out + len(took) - len(events)
        while True:
            packed = pack_report(PeerReport(self._last or self.status, events, self._sent, left_out))
            if len(packed) <= BATCH_BYTES:
                return packed
            left_out += 1
            events.pop(0)


def _is_within_bounds(event: Event) -> bool:
    try:
        return reported_event(row_of(event, cut=True)) is not None
    except ValidationError:
        return False
