"""How contributions spread: with whom to compare, whom to tell, what to fetch from whom. Pure; gRPC carries it out.

`benchmarks/scale.py` plays the same decisions for a thousand peers in virtual time, and says what they cost.
"""

from collections.abc import Sequence
from typing import Protocol, TypeVar

from protocol.limits import RECORD_SECONDS
from protocol.trust.records import PeerRecord

COMPARE_SECONDS = 1.0
"""How often a peer compares, in a small swarm."""

ALL_CONTACTS = 12
"""Up to so many peers all are compared with; of more, a random few each time, since news spreads by itself."""

FANOUT = 3
"""So many peers an author tells at once of what it has made; they tell others, who fetch from whoever has it."""

HEARERS = 12
"""So many peers hear what a peer holds from now on, 8 bytes for each contribution: they know one more source then."""

TELL_SECONDS = 1.0
"""What is accepted within so long goes into one message."""

PEERS_A_SECOND = 100
"""In a larger swarm, a peer compares the less often: the answer has 8 bytes for each contribution that is out, and a
round takes the longer, the more of them there are."""

READ_SECONDS = 2.0
"""How often a peer reads the directory in the DHT, in a small swarm. It is where peers meet first; those who know each
other tell each other in person."""

RECORDS_A_SECOND = 25
"""In a larger one it reads the less often, so that what it reads in a second stays the same; yet twice while a record
lives."""

Item = TypeVar("Item")


class Chance(Protocol):
    """The module `random`, or a seeded `random.Random`."""

    def sample(self, population: Sequence[Item], k: int) -> list[Item]: ...


def some(peers: Sequence[Item], count: int, chance: Chance) -> list[Item]:
    """At most so many of them."""
    return chance.sample(peers, min(count, len(peers)))


def favoured(contributing: Sequence[Item], others: Sequence[Item], count: int, chance: Chance) -> list[Item]:
    """So many, of those whose contributions count where there are enough; and of the others one at least. However many
    names somebody has, news goes on between those who train."""
    return [*some(contributing, count, chance), *some(others, max(1, count - len(contributing)), chance)]


def partners(contributing: Sequence[Item], others: Sequence[Item], chance: Chance) -> list[Item]:
    """With whom to compare now."""
    if len(contributing) + len(others) <= ALL_CONTACTS:
        return [*contributing, *others]
    return favoured(contributing, others, FANOUT, chance)


def compare_seconds(known: int) -> float:
    """How long to wait until the next comparison, knowing so many peers."""
    return COMPARE_SECONDS * max(1.0, known / PEERS_A_SECOND)


def read_seconds(known: int) -> float:
    """How long to wait until the directory is read again, knowing so many peers."""
    return min(max(READ_SECONDS, known / RECORDS_A_SECOND), RECORD_SECONDS / 2)


def first_hearers(
    author: PeerRecord, contributing: Sequence[PeerRecord], others: Sequence[PeerRecord], chance: Chance
) -> list[PeerRecord]:
    """Whom an author tells of its contribution at once, of those who follow its part. What is on trial nobody tells on,
    and the operator's auditor is an observer: so observers hear it."""
    if not author.on_trial:
        return favoured(contributing, others, FANOUT, chance)
    return some([peer for peer in others if peer.role == "observer"], HEARERS, chance)
