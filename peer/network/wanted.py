"""The decisions of what to fetch from whom: entries from peers that name them, bytes from those that promise most.
Pure; `blob_fetcher.py` carries them out, and `benchmarks/scale.py` plays them for a thousand peers."""

from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from peer.network.gossip_policy import Chance, some
from protocol.limits import KEYS_ASKED, KEYS_ASKED_OF_ONE, KEYS_OF_FEW, PEERS_KEPT
from protocol.net.allowances import Places, pause_after

BLOB_FETCHES = 8
"""The blobs that come in at the same time."""

FETCHES_FROM_ONE = 1, 2, 4
"""The blobs that come in at the same time from one peer, whose uplink others wait for, too: from one that was too slow,
one that has given nothing yet, and one that has."""

LAG_SECONDS = 4.0
"""The seconds by which a source may fall behind `lag_speed` before another is tried: more round trips than any link
has, and little beside a round."""

LAG_BYTES_PER_SECOND = 8000.0
LAG_SHARE = 1 / 4
"""The speed by which a source is measured: this share of what blobs usually come at, or while none has come, a quarter
of 2 Mb/s shared by eight transfers."""

DOUBT_SECONDS = 1.0
"""The seconds behind `lag_speed` from which a source that has given nothing yet keeps no proven one from being tried
beside it."""

MOST_SLOW_FETCHES = 8
"""The fetches that go on though they are too slow. Of more, the slowest is given up."""

SLOW_SECONDS, MOST_SLOW_SECONDS = 10.0, 600.0
"""The times for which a source that was too slow is fetched from last, twice as long each time."""

ENTRY_RETRY_SECONDS = 0.5
"""The time after which another source is asked for an entry, which is a kilobyte, too."""

MUTE_SECONDS, MOST_MUTE_SECONDS = 1.0, 300.0
"""The times for which nothing is heard of a source that does not show what it has named, twice as long each time."""

PROVEN = 2
"""The rank of a source that has given what it was asked for."""

MOST_SOURCES = 32
"""The sources of one blob that are remembered; more would not make it come any sooner."""

LOOKED_AT = 4
"""Blobs that are looked at before the next fetch, drawn at random: so peers fetch different ones, and have something
for each other."""

LOOKED_AT_MOST = 256
"""Blobs that are looked at where none of those can come now."""

FORGIVENESS = 0.25
"""The share of one fault that a success forgives: a source that alternates is avoided the longer each time."""

Key = TypeVar("Key", bound=Hashable)
Source = TypeVar("Source", bound=Hashable)


def standing_still() -> float:
    """A clock for who decides nothing by time."""
    return 0.0


@dataclass(slots=True)
class SourceBackoff(Generic[Source]):
    """The backoff of sources: what they did is no breach of the protocol, and costs them their turn, for `first`
    seconds, then twice as long each time, `most` at most."""

    first: float
    most: float
    clock: Callable[[], float]
    faults: OrderedDict[Source, tuple[float, float]] = field(default_factory=OrderedDict)
    """The number of each source's faults, less what was forgiven, and the time until which it is avoided."""

    def __contains__(self, source: Source) -> bool:
        """Whether a source is avoided now."""
        return source in self.faults and self.faults[source][1] > self.clock()

    def note(self, source: Source) -> None:
        """Note one more fault of a source."""
        count, _ = self.faults.pop(source, (0.0, 0.0))
        self.faults[source] = count + 1, self.clock() + pause_after(count + 1, self.first, self.most)
        if len(self.faults) > PEERS_KEPT:
            self.faults.popitem(last=False)

    def forgive(self, source: Source) -> None:
        """Forgive a source a part of a fault: it did well."""
        if source in self.faults:
            count, until = self.faults.pop(source)
            if count > FORGIVENESS:
                self.faults[source] = count - FORGIVENESS, until


@dataclass(slots=True)
class PendingEntry(Generic[Source]):
    """An entry that is to come: the sources that say they hold it, those of which it has been asked, and when last."""

    holders: list[Source]
    asked: list[Source]
    asked_at: float


@dataclass(slots=True)
class Wanted(Generic[Key, Source]):
    """The blobs that this peer lacks and others have said they hold, and these others.

    A key is first *asked* for: its entry is to come. Then its bytes are *wanted*, from any of its sources; at most
    `BLOB_FETCHES` of them are under way. A source that has given what it was asked for is *proven*; others may take
    half of these places as long as there is one. A fetch that is too slow goes on without a place, and another source
    is tried.
    """

    clock: Callable[[], float] = standing_still
    pending: dict[Key, PendingEntry[Source]] = field(default_factory=dict)
    sources: dict[Key, list[Source]] = field(default_factory=dict)
    waiting: list[Key] = field(default_factory=list)
    """The wanted ones of which another fetch may begin."""
    trying: dict[Key, list[Source]] = field(default_factory=dict)
    """The sources from which the wanted blobs are being fetched."""
    doubted: set[Key] = field(default_factory=set)
    """The wanted ones that are tried from strangers who have given nothing of them yet."""
    under_way: int = 0
    busy: Counter[Source] = field(default_factory=Counter)
    late: Counter[Source] = field(default_factory=Counter)
    """Fetches that go on without a place."""
    speeds: OrderedDict[Source, float] = field(default_factory=OrderedDict)
    """The rate of the last blob from each proven source, in bytes a second."""
    usual_speed: float = 0.0
    places: Places[Source] = field(default_factory=lambda: Places(KEYS_ASKED_OF_ONE, KEYS_ASKED, KEYS_OF_FEW))
    """The places for keys that are asked for."""
    slow: SourceBackoff[Source] = field(init=False)
    """The sources that were too slow: what others hold is fetched from these."""
    unresponsive: SourceBackoff[Source] = field(init=False)
    """The sources that did not show the entries of keys that they had named: what these name is not heard."""

    def __post_init__(self) -> None:
        self.slow = SourceBackoff(SLOW_SECONDS, MOST_SLOW_SECONDS, self.clock)
        self.unresponsive = SourceBackoff(MUTE_SECONDS, MOST_MUTE_SECONDS, self.clock)

    def add_source(self, lacking: Iterable[Key], source: Source) -> list[Key]:
        """Note that a peer holds these. Returns the keys to ask it for, which count as asked until `want`, `forget` or
        `reassign`."""
        unknown: list[Key] = []
        if source in self.unresponsive:
            return unknown
        now = self.clock()
        for key in lacking:
            if key in self.sources:
                self._remember(self.sources[key], source)
                self._try_proven(key)
                continue
            entry = self.pending.get(key)
            if entry is None and self.places.take(source):
                self.pending[key] = PendingEntry([source], [source], now)
                unknown.append(key)
            elif entry is not None:
                self._remember(entry.holders, source)
                # one more is asked if who was asked keeps this peer waiting, or is not known to give anything
                stranger = source in self.speeds and not any(other in self.speeds for other in entry.asked)
                is_due = stranger or not entry.asked or now - entry.asked_at >= ENTRY_RETRY_SECONDS
                if source not in entry.asked and is_due and self.places.take(source):
                    entry.asked.append(source)
                    entry.asked_at = now
                    unknown.append(key)
        return unknown

    def retry_elsewhere(self, key: Key) -> None:
        """Doubt the strangers that are tried, from which nothing comes: a proven source is tried beside them, now or as
        soon as one names the key."""
        if key in self.sources:
            self.doubted.add(key)
            self._try_proven(key)

    def _try_proven(self, key: Key) -> None:
        if key not in self.doubted or key in self.waiting:
            return
        proven = {source for source in self.sources[key] if source in self.speeds}
        if proven and proven.isdisjoint(self.trying.get(key, ())):
            self.waiting.append(key)

    def _remember(self, known: list[Source], source: Source) -> None:
        """Remember one more source; of too many, those that are worth more: nobody can fill the list with others'
        names."""
        if source in known:
            return
        if len(known) < MOST_SOURCES:
            known.append(source)
            return
        worst = min(range(len(known)), key=lambda place: self._rank(known[place]))
        if self._rank(known[worst]) < self._rank(source):
            known[worst] = source

    def _rank(self, source: Source) -> int:
        """The rank of a source, 2: proven, 1: not known, 0: too slow of late."""
        return 0 if source in self.slow else PROVEN if source in self.speeds else 1

    def want(self, key: Key, source: Source) -> bool:
        """Want the bytes of an entry. Returns False if they are wanted already, and this is one more source."""
        if key in self.sources:
            self._remember(self.sources[key], source)
            self._try_proven(key)
            return False
        pending = self._stop_asking(key)
        others = [holder for holder in (pending.holders if pending else []) if holder != source]
        self.sources[key] = [source, *others]
        self.waiting.append(key)
        return True

    def choose(self, chance: Chance) -> tuple[Key, Source] | None:
        """Choose what to fetch next, and from whom: of some blobs drawn at random, the one whose source promises most.
        None: nothing now."""
        if self.under_way >= BLOB_FETCHES or not self.waiting:
            return None
        ranks = Counter[int]()  # places that sources of each rank take, and whether one more of each may take one now
        for busy, fetch_count in self.busy.items():
            ranks[self._rank(busy)] += fetch_count - self.late[busy]
        strangers = ranks[0] + ranks[1] < (BLOB_FETCHES // 2 if self.speeds else BLOB_FETCHES)
        room = strangers and ranks[0] < BLOB_FETCHES // 4, strangers, True
        for count in (LOOKED_AT, LOOKED_AT_MOST):  # most that wait may be only where nothing is to be had now
            drawn = some(range(len(self.waiting)), count, chance)
            choices = [
                (rank_class, source) for rank_class in drawn for source in self._free(self.waiting[rank_class], room)
            ]
            if choices or len(drawn) < count:
                break
        if not choices:
            return None

        def promise(choice: tuple[int, Source]) -> tuple[bool, float]:
            source = choice[1]
            return self._rank(source) > 0, self.speeds.get(source, self.usual_speed) / (1 + self.busy[source])

        rank_class, source = max(choices, key=promise)
        key, self.waiting[rank_class] = self.waiting[rank_class], self.waiting[-1]
        self.waiting.pop()
        self.under_way += 1
        self.busy[source] += 1
        self.trying.setdefault(key, []).append(source)
        return key, source

    def _free(self, key: Key, room: tuple[bool, bool, bool]) -> list[Source]:
        """The sources from which a blob may be fetched now: from one that was too slow only where nobody else
        has it."""
        trying = self.trying.get(key, ())
        sources_left = [(source, self._rank(source)) for source in self.sources[key] if source not in trying]
        if key in self.doubted:
            sources_left = [(source, rank) for source, rank in sources_left if rank == PROVEN]
        better = any(rank for _, rank in sources_left)
        return [
            source
            for source, rank in sources_left
            if room[rank] and self.busy[source] < FETCHES_FROM_ONE[rank] and (rank or not better)
        ]

    def fetched(self, source: Source, speed: float) -> None:
        """Note that bytes have come from a source, so many a second. Their key stays wanted until it is dropped."""
        self._end(source)
        self.usual_speed += (speed - self.usual_speed) / (16 if self.speeds else 1)
        self.speeds[source] = speed
        self.speeds.move_to_end(source)
        if len(self.speeds) > PEERS_KEPT:
            self.speeds.popitem(last=False)
        self.slow.forgive(source)

    def lag(self, key: Key, source: Source) -> None:
        """Let a fetch that takes too long go on without its place: another source may be tried beside it."""
        self.under_way -= 1
        self.late[source] += 1
        self.speeds.pop(source, None)
        self.slow.note(source)
        self.doubted.discard(key)  # whoever else has it
        if key in self.sources and key not in self.waiting and set(self.sources[key]) - set(self.trying.get(key, ())):
            self.waiting.append(key)

    def stop(self, source: Source, late: bool = False) -> None:
        """Note the end of a fetch from which nothing is to be learnt. `late`: it had lost its place."""
        if late:
            self.late[source] -= 1
            self.under_way += 1
        self._end(source)

    @property
    def lag_speed(self) -> float:
        """The bytes a second below which another source is tried."""
        return max(LAG_BYTES_PER_SECOND, LAG_SHARE * self.usual_speed)

    def settle(self, key: Key) -> None:
        """Begin no other fetch of a key whose bytes are here; they may turn out not to be those that are wanted."""
        self.trying.pop(key, None)
        self.doubted.discard(key)
        if key in self.waiting:
            self.waiting.remove(key)

    def drop(self, key: Key) -> None:
        """Want nothing more under this key."""
        self.settle(key)
        self.sources.pop(key, None)

    def failed(self, key: Key, source: Source, late: bool = False) -> bool:
        """Note that bytes did not come from a source. Returns whether there is another source."""
        self.stop(source, late)
        self.speeds.pop(source, None)
        if key not in self.sources:
            return False
        self.doubted.discard(key)  # whoever else has it
        sources_left = self.sources[key] = [
            other_source for other_source in self.sources[key] if other_source != source
        ]
        trying = self.trying[key] = [
            other_source for other_source in self.trying.get(key, []) if other_source != source
        ]
        if not sources_left:
            self.drop(key)
        elif len(sources_left) > len(trying) and key not in self.waiting:
            self.waiting.append(key)
        return bool(sources_left)

    def _end(self, source: Source) -> None:
        self.under_way -= 1
        self.busy[source] -= 1
        for counts in (self.busy, self.late):
            if not counts[source]:
                del counts[source]

    def forget(self, keys: Iterable[Key]) -> None:
        """Expect no answer any more for these keys."""
        for key in keys:
            self._stop_asking(key)

    def reassign(self, keys: Iterable[Key], source: Source) -> dict[Source, list[Key]]:
        """Note that a source has not shown the entries of these keys. Returns the sources to ask instead, with the
        keys, which count as asked again."""
        instead: dict[Source, list[Key]] = {}
        for key in keys:
            entry = self.pending.get(key)
            if entry is None or source not in entry.asked:
                continue
            entry.holders = [other_source for other_source in entry.holders if other_source != source]
            entry.asked.remove(source)
            self.places.give_back(source)
            others = [
                other_source
                for other_source in entry.holders
                if other_source not in entry.asked and other_source not in self.unresponsive
            ]
            other = max(others, key=self._rank, default=None)
            if other is not None and self.places.take(other):
                entry.asked.append(other)
                entry.asked_at = self.clock()
                instead.setdefault(other, []).append(key)
            elif not entry.asked:
                del self.pending[key]
        return instead

    def _stop_asking(self, key: Key) -> PendingEntry[Source] | None:
        pending = self.pending.pop(key, None)
        for source in pending.asked if pending else ():
            self.places.give_back(source)
        return pending
