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
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from pydantic import ValidationError

from peer.network.contacts import Contacts
from peer.network.duplex import BROKEN_CALL_ERRORS
from peer.telemetry.status import Status
from protocol.clock import monotonic
from protocol.errors import HetpeerError
from protocol.events.activity import (
    Contributed,
    Credited,
    Evaluated,
    GroupBroken,
    GroupFormed,
    Progress,
    RoundDone,
    StepDone,
    Waiting,
)
from protocol.events.decisions import EndedEarly, Left, Recalled, WentOn
from protocol.events.event import Event
from protocol.monitor import (
    BATCH_BYTES,
    EVENTS_REPORTED,
    MOST_AGO_SECONDS,
    MOST_WORDS,
    ContributionOut,
    EndedShort,
    GroupJoined,
    GroupLost,
    LoggedEvent,
    LossFound,
    NotAwaited,
    PeerDeparture,
    ReportedEvent,
    RoundEnded,
    StepReport,
    pack_report,
)
from protocol.net.allowances import pause_after
from protocol.net.channels import Reachable, handshake
from protocol.net.tasks import Children
from protocol.patience import CALL_SECONDS
from protocol.schemas import monitor_pb2 as pb
from protocol.schemas import monitor_pb2_grpc
from protocol.wording import printable

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

TimedEvent = tuple[float, ReportedEvent]
"""The time of an event by `monotonic`, and the event as the node is told of it."""


@dataclass(slots=True, eq=False)
class Reporter:
    """A listener of one peer's events, from its joining to its leaving. `status` has heard each event before."""

    status: Status
    waiting: deque[TimedEvent] = field(default_factory=lambda: deque(maxlen=MOST_WAITING))
    left_out: int = 0
    """The number of events that were forgotten, of which the node has not been told yet."""
    _sent: tuple[int, int] = (0, 0)
    """The bytes sent in the pipeline, and of contributions, when a round ended last."""
    _changed: bool = False
    _last: PeerDeparture | None = None
    _began: float = field(default_factory=monotonic)
    _contacts: Contacts | None = None
    _closing: asyncio.Event = field(default_factory=asyncio.Event)
    _children: Children = field(default_factory=Children)

    def __call__(self, event: Event) -> None:
        match event:
            case Progress():
                return
            case StepDone() | Credited() | Recalled() | Waiting():  # the status has them
                pass
            case _:
                if (happened_event := self._reported(event)) is None:
                    return
                self.left_out += len(self.waiting) == MOST_WAITING
                self.waiting.append((monotonic(), happened_event))
        self._changed = True

    def start(self, contacts: Contacts, node: Callable[[], Reachable | None]) -> None:
        """Report from now on to the node that `node` names. `node` may read a file, and is asked off the event loop."""
        self._contacts = contacts
        self._children.spawn(self._keep_telling(contacts, node))

    async def close(self, paused: str) -> None:
        """Tell the node, if that can be done at once, that this peer pauses, with the reason `paused`; or, if there is
        no reason or the run is over, that it goes."""
        self._closing.set()
        over = self.status.over
        paused = "" if over else paused
        why = _cut(paused) or ("the run is over" if over else "its owner has stopped it, or it failed")
        self._last = PeerDeparture(name="Left", how="paused" if paused else "gone", why=why)
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
            await self._wait(pause * random.uniform(0.75, 1.25))

    async def _tell(self, stream: Any) -> None:
        """Send batches on a stream until this peer leaves, or the node ends the stream."""
        due_at = monotonic()  # a node that has just come knows nothing
        while not stream.done():
            closing = self._closing.is_set()
            if self._changed or closing or monotonic() >= due_at:
                self._changed, due_at = False, monotonic() + SIGN_OF_LIFE_SECONDS
                took = [self.waiting.popleft() for _ in range(min(len(self.waiting), EVENTS_REPORTED - 1))]
                message = pb.Batch(batch_json=self._packed(took))
                try:
                    async with asyncio.timeout(CALL_SECONDS):
                        await stream.write(message)
                except (TimeoutError, *BROKEN_CALL_ERRORS):
                    self.waiting.extendleft(reversed(took))
                    raise
                self.left_out = 0
                self._changed = self._changed or bool(self.waiting)
            if closing:
                await stream.done_writing()
                with suppress(*BROKEN_CALL_ERRORS):
                    await stream.read()
                return
            await self._wait(BATCH_SECONDS)

    def _packed(self, took: Sequence[TimedEvent]) -> bytes:
        """The status and these events as one batch. Where that is too long, the oldest events are left out."""
        now, status = monotonic(), self.status
        happened = [
            happened_event.model_copy(update={"ago": min(MOST_AGO_SECONDS, now - at)}) for at, happened_event in took
        ]
        happened += [self._last] if self._last is not None else []
        last = status.last_step or StepDone(0, -1, None, 0)
        bandwidth = self._contacts.bandwidth if self._contacts is not None else None
        while True:
            report = StepReport(
                version=_version(),
                round=last.round,
                step=last.step + 1,
                loss=last.loss if last.loss is not None and 0 <= last.loss <= 1e6 else None,
                tokens=status.tokens,
                seconds=now - self._began,
                up=bandwidth.up.frames_carried + bandwidth.up.bulk_carried if bandwidth else 0,
                down=bandwidth.down.frames_carried + bandwidth.down.bulk_carried if bandwidth else 0,
                compression=status.compression,
                credit=status.credit,
                waits=_cut(status.waits_for),
                slow=_cut(status.slow),
                happened=happened,
                left_out=self.left_out,
            )
            if len(packed := pack_report(report)) <= BATCH_BYTES:
                return packed
            self.left_out += 1
            happened.pop(0)

    def _reported(self, event: Event) -> ReportedEvent | None:
        """An event as the node is told of it; None: it is not. Where the operator's view has no place for an event of
        this kind, the node gets the event's words. Texts may be another peer's, and are cut to what the wire allows."""
        message: dict[str, Any] = {"name": event.name, "words": _cut(event.words or "")}
        try:
            match event:
                case RoundDone():
                    before, self._sent = self._sent, (event.pipeline_sent, event.outer_sent)
                    since = [max(0, now - then) for now, then in zip(self._sent, before, strict=True)]
                    return RoundEnded(
                        **(message | {"words": ""}),
                        round=event.round,
                        seconds=event.seconds,
                        tokens=event.tokens,
                        contributions={str(part): count for part, count in event.contributions.items()},
                        pipeline_bytes=since[0],
                        outer_bytes=since[1],
                    )
                case Evaluated(round, loss, plain):
                    return LossFound(**message, round=round, loss=loss, loss_plain=plain)
                case Contributed(round, steps):
                    return ContributionOut(**message, round=round, steps=steps)
                case GroupFormed(replica, _, members):
                    return GroupJoined(**message, replica=replica, members=members)
                case GroupBroken(replica, round, _, reason):
                    return GroupLost(**message, round=round, replica=replica, why=_cut(reason))
                case EndedEarly(round, steps, reason):
                    return EndedShort(**message, round=round, steps=steps, why=_cut(reason))
                case WentOn(round, without, reason):
                    return NotAwaited(**message, round=round, peers=without[:16], why=_cut(reason))
                case Left(_, reason):
                    return PeerDeparture(**message, how="leaving", why=_cut(reason))
                case _:
                    about = {"round": getattr(event, "round", 0), "peer": getattr(event, "peer", "")}
                    return LoggedEvent(**(message | about)) if message["words"] else None
        except ValidationError:
            self.left_out += 1
            return None

    async def _wait(self, seconds: float) -> None:
        """Wait for so many seconds, or until this peer leaves."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._closing.wait()


def _cut(text: str) -> str:
    return printable(text)[:MOST_WORDS]


@cache
def _version() -> str:
    try:
        return version("hetpeer")[:32]
    except PackageNotFoundError:
        return ""
