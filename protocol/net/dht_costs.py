"""The costs that others may cause a node of the DHT, in calls and in records that it has not seen before.

Anybody can call it, under as many names as he likes. So each name has an allowance, those without a record of their own
have one together, and all have one. Who is of the run is served while strangers have used theirs up.
"""

import time
from collections import OrderedDict
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


@dataclass(slots=True)
class Fund:
    """An allowance that fills up with time, up to `saved`. `at` is when it was counted last."""

    per_second: float
    saved: float
    at: float
    left: float = 0.0

    def __post_init__(self) -> None:
        self.left = self.saved

    def count(self, now: float) -> float:
        """Count what is in the fund now."""
        self.left = min(self.saved, self.left + (now - self.at) * self.per_second)
        self.at = now
        return self.left


@dataclass(slots=True)
class Costs:
    """What each source may still cost this node. `is_member` tells whether a source has a record in the run."""

    is_member: Callable[[str], bool]
    clock: Callable[[], float] = time.monotonic
    members: OrderedDict[str, Fund] = field(default_factory=OrderedDict)
    strangers: OrderedDict[str, Fund] = field(default_factory=OrderedDict)
    all_strangers: Fund = field(init=False)
    all: Fund = field(init=False)

    def __post_init__(self) -> None:
        now = self.clock()
        self.all_strangers = Fund(DHT_STRANGERS_PER_SECOND, DHT_STRANGERS_SAVED, now)
        self.all = Fund(DHT_PER_SECOND, DHT_SAVED, now)

    def spend(self, source: str, cost: float) -> bool:
        """Take `cost` from what a source has left. Returns whether there was enough."""
        now, funds = self.clock(), self._funds(source)
        if any(fund.count(now) < cost for fund in funds):
            return False
        for fund in funds:
            fund.left -= cost
        return True

    def charge(self, source: str, cost: float) -> None:
        """Take what has been spent already: it may be owed."""
        now = self.clock()
        for fund in self._funds(source):
            fund.count(now)
            fund.left -= cost

    def _funds(self, source: str) -> tuple[Fund, ...]:
        if self.is_member(source):
            return self._own(self.members, source, DHT_MEMBER_PER_SECOND, DHT_MEMBER_SAVED), self.all
        own = self._own(self.strangers, source, DHT_STRANGER_PER_SECOND, DHT_STRANGER_SAVED)
        return own, self.all_strangers, self.all

    def _own(self, funds: OrderedDict[str, Fund], source: str, per_second: float, saved: float) -> Fund:
        if source not in funds:
            funds[source] = Fund(per_second, saved, self.clock())
            if len(funds) > CALLERS_KEPT:
                funds.popitem(last=False)
        funds.move_to_end(source)
        return funds[source]
