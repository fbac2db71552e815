"""The costs that others may cause a node of the DHT, in calls and in records that it has not seen before.

Anybody can call it, under as many names as he likes. So each name has an allowance, those without a record of their own
have one together, and all have one. Who is of the run is served while strangers have used theirs up.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from protocol.limits import (
    CALLERS_KEPT,
    DHT_MEMBER_PER_SECOND,
    DHT_MEMBER_SAVED,
    DHT_PER_SECOND,
    DHT_SAVED,
    DHT_STRANGER_PER_SECOND,
    DHT_STRANGER_SAVED,
    DHT_STRANGERS_PER_SECOND,
    DHT_STRANGERS_SAVED,
)
from protocol.net.token_bucket import RateLimit, TokenBucket


@dataclass(slots=True)
class Costs:
    """What each source may still cost this node. `is_member` tells whether a source has a record in the run."""

    is_member: Callable[[str], bool]
    clock: Callable[[], float] = time.monotonic
    members: RateLimit = field(init=False)
    strangers: RateLimit = field(init=False)
    all_strangers: TokenBucket = field(init=False)
    all: TokenBucket = field(init=False)

    def __post_init__(self) -> None:
        self.members = RateLimit(DHT_MEMBER_SAVED, 1 / DHT_MEMBER_PER_SECOND, CALLERS_KEPT)
        self.strangers = RateLimit(DHT_STRANGER_SAVED, 1 / DHT_STRANGER_PER_SECOND, CALLERS_KEPT)
        self.all_strangers = TokenBucket(DHT_STRANGERS_PER_SECOND, DHT_STRANGERS_SAVED)
        self.all = TokenBucket(DHT_PER_SECOND, DHT_SAVED)

    def spend(self, source: str, cost: float) -> bool:
        """Take so much from what a source has left; whether there was enough."""
        now, buckets = self.clock(), self._buckets(source)
        if any(bucket.wait_seconds(cost, now) for bucket in buckets):
            return False
        for bucket in buckets:
            bucket.take(cost, now)
        return True

    def charge(self, source: str, cost: float) -> None:
        """Take what has been spent already: it may be owed."""
        for bucket in self._buckets(source):
            bucket.take(cost, self.clock())

    def _buckets(self, source: str) -> tuple[TokenBucket, ...]:
        """All from which a source has to pay."""
        if self.is_member(source):
            return self.members.bucket(source), self.all
        return self.strangers.bucket(source), self.all_strangers, self.all
