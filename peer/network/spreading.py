"""How contributions spread: with whom to compare, whom to tell, what to fetch from whom. Pure; gRPC carries it out.

`benchmarks/scale.py` plays the same decisions for a thousand peers in virtual time, and says what they cost.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from protocol.identity import Part
from protocol.layout import parts_followed
from protocol.limits import RECORD_SECONDS
from protocol.manifest import Manifest
from protocol.records import PeerRecord

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

FETCHES = 8
"""Blobs that come in at the same time."""

FETCHES_FROM_ONE = 4
"""And from the same peer: the others wait for its uplink, too."""

MOST_SOURCES = 32
"""Of one blob are remembered; more would not make it come any sooner."""

LOOKED_AT = 4
"""Blobs that are looked at before the next fetch, drawn at random: so peers fetch different ones, and have something
for each other."""

Item = TypeVar("Item")
Key = TypeVar("Key", bound=Hashable)
Source = TypeVar("Source", bound=Hashable)


class Chance(Protocol):
    """The module `random`, or a seeded `random.Random`."""

    def sample(self, population: Sequence[Item], k: int) -> list[Item]: ...


def some(peers: Sequence[Item], count: int, chance: Chance) -> list[Item]:
    """At most so many of them."""
    return chance.sample(peers, min(count, len(peers)))


def partners(known: Sequence[Item], chance: Chance) -> list[Item]:
    """With whom to compare now."""
    return list(known) if len(known) <= ALL_CONTACTS else some(known, FANOUT, chance)


def compare_seconds(known: int) -> float:
    """How long to wait until the next comparison, knowing so many peers."""
    return COMPARE_SECONDS * max(1.0, known / PEERS_A_SECOND)


def read_seconds(known: int) -> float:
    """How long to wait until the directory is read again, knowing so many peers."""
    return min(max(READ_SECONDS, known / RECORDS_A_SECOND), RECORD_SECONDS / 2)


def follows(peer: PeerRecord, part: Part, manifest: Manifest) -> bool:
    """Whether a peer of this role and stage holds the outer state of a part."""
    return peer.role != "volunteer" or part in parts_followed(manifest, peer.stage)


def first_hearers(author: PeerRecord, followers: Sequence[PeerRecord], chance: Chance) -> list[PeerRecord]:
    """Whom an author tells of its contribution at once. What is on trial nobody tells on, and the operator's auditor is
    an observer: so observers hear it."""
    if not author.on_trial:
        return some(followers, FANOUT, chance)
    return some([peer for peer in followers if peer.role == "observer"], HEARERS, chance)


@dataclass(slots=True)
class Wanted(Generic[Key, Source]):
    """What this peer lacks of what others have said they hold, and who said so.

    A key is first *asked* for: its entry is to come. Then its bytes are *wanted*, from any of its sources; at most
    `FETCHES` of them are under way.
    """

    asked: dict[Key, list[Source]] = field(default_factory=dict)
    sources: dict[Key, list[Source]] = field(default_factory=dict)
    waiting: list[Key] = field(default_factory=list)
    """The wanted ones that are not under way."""
    under_way: int = 0
    busy: Counter[Source] = field(default_factory=Counter)
    speeds: dict[Source, float] = field(default_factory=dict)
    """Bytes a second of the last blob that came from each."""
    usual_speed: float = 0.0

    def hear(self, lacking: Iterable[Key], source: Source) -> list[Key]:
        """A peer says that it holds these: what to ask it for. They count as asked until
        `want` or `forget`."""
        unknown = []
        for key in lacking:
            known = self.sources.get(key) or self.asked.get(key)
            if known is None:
                self.asked[key] = [source]
                unknown.append(key)
            elif source not in known and len(known) < MOST_SOURCES:
                known.append(source)
        return unknown

    def want(self, key: Key, source: Source) -> bool:
        """The bytes of an entry are to be fetched; False if that is known already, and this is one more source."""
        if key in self.sources:
            self.hear([key], source)
            return False
        others = [each for each in self.asked.pop(key, []) if each != source]
        self.sources[key] = [source, *others]
        self.waiting.append(key)
        return True

    def choose(self, chance: Chance) -> tuple[Key, Source] | None:
        """What to fetch next, and from whom: of some blobs drawn at random, the one whose source promises most."""
        if self.under_way >= FETCHES or not self.waiting:
            return None
        drawn = some(range(len(self.waiting)), LOOKED_AT, chance)
        choices = [(place, source) for place in drawn for source in self.sources[self.waiting[place]]]
        free = [each for each in choices if self.busy[each[1]] < FETCHES_FROM_ONE]
        if not free:
            return None
        place, source = max(free, key=lambda each: self._promise(each[1]))
        key, self.waiting[place] = self.waiting[place], self.waiting[-1]
        self.waiting.pop()
        self.under_way += 1
        self.busy[source] += 1
        return key, source

    def _promise(self, source: Source) -> float:
        return self.speeds.get(source, self.usual_speed) / (1 + self.busy[source])

    def came(self, source: Source, speed: float) -> None:
        """Bytes have come from there, so many a second. Their key stays wanted until it is dropped."""
        self._end(source)
        self.usual_speed += (speed - self.usual_speed) / (16 if self.speeds else 1)
        self.speeds[source] = speed

    def drop(self, key: Key) -> None:
        """Nothing more is wanted under this key."""
        self.sources.pop(key, None)

    def failed(self, key: Key, source: Source) -> bool:
        """They did not come from there; whether there is another source."""
        self._end(source)
        self.speeds[source] = 0.0
        left = self.sources[key] = [each for each in self.sources[key] if each != source]
        if left:
            self.waiting.append(key)
        else:
            del self.sources[key]
        return bool(left)

    def _end(self, source: Source) -> None:
        self.under_way -= 1
        self.busy[source] -= 1

    def forget(self, keys: Iterable[Key]) -> None:
        """No answer is to be expected any more for these."""
        for key in keys:
            self.asked.pop(key, None)
