"""Decisions on which neighbour of a stage has become slow. Pure.

A stage knows how long its inner steps usually take, and for how long it then waits for the stage before it and for the
one behind it. The seconds beyond that, and beyond a tolerance, for which it has waited for one of them are that
neighbour's *debt*; a step that is quicker than the tolerance allows pays some of it back. So it does not matter whether
a neighbour is slow always, now and then, or a little more each day: on average its group loses no more than the
tolerance before the debt is too large. What is usual follows quick steps only, and never slow ones.

Where the debt is too large and a free volunteer of that stage is there, that one is tried, and the slow one is a spare.
This is no offence: nobody is avoided for it. A volunteer that was replaced is called last, for longer each time.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import TypeVar

from protocol.identity import PeerId
from protocol.net.allowances import pause_after
from protocol.patience import (
    DEBT_STEPS,
    FURTHER_DEBT_SHARE,
    GROSS_STEPS,
    LEAST_DEBT_SECONDS,
    SHORTEST_STEP_BOUND_SECONDS,
    SLOW_STEPS,
)

TOLERANCE = 0.15
"""The share of a usual step by which steps may be longer on average: clocks, links and households make that difference.
A group with a spare keeps 1 / (1 + TOLERANCE) of its steps in the long run, 87 %."""

MOST_DEBT = 1.5
"""The largest debt, in times that at which a neighbour is slow: where there is no spare, it can be paid back."""

RECOVERED = 0.5
"""The share of the debt at which a neighbour is slow below which it has recovered."""

WINDOW_STEPS = 16
"""The steps whose medians are a measurement of what is usual."""

PROMISE = 1.5
"""A stage that takes up to this many times what it says it could does what it says: a speed that was measured on an
otherwise idle machine is not quite that of a step."""

NEIGHBOURS_KEPT = 64
"""The peers whose debts, promises and backoffs a stage remembers; the oldest are forgotten first."""


Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class StepTimes:
    """The time of one inner step at one stage, in seconds: in all; waiting for the stage before it and for the one
    behind it; and the passes of one microbatch on this stage and on each behind it, as `StepSums` tells them."""

    seconds: float
    before: float
    behind: float
    passes: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Member:
    """A member of a group, and the tokens a second that its own record says it computes now; 0: it says none."""

    peer: PeerId
    speed: float


@dataclass(frozen=True, slots=True)
class SlowFinding:
    """A finding: with this peer the group's steps take `seconds` on average, and took `usual` seconds before. By the
    best speed that it has ever told, its own passes of a step take `promised` seconds; 0: it has told none.
    `or_further`: it may be a stage behind it."""

    peer: PeerId
    seconds: float
    usual: float
    promised: float
    or_further: bool = False


@dataclass(slots=True)
class Debt:
    """The seconds beyond the tolerance that steps have waited for one peer, those of them that it has told of itself,
    the number of slow steps, and the number and the seconds of all steps since the debt began."""

    seconds: float = 0.0
    admitted: float = 0.0
    slow_steps: int = 0
    steps: int = 0
    total: float = 0.0

    def charge(self, seconds: float, admitted: float, step_seconds: float, most: float) -> None:
        """Charge a step of `step_seconds`, or, where `seconds` are negative, pay back. The debt is at most `most`."""
        self.seconds = min(most, self.seconds + seconds)
        if self.seconds <= 0.0:
            self.seconds, self.admitted, self.slow_steps, self.steps, self.total = 0.0, 0.0, 0, 0, 0.0
            return
        self.admitted = min(self.seconds, self.admitted + max(0.0, min(seconds, admitted)))
        self.slow_steps += seconds > 0.0
        self.steps, self.total = self.steps + 1, self.total + step_seconds


StepKind = tuple[int, bool]
"""Steps of one kind can be compared: those of one d / k, and, where steps overlap, the first ones of a round apart."""


@dataclass(slots=True)
class SlownessWatch:
    """The speed of a stage's neighbours, in all groups that it has been in. A step has so many `microbatches` of so
    many `tokens`."""

    microbatches: int
    tokens: int
    usual: dict[StepKind, StepTimes] = field(default_factory=dict)
    """The lowest medians so far."""
    windows: dict[StepKind, deque[StepTimes]] = field(default_factory=dict)
    debts: dict[PeerId, Debt] = field(default_factory=dict)
    promised: dict[PeerId, float] = field(default_factory=dict)
    """The best speed that each member has told, in tokens a second."""

    def note(self, kind: StepKind, step: StepTimes, before: PeerId | None, members: Sequence[Member]) -> None:
        """Note an inner step that has ended well. `members` are this stage and those behind it, `before` is the stage
        before it."""
        for member in members:
            _keep(self.promised, member.peer, max(self.promised.get(member.peer, 0.0), member.speed))
        if (usual := self.usual.get(kind)) is not None:
            longer = [self.microbatches * (now - then) for now, then in zip(step.passes, usual.passes, strict=True)]
            late = {members[0].peer: (longer[0], longer[0])}
            if before is not None:
                late[before] = step.before - usual.before, 0.0
            if len(members) > 1:
                behind = step.behind - usual.behind - self._elsewhere(step, usual, members)
                late[members[1].peer] = behind, longer[1]
            excess = step.seconds - (1 + TOLERANCE) * usual.seconds
            for peer, (seconds, admitted) in late.items():
                _keep(self.debts, peer, self.debts.get(peer, Debt()))
                charge = min(excess, max(0.0, seconds)) if excess > 0.0 else excess
                self.debts[peer].charge(charge, admitted, step.seconds, MOST_DEBT * debt_limit(usual, len(members) - 1))
        self._measure(kind, step, members)

    def slow(self, kind: StepKind, peer: PeerId, further: int = 0) -> SlowFinding | None:
        """The finding that a neighbour is slow; None: it is not, or too little is known. `further`: the number of
        stages on its far side, of which one may be the slow one. So it may owe more, and needs more slow steps, for
        each of them; not if it has itself told of half of its debt or more."""
        debt, usual = self.debts.get(peer), self.usual.get(kind)
        further = further if debt is not None and 2 * debt.admitted < debt.seconds else 0
        if debt is None or usual is None or debt.seconds < debt_limit(usual, further):
            return None
        gross = (1 + FURTHER_DEBT_SHARE * further) * max(GROSS_STEPS * usual.seconds, SHORTEST_STEP_BOUND_SECONDS)
        is_gross = debt.total - debt.steps * usual.seconds >= gross
        if debt.slow_steps < (1 if is_gross else SLOW_STEPS) + further:
            return None
        promised = self.seconds_by(self.promised.get(peer, 0.0))
        return SlowFinding(peer, debt.total / debt.steps, usual.seconds, promised, further > 0)

    def has_recovered(self, kind: StepKind, peer: PeerId) -> bool:
        """Whether a peer that was slow has paid back most of its debt."""
        usual = self.usual.get(kind)
        return peer not in self.debts or usual is None or self.debts[peer].seconds < RECOVERED * debt_limit(usual)

    def seconds_by(self, speed: float) -> float:
        """The seconds that the passes of a step take at so many tokens a second; 0: that speed is not known."""
        return self.microbatches * self.tokens / speed if speed else 0.0

    def forgive(self) -> None:
        """Forget all debts: the group has other members, and one of those that are gone may have been slow."""
        self.debts.clear()

    def _elsewhere(self, step: StepTimes, usual: StepTimes, members: Sequence[Member]) -> float:
        """The seconds of a step that stages further behind than the next one have cost, as they say themselves: the
        passes that the next one tells of count only as far as the record of the stage in question bears them out."""
        return sum(
            self.microbatches * max(0.0, min(now, self.tokens / member.speed) - before)
            for now, before, member in zip(step.passes[2:], usual.passes[2:], members[2:], strict=True)
            if member.speed
        )

    def _measure(self, kind: StepKind, step: StepTimes, members: Sequence[Member]) -> None:
        """Take the medians of the last steps for what is usual, if they are lower. The first time a stage that takes
        longer than it says it could is taken to be as quick as it says."""
        window = self.windows.setdefault(kind, deque(maxlen=WINDOW_STEPS))
        window.append(step)
        if len(window) < WINDOW_STEPS:
            return
        now, usual = _medians(window), self.usual.get(kind)
        if usual is None:
            speeds = [self.promised[member.peer] for member in members]
            could = [
                self.tokens / speed if speed else seconds for speed, seconds in zip(speeds, now.passes, strict=True)
            ]
            now = now if max(now.passes) <= PROMISE * max(could) else _as_promised(now, could)
        if usual is None or now.seconds < usual.seconds:
            self.usual[kind] = now


def debt_limit(usual: StepTimes, further: int = 0) -> float:
    """The debt, in seconds, at which a neighbour is slow that has so many stages behind it."""
    return (1 + FURTHER_DEBT_SHARE * further) * max(DEBT_STEPS * usual.seconds, LEAST_DEBT_SECONDS)


def _medians(steps: Sequence[StepTimes]) -> StepTimes:
    return StepTimes(
        median(step.seconds for step in steps),
        median(step.before for step in steps),
        median(step.behind for step in steps),
        tuple(map(median, zip(*(step.passes for step in steps), strict=True))),
    )


def _as_promised(step: StepTimes, could: Sequence[float]) -> StepTimes:
    """The time of a step if each stage had done what it said it could: a step takes as long as its slowest stage."""
    slowest = max(range(len(could)), key=lambda stage: step.passes[stage])
    passes = tuple(map(min, step.passes, could))
    saved = step.seconds * (1 - max(passes) / step.passes[slowest])
    return StepTimes(
        step.seconds - saved, step.before, max(0.0, step.behind - saved if slowest else step.behind), passes
    )


def _keep(kept: dict[PeerId, Value], peer: PeerId, value: Value) -> None:
    """Keep a value as the newest, and forget the oldest beyond `NEIGHBOURS_KEPT`."""
    kept.pop(peer, None)
    kept[peer] = value
    while len(kept) > NEIGHBOURS_KEPT:
        del kept[next(iter(kept))]


def is_worth_a_try(slow: SlowFinding, seconds: float) -> bool:
    """Whether a spare may be quicker than a slow member: by what it says its passes of a step take `seconds` (0: it
    does not say)."""
    return seconds * (1 + TOLERANCE) < slow.seconds


@dataclass(frozen=True, slots=True)
class Backoff:
    """A volunteer failed its group `times` times, the last time when it had finished a `round`; until then, by
    `monotonic`, others are called before it, or it is not called."""

    times: int
    round: int
    until: float


@dataclass(slots=True)
class Backoffs:
    """The volunteers that failed their group in one way, and are passed over for a while, twice as long each time."""

    first_seconds: float
    most_seconds: float
    peers: dict[PeerId, Backoff] = field(default_factory=dict)

    def note(self, peer: PeerId, now: float, round: int = 0) -> None:
        """A volunteer has failed, which has finished a `round` (0: that does not matter)."""
        times = 1 + (self.peers[peer].times if peer in self.peers else 0)
        until = now + pause_after(times, self.first_seconds, self.most_seconds)
        _keep(self.peers, peer, Backoff(times, round, until))

    def holds(self, peer: PeerId, now: float, round: int = 0) -> bool:
        """Whether a volunteer is still passed over: it failed not long ago, and has finished no other `round` since."""
        return peer in self.peers and self.peers[peer].round == round and now < self.peers[peer].until
