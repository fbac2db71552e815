"""The present status of a peer, as its events show it. A process has one `EventStream` and so one `Status`, which its
terminal, journal, metrics and reporter read."""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of
from itertools import pairwise
from statistics import median

from protocol.clock import monotonic
from protocol.events.activity import (
    Contributed,
    Credited,
    Evaluated,
    Finished,
    GroupBroken,
    GroupFormed,
    Joined,
    Paused,
    Progress,
    Pulse,
    Resumed,
    RoundDone,
    Serving,
    StepDone,
)
from protocol.events.decisions import CaughtUp, EndedEarly, GoalChanged, OnlyHolder, Recalled
from protocol.events.event import Event, Listener, PeerState
from protocol.events.group_decisions import MemberRecovered, Released, SlowMember
from protocol.events.peer_report import ReportedStatus
from protocol.events.waiting import Waiting
from protocol.wording import size

LAST_ROUNDS = 8
"""The number of rounds from which the time to the run's end is computed."""

RATE_STEPS = 32
"""The number of inner steps from which the tokens a second are computed."""


@cache
def program_version() -> str:
    """The version of this program; empty: it is not installed."""
    try:
        return version_of("hetpeer")[:32]
    except PackageNotFoundError:
        return ""


def gave(tokens: int) -> str:
    """A phrase on the work of a peer that has trained on so many `tokens` since it joined."""
    return f"this machine gave {tokens:,} tokens since it joined"


@dataclass(slots=True)
class Status(ReportedStatus):
    """The present status of one peer, of which the operator's node is told the inherited fields. Times are seconds by
    `clock`. `tokens`, `last_step` and `compression` are of the time since the peer joined last."""

    clock: Callable[[], float] = monotonic
    version: str = field(default_factory=program_version, kw_only=True)
    waiting: Waiting | None = None
    """The present wait; None: there is none."""
    waits_since: float = 0.0
    """The beginning of the present wait, perhaps with other numbers."""
    peer_id: str = ""
    role: str = ""
    stage: int = 0
    slot: int = 0
    joined: float | None = None
    """The time at which the peer joined first."""
    given: int = 0
    """The tokens of this peer's inner steps since it joined first."""
    joins: int = 0
    """The number of times the peer has joined: once more after each pause."""
    rounds: int = 0
    inner_steps: int = 0
    replica: str = ""
    members: list[str] = field(default_factory=list)
    last_step: StepDone | None = None
    last_round: RoundDone | None = None
    step_seconds: float | None = None
    """The seconds from the end of the step before to that of the last one; None where a round's end or a lost step lies
    between."""
    held_out: tuple[float, float] | None = None
    """The last held-out losses, through the boundaries and plain, in nats per token."""
    peers: int = 0
    lost: int = 0
    pulse: Pulse | None = None
    """The last pulse since the peer joined."""
    moved: Pulse | None = None
    """The last pulse, with the bytes since the one before it."""
    over: bool = False
    """Whether the peer has seen the end of the run."""
    only_holder_of: str = ""
    """The parts whose newest state nobody else here holds, in words; empty: there are none."""
    traffic_used: int = 0
    """The bytes that count against `traffic_limit`, in its month or day."""
    traffic_limit: str = ""
    """The owner's limit of the peer's traffic, as 200GB/month; empty: there is none."""
    _steps: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=RATE_STEPS))
    """The ends of the last inner steps, and the tokens of each."""
    _ends: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=LAST_ROUNDS + 1))
    """The ends of the last rounds since the peer joined last, each with its number."""
    _stepped: float | None = None
    """The end of the last inner step of this round."""
    _pulsed: float = 0.0
    """The time of the last `pulse`."""
    _credited: dict[int, int] = field(default_factory=dict)
    """Tokens that receipts show, by round. A round's later event includes all that its earlier ones said."""

    def take(self, event: Event, now: float) -> None:
        """Follow an event of the peer's that comes `now`."""
        for name in event.kept:
            setattr(self, name, getattr(event, name))
        if event.state is not None:
            self.state, self.waiting, self.doing = event.state, None, event.cause
        self._follow(event, now)
        self.waits_for = self.waiting.waits_for if self.waiting is not None else ""
        self.tokens_per_second = self._rate() if self.state is PeerState.TRAINING else 0.0

    @property
    def traffic(self) -> str:
        """The traffic so far and its limit, in words; empty: there is no limit."""
        return f"{size(self.traffic_used)} of {self.traffic_limit}" if self.traffic_limit else ""

    @property
    def seconds_a_round(self) -> float | None:
        """The median seconds of a round, of the last ones that this peer has seen end; None: it has seen too few. One
        in which it had to wait for others says nothing of those to come."""
        ends = pairwise(self._ends)
        paces = [(ended - began) / (last - first) for (began, first), (ended, last) in ends if last > first]
        return median(paces) if paces else None

    def seconds_left(self, now: float) -> float | None:
        """The seconds to the end of the run's last round, at the pace of the last rounds; None: not known."""
        if self.seconds_a_round is None:
            return None
        ended, round = self._ends[-1]
        return max(0.0, (self.rounds - round) * self.seconds_a_round - (now - ended))

    def _rate(self) -> float:
        """The tokens a second of the last inner steps."""
        if len(self._steps) < 2:
            return 0.0
        (began, first), (ended, _) = self._steps[0], self._steps[-1]
        return (sum(tokens for _, tokens in self._steps) - first) / max(ended - began, 1e-3)

    def _follow(self, event: Event, now: float) -> None:
        match event:
            case Waiting():
                self.waits_since = self.waits_since if event.goes_on(self.waiting) else now
                self.waiting = event
                self._rest("")
            case Joined():
                self.joins, self.joined = self.joins + 1, now if self.joined is None else self.joined
                self.last_step, self.tokens, self.compression = None, 0, 0
                self.pulse, self._stepped = None, None
                self._ends.clear()
            case Serving():
                self.doing = "serving"
            case OnlyHolder(what):
                self.only_holder_of = what
            case GoalChanged(_, inner_steps):
                self.inner_steps = inner_steps
            case Progress(doing, done, total):
                self.doing = f"{doing}: {done / total:.0%}" if total else doing
                if self.state == PeerState.STARTING:  # a peer joins step by step: what it waited for is there
                    self.waiting = None
            case SlowMember():
                self.slow = event.finding
            case MemberRecovered():
                self.slow = ""
            case GroupFormed():
                self.waiting, self.slow = None, ""
                self._rest("it begins the inner loop")
            case GroupBroken() | Released():
                self.replica, self.members, self.waiting, self.slow = "", [], None, ""
                self._rest(event.cause)
            case StepDone(round, step, loss, tokens):
                follows = self._stepped is not None and (self.round, self.step) == (round, step)
                self.step_seconds = now - self._stepped if self._stepped is not None and follows else None
                self.round, self.step = round, step + 1
                self.last_step, self.loss, self._stepped = event, self.loss if loss is None else loss, now
                self.tokens, self.given = self.tokens + tokens, self.given + tokens
                self._steps.append((now, tokens))
            case EndedEarly(round) | Contributed(round):
                self.round = round
                self._rest(f"it ends round {round}")
            case RoundDone(round) | Resumed(round) | CaughtUp(round):
                self.round, self.step = min(round + 1, self.rounds or round + 1), 0
                self._stepped = None
                if self.waiting is not None and self.waiting.round:
                    self.waiting = None
                self._rest(f"it goes on after round {round}")
                if isinstance(event, RoundDone):
                    self.last_round = event
                    self._ends.append((now, round))
            case Evaluated(_, loss, plain):
                self.held_out = loss, plain
            case Credited(round, tokens):
                self._credited[round] = tokens
                self.credit = sum(self._credited.values())
            case Recalled(_, older, recent):
                self._credited = {0: older} | dict(recent)
                self.credit = sum(self._credited.values())
            case Pulse():
                moved = event.since(self.pulse)
                if self.pulse is not None:
                    seconds = max(now - self._pulsed, 1e-3)
                    self.up = (moved.frames_sent + moved.bulk_sent) / seconds
                    self.down = (moved.frames_received + moved.bulk_received) / seconds
                self.sent = event.frames_sent + event.bulk_sent
                self.pulse, self.moved, self._pulsed = event, moved, now
            case Paused():
                self.replica, self.members, self.slow, self.up, self.down = "", [], "", 0.0, 0.0
            case Finished():
                self.over = True
            case _:
                pass

    def _rest(self, doing: str) -> None:
        """The peer trains no more until its next inner step."""
        self.doing = doing
        if self.state == PeerState.TRAINING:
            self.state = PeerState.WAITING
            self._steps.clear()


@dataclass(slots=True)
class EventStream:
    """All events of a process. Each changes the process's status, once, and is then told to the listeners in turn. A
    wait that goes on unchanged is passed over."""

    listeners: list[Listener] = field(default_factory=list)
    status: Status = field(default_factory=Status)

    def __call__(self, event: Event) -> None:
        if isinstance(event, Waiting) and event == self.status.waiting:
            return
        self.status.take(event, self.status.clock())
        for listener in tuple(self.listeners):
            listener(event)

    @contextmanager
    def also(self, listener: Listener) -> Iterator[None]:
        """Tell one more listener, for as long as the block lasts."""
        self.listeners.append(listener)
        try:
            yield
        finally:
            self.listeners.remove(listener)
