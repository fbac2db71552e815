"""How a group finds its k where the run leaves it to its groups: the largest that its links carry while it computes.

What counts is whether frames are held up on their way out. A stage measures for which share of a step they were, on the
busier of its two links; the leader keeps the largest of all stages'. A link that is hardly busy has room: twice the k
is tried. One that is busy all the time is what the group waits for: half the k. What proved too much is not tried again
for some rounds, and nothing changes within a round.
"""

from dataclasses import dataclass, field
from statistics import median

from protocol.manifest import Manifest

START = 8
"""Where a group begins: what the paper has for most of its tables."""

ROOM = 0.4
"""Twice as many bytes keep a link busy for twice as long, and some is left for the outer exchange."""

FULL = 0.9
"""The link decides how long a step takes. Between the two nothing changes."""

PATIENCE = 8
"""Rounds until what was too much is tried again: links change."""


@dataclass(slots=True)
class Choice:
    """d / k of one group, between rounds. With one of `compressions` there is nothing to choose."""

    compressions: tuple[int, ...]
    current: int
    sending: list[float] = field(default_factory=list)
    """Of each inner step of this round: the share in which frames of the busiest link were held up."""
    too_much: int = 0
    """A k of d by this, and any larger one, was more than the links carry; 0: none was."""
    patience: int = 0

    @staticmethod
    def of(manifest: Manifest) -> "Choice":
        """As a group begins."""
        compressions = manifest.compressions
        return Choice(compressions, min(compressions, key=lambda each: abs(each - START)))

    def note(self, sending: float) -> None:
        """An inner step has ended."""
        self.sending.append(sending)

    def decide(self) -> str:
        """The round has ended: choose for the next one; what is new, and why, in words. Empty: nothing is."""
        steps, self.sending = self.sending, []
        self.patience -= bool(steps)
        if not steps:
            return ""
        busy, place = median(steps), self.compressions.index(self.current)
        if busy >= FULL and place + 1 < len(self.compressions):
            self.too_much, self.patience = self.current, PATIENCE
            return self._change(place + 1, f"at d/{self.current} the slowest link was busy {busy:.0%} of the time")
        if busy <= ROOM and place and (self.patience <= 0 or self.compressions[place - 1] > self.too_much):
            return self._change(place - 1, f"at d/{self.current} the slowest link was busy {busy:.0%} of the time")
        return ""

    def _change(self, place: int, why: str) -> str:
        self.current = self.compressions[place]
        return f"k = d/{self.current} from the next round on: {why}"
