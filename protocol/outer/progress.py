"""Progress: the last round that a run is known to have finished, and by part the last one whose state somebody is known
to have held.

Progress is what a peer may not fall behind: a peer whose own state is older trains no further from it. It rises with
what others prove, and falls only by a rewind that the run's operator has signed. Pure.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from protocol.identity import Part


@dataclass(frozen=True, slots=True)
class Rewind:
    """The operator's decision to go on from an older state. Where nobody brings back a part's state as it was after a
    later round up to `lost`, the newest state after `to_round` or later that a peer holds stands for it.

    `issued` is when it was signed, in milliseconds since 1970; of two rewinds, the later counts.
    """

    to_round: int
    lost: int
    issued: int


@dataclass(slots=True)
class RunProgress:
    """Progress of a run as one peer, or the operator's node, knows it. `run` is the last round that the run has
    finished; `parts[p]` is the last round after which a peer is known to have held the state of part `p`."""

    run: int = 0
    parts: dict[Part, int] = field(default_factory=dict)
    rewind: Rewind | None = None

    def raise_to(self, run: int, parts: Mapping[Part, int] | None = None) -> bool:
        """Note that the run has finished a round, and that states of parts were held. Returns whether that is news."""
        before = self.run, dict(self.parts)
        self.run = max(self.run, run)
        for part, round in (parts or {}).items():
            self.parts[part] = max(self.parts.get(part, 0), round)
        return (self.run, self.parts) != before

    def rewind_words(self, own: int, seen: int = 0) -> str:
        """The rewind that is gone by, in a sentence for a peer whose own state is of a round `own`; empty: there is
        none, or none for this peer. That has no part in it if it had none of the rounds that were lost, and the run has
        finished later ones; `seen` is the last that somebody says it has."""
        if self.rewind is None:
            return ""
        if max(self.run, seen) > self.rewind.lost and not self.rewind.to_round < own <= self.rewind.lost:
            return ""
        states = f"where nobody holds the state after round {self.rewind.lost}, the newest one after round"
        return f"the operator has rewound the run: {states} {self.rewind.to_round} or later stands for it"

    def heed(self, rewind: Rewind) -> bool:
        """Go by the operator's rewind from now on. Returns whether it is newer than the one that is known."""
        if self.rewind is not None and rewind.issued <= self.rewind.issued:
            return False
        self.rewind = rewind
        return True

    @property
    def furthest(self) -> int:
        """The last round after which any state is known to have been held, whether it was given up or not."""
        return max(self.run, *self.parts.values(), 0)

    @property
    def finished(self) -> int:
        """The last round that the run has finished, as far as its operator has not given it up."""
        return self._standing(self.run)

    def believed(self, shown: Iterable[int]) -> int:
        """The last round that a single holder shows, as far as the operator's rewind says that the run had finished it.
        `shown` is not looked through where there is no rewind."""
        return min(max(shown, default=0), self.rewind.lost) if self.rewind is not None else 0

    def newest(self, part: Part, run: int = 0) -> int:
        """The last round after which the state of a part was held, and is not given up. `run` is a later round that the
        run is seen to have finished now: all parts were held a round before it, or it could not have."""
        return self._standing(max(self.parts.get(part, 0), max(self.run, run) - 1, 0))

    def _standing(self, round: int) -> int:
        """A round, or the one to which the operator has rewound the run from it."""
        if self.rewind is None or round > self.rewind.lost:
            return round
        return min(round, self.rewind.to_round)
