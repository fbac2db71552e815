"""The policy of gossip: with whom to compare, whom to tell, from whom to fetch. Pure; gRPC carries it out.

`benchmarks/scale.py` plays the same decisions for a thousand peers in virtual time, and says what they cost.
"""

from collections.abc import Sequence
from typing import Protocol, TypeVar

from protocol.patience import RECORD_SECONDS

COMPARE_SECONDS = 1.0
"""The interval at which a peer compares, in a small swarm."""

ALL_CONTACTS = 12
"""The size of a swarm up to which a peer compares with everybody; in a larger one it compares with a random few each
time, since news spreads by itself."""

FANOUT = 3
"""The number of peers that an author tells at once of what it has made; they tell others, which fetch from whoever has
it."""

HEARERS = 12
"""The number of peers that hear what a peer holds from now on, 8 bytes for each contribution: they know one more source
then."""

NEWS_SECONDS = 1.0
"""The time within which accepted entries go into one message."""

PEERS_A_SECOND = 100
"""The number of known peers beyond which a peer compares the less often: the answer has 8 bytes for each contribution
that is out, and a round takes the longer, the more of them there are."""

READ_SECONDS = 2.0
"""The interval at which a peer reads the directory in the DHT, in a small swarm. It is where peers meet first; peers
that know each other tell each other in person."""

RECORDS_A_SECOND = 25
"""The records that a peer reads in a second, in a larger swarm: it reads the less often, yet twice while a record
lives."""

Item = TypeVar("Item")


class Follower(Protocol):
    """The fields of a peer's record that the policy looks at."""

    @property
    def role(self) -> str: ...
    @property
    def on_trial(self) -> bool: ...


SomeFollower = TypeVar("SomeFollower", bound=Follower)


class Chance(Protocol):
    """The module `random`, or a seeded `random.Random`."""

    def sample(self, population: Sequence[Item], k: int) -> list[Item]: ...


def some(peers: Sequence[Item], count: int, chance: Chance) -> list[Item]:
    """Draw at most `count` of these."""
    return chance.sample(peers, min(count, len(peers)))


def favoured(contributing: Sequence[Item], others: Sequence[Item], count: int, chance: Chance) -> list[Item]:
    """Draw `count` peers of those whose contributions count, where there are enough, and at least one of the others.
    However many names somebody has, news goes on between those that train."""
    return [*some(contributing, count, chance), *some(others, max(1, count - len(contributing)), chance)]


def partners(contributing: Sequence[Item], others: Sequence[Item], chance: Chance) -> list[Item]:
    """Draw the peers with which to compare now."""
    if len(contributing) + len(others) <= ALL_CONTACTS:
        return [*contributing, *others]
    return favoured(contributing, others, FANOUT, chance)


def compare_seconds(known: int) -> float:
    """The seconds until the next comparison, where so many peers are known."""
    return COMPARE_SECONDS * max(1.0, known / PEERS_A_SECOND)


def read_seconds(known: int) -> float:
    """The seconds until the directory is read again, where so many peers are known."""
    return min(max(READ_SECONDS, known / RECORDS_A_SECOND), RECORD_SECONDS / 2)


def first_hearers(
    author: Follower, contributing: Sequence[SomeFollower], others: Sequence[SomeFollower], chance: Chance
) -> list[SomeFollower]:
    """Draw the peers that an author tells of its contribution at once, of those that follow its part. Nobody passes on
    a contribution on trial, and the operator's auditor is an observer: so observers hear it."""
    if not author.on_trial:
        return favoured(contributing, others, FANOUT, chance)
    return some([peer for peer in others if peer.role == "observer"], HEARERS, chance)
