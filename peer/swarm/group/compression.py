"""The choice of a group's k where the run leaves it to its groups: the largest k whose frames hide behind its passes.

What counts is how much longer a step takes than the passes that it is made of, its *stretch*: 1 where no pass waits for
a frame. Where links are what a step waits for, its stretch goes with k; whatever else it waits for stays the same at
another k. So a group tries, a round at a time, and has the largest k with which a step is as quick as with any. What it
knows of a k is forgotten after some rounds, later each time: links change. Nothing changes within a round.

Nobody's line is measured beforehand, with traffic that is worth nothing: an idle link's rate is not the one that is
there while the household uses it, and what frames wait for does not show at their sender, where sockets take megabytes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median_low

from protocol.manifest import Manifest
from protocol.net.allowances import pause_after

START = 8
"""The k with which a group begins: the paper's value in most of its tables."""

SLOW_STRETCH_RATIO = 1.15
"""The stretch that counts as slower. Clocks, neighbours, and filling and draining the pipeline once a step make this
much of a difference."""

CHANGED = 1.5
"""A k whose stretch is another by more than this finds other links, or other members."""

PATIENCE, MOST_PATIENCE = 8, 64
"""Rounds for which a measurement counts: twice as long each time it is made again."""


@dataclass(frozen=True, slots=True)
class TriedK:
    """The measurement of one k by a group: the stretch of its steps, the round until which it counts, and how often it
    was measured."""

    stretch: float
    until: int
    times: int


@dataclass(slots=True)
class KController:
    """d / k of one group, between rounds. With one of `compressions` there is nothing to choose."""

    compressions: tuple[int, ...]
    """The possible ones, the smallest first: it has the largest k."""
    microbatches: int
    overlaps: bool
    """Whether steps follow each other without a bubble (`inner.overlap`)."""
    current: int
    steps: list[float] = field(default_factory=list)
    """The stretch of each inner step of this round."""
    rounds: int = 0
    tried: dict[int, TriedK] = field(default_factory=dict)

    @staticmethod
    def of(manifest: Manifest) -> "KController":
        """Return the controller of a group that begins."""
        start = min(manifest.compressions, key=lambda compression: abs(compression - START))
        return KController(manifest.compressions, manifest.inner.microbatches, manifest.inner.overlap > 0, start)

    def note(self, seconds: float, passes: Sequence[float]) -> None:
        """An inner step has ended, `seconds` after it began; `passes` are the seconds that the passes of one
        microbatch took on each of the stages."""
        self.steps.append(stretch(seconds, passes, self.microbatches, self.overlaps))

    def decide(self) -> str:
        """The round has ended: choose for the next one; what is new, and why, in words. Empty: nothing is."""
        steps, self.steps = self.steps, []
        if not steps or len(self.compressions) == 1:
            return ""
        now = median_low(steps)
        self._learn(now)
        stretches = {ratio: tried.stretch for ratio, tried in self.tried.items() if tried.until >= self.rounds}
        quick = SLOW_STRETCH_RATIO * min(stretches.values())
        best = min(ratio for ratio, measured in stretches.items() if measured <= quick)
        if best != self.current:
            than = f"{stretches[best]:.1f} times at d/{best}"
            return self._change(best, f"at d/{self.current} a step took {now:.1f} times its passes, and {than}")
        index, took = self.compressions.index(best), f"at d/{best} a step took {now:.1f} times its passes"
        larger, smaller = self.compressions[:index], self.compressions[index + 1 :]
        if now > SLOW_STRETCH_RATIO and smaller and stretches.keys().isdisjoint(smaller):
            enough = (ratio for ratio in smaller if ratio * SLOW_STRETCH_RATIO >= best * now)
            return self._change(next(enough, smaller[-1]), took)
        if larger and larger[-1] not in stretches:
            return self._change(larger[-1], f"to see whether it hides; {took}")
        return ""

    def _learn(self, now: float) -> None:
        """Add this round's steps to the measurement of the current k."""
        self.rounds += 1
        before = self.tried.get(self.current)
        if before and not 1 / CHANGED <= now / before.stretch <= CHANGED:
            self.tried, before = {}, None
        times = 1 if before is None else before.times + (before.until < self.rounds)
        patience = round(pause_after(times, PATIENCE, MOST_PATIENCE))
        self.tried[self.current] = TriedK(now, self.rounds + patience, times)

    def _change(self, compression: int, why: str) -> str:
        self.current = compression
        return f"k = d/{compression} from the next round on: {why}"


def stretch(seconds: float, passes: Sequence[float], microbatches: int, overlaps: bool) -> float:
    """Return how many times longer than its passes a step took, at least 1. Over links that cost nothing, where the
    passes of a microbatch take pₛ seconds on stage s, 1F1B takes Σₛ pₛ + (M − 1) maxₛ pₛ, and a step that overlaps with
    its neighbours M maxₛ pₛ."""
    least = microbatches * max(passes) if overlaps else sum(passes) + (microbatches - 1) * max(passes)
    return max(1.0, seconds / least) if least > 0.0 else 1.0
