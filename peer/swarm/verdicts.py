"""The verdicts that follow from an audit's measurements: who is suspected, of what, since when. Pure.

One round says little: text, sample and the other authors differ. So an author is suspected of *harm* after
`HARMFUL_AUDITS` harmful ones among its last `AUDITS_KEPT`; and two are suspected of *copying* after `COPIED_ROUNDS`
rounds in which they sent much the same. Which of the two copied, nobody can tell from what they sent.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import fmean, median

from protocol.events.decisions import Suspected
from protocol.identity import PeerId

FLOOR_NATS = 0.01
"""A loss of less than this, in nats per token, is no harm. Measured on small models, honest gains were never below
−0.003. Those of a group with its signs flipped, though no larger than honest ones, were −0.03 to −0.16 at its last
stage from the second round on, and −0.01 to −0.03 at its first in rounds 2 to 6: enough to suspect both."""

AUDITS_KEPT = 5
HARMFUL_AUDITS = 3
"""The number of harmful audits, of those kept, that make a suspicion. One after three rounds is early enough for a
revocation to take all three out: it reaches `Window.revocable` rounds back, five by default."""

COPIED_PLACES = 0.5
"""Two contributions are alike that have more of their places in common, beyond chance. Honest replicas, which start
from the same θ and read other text, had 1 to 17 % in common on small models, and 24 % at most at a high rate (with Muon
32 %); a copy has all, unless its author makes up the rest."""

COPIED_ROUNDS = 3

SCORES_TOLD = 16
"""The number of scores that a peer's record has room for."""

Pair = tuple[PeerId, PeerId]
"""Two authors, in rising order."""


def trial_objection(gain: float, alike: float) -> str:
    """Return why a newcomer's contribution on trial should not count; empty: it may.

    `alike` is the largest share of places, beyond chance, that it has in common with another's.
    """
    if gain < -FLOOR_NATS:
        return f"held-out loss would be {-gain:.3f} nats higher with it"
    if alike >= COPIED_PLACES:
        return f"{alike:.0%} of its places are another's"
    return ""


@dataclass(slots=True)
class Verdicts:
    """The running verdict on each author: its gains in nats per token by round, of its last audits."""

    gains: dict[PeerId, dict[int, float]] = field(default_factory=dict)
    harm: dict[PeerId, set[int]] = field(default_factory=dict)
    alike: dict[Pair, set[int]] = field(default_factory=dict)
    suspected: set[PeerId] = field(default_factory=set)
    """The peers that are suspected of harm: each suspicion is emitted once."""

    def add_gains(self, round: int, gains: Mapping[PeerId, float]) -> list[Suspected]:
        """Gains measured in a round; whoever is suspected from now on. What a part gains that came later adds to what
        was heard of its author's others."""
        for author, gain in gains.items():
            mine = self.gains.setdefault(author, {})
            mine[round] = mine.get(round, 0.0) + gain
            for old in sorted(mine)[:-AUDITS_KEPT]:
                del mine[old]
        in_round = {author: mine[round] for author, mine in self.gains.items() if round in mine}
        blamed = harmful(in_round)
        findings = []
        for author in sorted(in_round):
            parts_harmed = self.harm.get(author, set()) & self.gains[author].keys()
            self.harm[author] = parts_harmed | {round} if author in blamed else parts_harmed - {round}
            if len(self.harm[author]) >= HARMFUL_AUDITS and author not in self.suspected:
                findings.append(self._suspect(author))
        return findings

    def _suspect(self, author: PeerId) -> Suspected:
        rounds = sorted(self.harm[author])
        lost = -sum(self.gains[author][round] for round in rounds)
        listed = ", ".join(map(str, rounds))
        reason = f"held-out loss is {lost:.3f} nats higher with its contributions to rounds {listed} than without"
        self.suspected.add(author)
        return Suspected(author, reason, rounds[0])

    def add_overlaps(self, round: int, places: Mapping[Pair, float]) -> list[Suspected]:
        """Take the share of places, beyond chance, that two authors have in common in a round; returns suspicions of
        both, if it is large again and again."""
        findings = []
        for pair, share in places.items():
            rounds_alike = self.alike.setdefault(pair, set())
            if share < COPIED_PLACES or round in rounds_alike or len(rounds_alike) >= COPIED_ROUNDS:
                continue
            rounds_alike.add(round)
            if len(rounds_alike) == COPIED_ROUNDS:
                findings += [_copies(one, other, share) for one, other in (pair, pair[::-1])]
        return findings

    def under_watch(self, author: PeerId) -> bool:
        """Whether it has done harm lately, and is not suspected yet: more audits will tell."""
        return bool(self.harm.get(author)) and author not in self.suspected

    def scores(self) -> dict[PeerId, float]:
        """The mean gain of each author's last audits, of those who gained least."""
        means = {author: fmean(mine.values()) for author, mine in self.gains.items()}
        return {author: means[author] for author in sorted(means, key=lambda author: means[author])[:SCORES_TOLD]}


def harmful(gains: Mapping[PeerId, float]) -> set[PeerId]:
    """Return the authors that did harm in a round: their gain is below zero by more than the floor.

    Where a round goes badly for most, nobody is to blame but who is twice as bad as the middle one of the others. It is
    the middle one, so that fewer than half cannot hide each other. Not their spread: what honest peers gain differs
    tenfold, from a first stage to a datacenter, and their spread would hide a small poisoner.
    """
    harmful_authors = set()
    for author, gain in gains.items():
        others = [others_gain for other, others_gain in gains.items() if other != author]
        usual = median(others) if others else 0.0
        if gain < min(0.0, 2 * usual) - FLOOR_NATS:
            harmful_authors.add(author)
    return harmful_authors


def _copies(one: PeerId, other: PeerId, share: float) -> Suspected:
    places = f"{share:.0%} of the places in its contribution are also peer {other[-8:]}'s"
    reason = f"{places}, and such were those of {COPIED_ROUNDS} rounds: one of the two copies"
    return Suspected(one, reason)
