"""What is read, said plainly: a set of chunks that are taken, and plans as lists of single chunks."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count

from protocol.outer.data_plan import ABSENT_ROUNDS, NEWCOMERS


@dataclass
class ReadOnce:
    """`taken` are chunks that are given out or read; what is in no plan and not taken can be given out."""

    replicas: int
    steps: int
    open: int
    folded: int = 0
    taken: set[int] = field(default_factory=set)
    seen: dict[int, int] = field(default_factory=dict)
    plans: dict[int, list[tuple[int | None, list[int]]]] = field(default_factory=dict)
    """Round → (slot, its chunks), with None for newcomers."""

    def __post_init__(self) -> None:
        self.seen = dict.fromkeys(range(self.replicas), 0)
        for round in range(1, self.open + 1):
            self.plan(round, {})

    def take(self, start: int, number: int) -> list[int]:
        lowest = (chunk for chunk in count(start) if chunk not in self.taken)
        chunks = [next(lowest) for _ in range(number)]
        self.taken |= {*chunks}
        return chunks

    def plan(self, round: int, read: Mapping[int, int]) -> None:
        slots = sorted(self.seen, key=lambda slot: (-read.get(slot, 0), slot))
        known: list[tuple[int | None, list[int]]] = [(slot, self.take(0, self.steps)) for slot in slots]
        beyond = (known[-1][1][-1] + 1 if known else 0) + self.open * len(slots) * self.steps
        ready = [(None, self.take(beyond, self.steps)) for _ in range(max(NEWCOMERS, len(slots)))]
        self.plans[round] = [*known, *ready]

    def share(self, round: int, slot: int) -> list[int] | None:
        plan = self.plans[round]
        for known, chunks in plan:
            if known == slot:
                return chunks
        ready = [chunks for known, chunks in plan if known is None]
        place = [other for other in range(slot + 1) if all(other != known for known, _ in plan)].index(slot)
        return ready[place] if place < len(ready) else None

    def fold(self, read: Mapping[int, int]) -> None:
        self.folded += 1
        used = {c for slot, steps in read.items() for c in (self.share(self.folded, slot) or [])[:steps]}
        self.taken -= {c for _, chunks in self.plans.pop(self.folded) for c in chunks if c not in used}
        self.seen |= dict.fromkeys(read, self.folded)
        self.seen = {slot: last for slot, last in self.seen.items() if last > self.folded - ABSENT_ROUNDS}
        self.plan(self.folded + self.open, read)
