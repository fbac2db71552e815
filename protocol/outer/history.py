"""The past of a part: the history of what counted, a version vector with exceptions, as ranges of rounds; the claims of
peers about closed rounds, each of which names a state with its history; and which of several claimed states stands."""

from collections.abc import Callable, Collection, Container, Iterable, Mapping
from dataclasses import dataclass, field

from protocol.errors import FormatError
from protocol.identity import PeerId

MOST_AUTHORS = 2**17
MOST_RANGES = 2**20
"""The ranges of a history, of all authors together: enough for a thousand of them that came and went a thousand times.
"""


@dataclass(slots=True)
class History:
    """The rounds of each author that count: `ranges[author]` are [first, last] in rising order with gaps between."""

    ranges: dict[PeerId, list[tuple[int, int]]] = field(default_factory=dict)

    def add(self, round: int, authors: Iterable[PeerId]) -> None:
        """Count one more round, later than all before, of these authors."""
        for author in authors:
            ranges = self.ranges.setdefault(author, [])
            if ranges and ranges[-1][1] == round - 1:
                ranges[-1] = (ranges[-1][0], round)
            else:
                ranges.append((round, round))

    def has(self, author: PeerId, round: int) -> bool:
        """Whether a round of an author counts."""
        return self.counts(author, round, round)

    def counts(self, author: PeerId, start: int, end: int) -> bool:
        """Whether any round of an author from `start` to `end` counts."""
        return any(max(first, start) <= min(last, end) for first, last in self.ranges.get(author, []))

    def rounds(self, author: PeerId) -> Iterable[int]:
        """The rounds of an author that count."""
        return (round for first, last in self.ranges.get(author, []) for round in range(first, last + 1))

    def copy(self) -> "History":
        """A copy, which may change while this history does not."""
        return History({author: [*ranges] for author, ranges in self.ranges.items()})

    def total(self) -> int:
        """The number of contributions that count, of all authors and rounds."""
        return sum(last - first + 1 for ranges in self.ranges.values() for first, last in ranges)

    def to_wire(self) -> dict[str, list[list[int]]]:
        """The history as plain lists, authors in order: one form for one history."""
        return {author: [[*pair] for pair in ranges] for author, ranges in sorted(self.ranges.items())}

    @staticmethod
    def from_wire(data: object, last_round: int) -> "History":
        """Check a history that another peer sent.

        Raises:
            FormatError: it is no history of rounds 1 to `last_round` in the one form there is.
        """
        if not isinstance(data, Mapping) or len(data) > MOST_AUTHORS or list(data) != sorted(data, key=str):
            raise FormatError("not a history: its authors are not in order")
        ranges: dict[PeerId, list[tuple[int, int]]] = {}
        for author, pairs in data.items():
            if not isinstance(author, str) or not 1 <= len(author) <= 64 or not isinstance(pairs, list) or not pairs:
                raise FormatError("not a history: an author without a name or rounds")
            ranges[PeerId(author)] = [_range(pair) for pair in pairs]
            ends = [0, *(end + 1 for _, end in ranges[PeerId(author)])]
            starts = [*(start for start, _ in ranges[PeerId(author)]), last_round + 2]
            if any(start <= end for end, start in zip(ends, starts, strict=True)):
                raise FormatError("not a history: rounds out of order or range")
        if sum(map(len, ranges.values())) > MOST_RANGES:
            raise FormatError(f"a history of more than {MOST_RANGES} ranges")
        return History(ranges)


def _range(pair: object) -> tuple[int, int]:
    if not isinstance(pair, list) or len(pair) != 2 or any(type(bound) is not int for bound in pair):
        raise FormatError("not a history: not a range of rounds")
    first, last = pair
    if first > last:
        raise FormatError("not a history: a range that ends before it begins")
    return first, last


@dataclass(frozen=True, slots=True)
class Claim:
    """A peer's claim about its closed rounds: of rounds up to `folded`, `contributions` counted, and the state is
    `digest`, which covers the history too."""

    folded: int
    digest: str
    contributions: int
    author: bool
    """Whether the peer contributes itself. Peers that only follow do not decide."""


def prevailing(claims: Iterable[Claim]) -> str | None:
    """The state that stands among several after the same round: the one that most authors hold; of equals, that with
    more contributions, then the smaller digest. None without claims."""
    votes: dict[str, list[Claim]] = {}
    for claim in claims:
        votes.setdefault(claim.digest, []).append(claim)

    def weight(digest: str) -> tuple[int, int, str]:
        claims = votes[digest]
        return -sum(claim.author for claim in claims), -max(claim.contributions for claim in claims), digest

    return min(votes, key=weight, default=None)


def outvoted(mine: Claim, others: Collection[Claim], liars: int, all_have_spoken: bool) -> str | None:
    """The state that stands instead of `mine`, if one does; `others` are the claims of others about the same round.

    Not before more than `liars` authors hold it, or all others have spoken of the round, but for those far behind: who
    has not closed it yet, or has forgotten it, may hold what this peer does.
    """
    standing = prevailing([mine, *others])
    votes = sum(claim.author for claim in others if claim.digest == standing)
    return standing if standing != mine.digest and (votes > liars or all_have_spoken) else None


def latest_standing(
    claims: Collection[Claim], needed: int, all_have_spoken: Callable[[int], bool], refuted: Container[str] = ()
) -> Claim | None:
    """The latest closed state that prevails among the claims of others, but for the digests of what nobody could show
    (`refuted`), and that `needed` of them hold, or all that there are have spoken of (`all_have_spoken` of a round)."""
    for folded in sorted({claim.folded for claim in claims}, reverse=True):
        credible = [claim for claim in claims if claim.folded == folded and claim.digest not in refuted]
        standing = [claim for claim in credible if claim.digest == prevailing(credible)]
        if len(standing) >= needed or (standing and all_have_spoken(folded)):
            return standing[0]
    return None
