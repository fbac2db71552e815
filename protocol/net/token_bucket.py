"""Token buckets: how much may be used at once, and how fast that comes back. Pure: the clock is an argument.

The guard of calls, the DHT's costs, relays, and the doors and the monitor of a node hold others to such limits.
(`protocol/net/bandwidth.py` does not: it orders the pieces of two queues, of which one goes first.)
"""

import math
from collections import OrderedDict
from dataclasses import dataclass, field

ROUNDING_SECONDS = 1e-6
"""Sums of floats may be off by so much, and nobody waits for that."""

KEYS_KEPT = 2**14
"""Buckets that a limit remembers at once, of addresses for example: some 3 MiB."""


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
        """How long it takes until there are `cost` tokens; 0: they are there."""
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
