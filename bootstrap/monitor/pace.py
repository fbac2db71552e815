"""How long the swarm takes for a round, as a node sees it that reads what peers say. Pure: the clock is an argument."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from protocol.trust.records import PeerRecord, common_round, may_author

ROUNDS_KEPT = 8
"""Their mean is what a round takes: fewer would tell more of one slow peer, more of a swarm that was another."""


@dataclass(slots=True)
class SwarmPace:
    """The rounds that ended while this node looked, and when, in seconds since 1970."""

    round: int = 0
    """The last that the swarm has finished."""
    ends: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=ROUNDS_KEPT + 1))
    looked: float | None = None

    def see(self, records: Iterable[PeerRecord], liars: int, now: float) -> None:
        """What peers say of themselves now. When a round ended is what the first of those said who have finished it,
        as far as that can be: since this node looked last."""
        trains = [each for each in records if may_author(each)]
        finished = common_round((each.round for each in trains), liars)
        if finished > self.round:
            said = min(each.sequence / 1000 for each in trains if each.round >= finished)
            if self.looked is not None:  # what ended before the first look, ended at no time that is known
                self.ends.append((finished, min(max(said, self.looked), now)))
            self.round = finished
        self.looked = now

    def seconds(self, now: float) -> float:
        """From the end of a round to that of the next; 0 where two ends have not been seen. A round that lasts longer
        than others already counts."""
        if len(self.ends) < 2:
            return 0.0
        (first, begun), (last, ended) = self.ends[0], self.ends[-1]
        usual = (ended - begun) / (last - first)
        return max(usual, (now - begun) / (last - first + 1))
