"""Claims about closed rounds, and which of several claimed states stands."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass


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
    return min(votes, key=lambda digest: _weight(votes, digest), default=None)


def outvoted(mine: Claim, others: Collection[Claim], liars: int, all_have_spoken: bool) -> str | None:
    """The state that stands instead of `mine`, if one does; `others` are the claims of others about the same round.

    Not before more than `liars` authors hold it, or all others have spoken of the round, but for those far behind: who
    has not closed it yet, or has forgotten it, may hold what this peer does.
    """
    standing = prevailing([mine, *others])
    votes = sum(claim.author for claim in others if claim.digest == standing)
    return standing if standing != mine.digest and (votes > liars or all_have_spoken) else None


def _weight(votes: Mapping[str, list[Claim]], digest: str) -> tuple[int, int, str]:
    claims = votes[digest]
    return -sum(claim.author for claim in claims), -max(claim.contributions for claim in claims), digest
