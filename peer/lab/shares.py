"""The chunks of the text that each of the lab's replicas reads in a round, one for each inner step."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from peer.data.batches import in_turn
from protocol.manifest import Manifest
from protocol.outer.data_plan import Reading, chunks, first_chunks


@dataclass(slots=True)
class Shares:
    """The shares of a run's replicas, whose `speeds` are given by slot; none: all are equal.

    Without `inner.most_steps` a round has M H steps in all. With it the slowest replica takes H, and each other one as
    many as it can meanwhile; or what it has `taken` in a run that is played again: (round, slot) → inner steps.
    """

    manifest: Manifest
    speeds: Sequence[int] = ()
    taken: Mapping[tuple[int, int], int] = field(default_factory=dict)
    reading: Reading = field(init=False)

    def __post_init__(self) -> None:
        """Begin before round 1."""
        self.reading = Reading.begin(self.manifest)

    def steps(self, round: int) -> list[int]:
        """The inner steps that each replica takes in a round, by slot."""
        inner, total = self.manifest.inner, self.manifest.replicas.total
        speeds = self.speeds or [1] * total
        if not inner.most_steps:
            return in_proportion(total * inner.steps, speeds)
        able = (min(inner.most_steps, inner.steps * speed // min(speeds)) for speed in speeds)
        return [self.taken.get((round, slot), steps) for slot, steps in enumerate(able)]

    def chunks(self, round: int, slot: int) -> Sequence[int]:
        """The chunks that a replica reads in a round. Rounds are asked for in their order."""
        steps = self.steps(round)
        if not self.manifest.inner.most_steps:
            first = in_turn(self.manifest, round, 0, 0) + sum(steps[:slot])
            return range(first, first + steps[slot])
        while (over := self.reading.folded + 1) < round:
            self.reading = self.reading.fold(dict(enumerate(self.steps(over))), self.manifest)
        return list(chunks(first_chunks(self.reading.share(round, slot, self.manifest), steps[slot])))


def in_proportion(total: int, speeds: Sequence[int]) -> list[int]:
    """The number of inner steps of each replica, `total` in all, where all take as long: in proportion to its speed,
    and at least one.

    Raises:
        ValueError: they are too few for one each.
    """
    if total < len(speeds):
        raise ValueError(f"{total} inner steps are too few for {len(speeds)} replicas")
    exact = [total * speed / sum(speeds) for speed in speeds]
    steps = [max(1, math.floor(share)) for share in exact]
    while sum(steps) < total:
        steps[max(range(len(steps)), key=lambda i: exact[i] - steps[i])] += 1
    while sum(steps) > total:
        steps[max(range(len(steps)), key=lambda i: steps[i] - exact[i] if steps[i] > 1 else -math.inf)] -= 1
    return steps
