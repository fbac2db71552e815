"""Allowances: how much others may use at once and how fast that comes back, how many places they may take, and how long
somebody who failed pauses. Pure: the clock is an argument.

Token buckets hold others to rates: the guard of calls, the DHT's costs, relays, and the registration ports and the
monitor of a node have them. (`protocol/net/bandwidth.py` does not: it orders the pieces of two queues, of which one
goes first.) Places bound what others make a peer hold, for each source and in all.
"""

import math
from collections import Counter, OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

ROUNDING_SECONDS = 1e-6
"""Sums of floats may be off by so much, and nobody waits for that."""

KEYS_KEPT = 2**14
"""Buckets that a limit remembers at once, of addresses for example: some 3 MiB."""

MOST_DOUBLINGS = 64
"""The largest number of doublings: beyond these any pause has reached its maximum, and a power of two would be too
large for a float."""

Source = TypeVar("Source", bound=Hashable)


@dataclass(slots=True)
class TokenBucket:
    """A bucket that holds up to `most` tokens, and gains `per_second`. It keeps one number, as the generic cell rate
    algorithm does (ITU-T I.371): when it will be full again, by the clock of `now`. A new one is full."""

    per_second: float
    most: float
    full_at: float = -math.inf

    def left(self, now: float) -> float:
        """The tokens in the bucket; negative where some are owed."""
        return self.most - max(0.0, self.full_at - now) * self.per_second

    def wait_seconds(self, cost: float, now: float) -> float:
        """Return the seconds until there are `cost` tokens; 0: they are there."""
        wait = (cost - self.left(now)) / self.per_second
        return wait if wait > ROUNDING_SECONDS else 0.0

    def take(self, cost: float, now: float) -> None:
        """Take `cost` tokens; those that are not there are owed."""
        self.full_at = max(self.full_at, now) + cost / self.per_second

    def spend(self, cost: float, now: float) -> float:
        """Take `cost` tokens if they are there. Return 0; or, if nothing was taken, how many seconds to wait."""
        wait = self.wait_seconds(cost, now)
        if not wait:
            self.take(cost, now)
        return wait


@dataclass(slots=True)
class RateLimit:
    """A bucket for each key, `burst` tokens large, which gains one token every `seconds`. Of more than `keys_kept` keys
    the one that was seen longest ago is forgotten, so nobody who keeps asking is."""

    burst: float
    seconds: float
    keys_kept: int = KEYS_KEPT
    buckets: OrderedDict[str, TokenBucket] = field(default_factory=OrderedDict, repr=False)

    def bucket(self, key: str) -> TokenBucket:
        """The bucket of a key, which now is the key that was seen last."""
        if key not in self.buckets:
            self.buckets[key] = TokenBucket(1 / self.seconds, self.burst)
            if len(self.buckets) > self.keys_kept:
                self.buckets.popitem(last=False)
        self.buckets.move_to_end(key)
        return self.buckets[key]

    def wait_seconds(self, key: str, now: float) -> float:
        """Take one token of a key. Return 0; or, if there is none, how many seconds to wait."""
        return self.bucket(key).spend(1.0, now)


@dataclass(slots=True)
class Places(Generic[Source]):
    """Places of which one source takes `of_one` at most, and all together take `in_all`. When these are taken, a source
    with fewer than `of_few` still gets one: so a few sources that take all they can keep nobody out."""

    of_one: int
    in_all: int
    of_few: int
    taken: Counter[Source] = field(default_factory=Counter)
    total: int = 0

    def free(self, source: Source) -> int:
        """The number of places that a source may still take now."""
        own = self.taken[source]
        return max(0, min(self.of_one - own, max(self.in_all - self.total, self.of_few - own)))

    def take(self, source: Source, count: int = 1) -> bool:
        """Take `count` places, or none. Returns whether there were as many."""
        if self.free(source) < count:
            return False
        self.taken[source] += count
        self.total += count
        return True

    def give_back(self, source: Source, count: int = 1) -> None:
        """Give `count` places of a source back."""
        self.total -= count
        self.taken[source] -= count
        if not self.taken[source]:
            del self.taken[source]


def pause_after(failures: float, first: float, most: float) -> float:
    """Return the pause after so many failures in a row, in the unit of `first` and `most`: 0 after none, `first` after
    one, then twice as long each time, `most` at most. A failure that was forgiven in part counts as a fraction."""
    if failures <= 0:
        return 0.0
    return min(most, first * math.pow(2.0, min(failures - 1, MOST_DOUBLINGS)))
