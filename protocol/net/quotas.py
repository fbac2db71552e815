"""Quotas for what others make a peer hold: bounded for each source, and in all."""

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Source = TypeVar("Source", bound=Hashable)


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
