"""Sources that are passed over for a while: what they did is no breach of the protocol, and costs them their turn."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from protocol.limits import PEERS_KEPT
from protocol.net.backoff import pause_after

Source = TypeVar("Source", bound=Hashable)

FORGIVENESS = 0.25
"""Of one fault, by what is done well: who alternates is passed over the longer each time."""


@dataclass(slots=True)
class PassedOver(Generic[Source]):
    """For `first` seconds, then twice as long each time, `most` at most."""

    first: float
    most: float
    clock: Callable[[], float]
    faults: OrderedDict[Source, tuple[float, float]] = field(default_factory=OrderedDict)
    """How many, less what was forgiven, and until when."""

    def __contains__(self, source: Source) -> bool:
        """Whether it is passed over now."""
        return source in self.faults and self.faults[source][1] > self.clock()

    def note(self, source: Source) -> None:
        """It did it again."""
        count, _ = self.faults.pop(source, (0.0, 0.0))
        self.faults[source] = count + 1, self.clock() + pause_after(count + 1, self.first, self.most)
        if len(self.faults) > PEERS_KEPT:
            self.faults.popitem(last=False)

    def forgive(self, source: Source) -> None:
        """It did well."""
        if source in self.faults:
            count, until = self.faults.pop(source)
            if count > FORGIVENESS:
                self.faults[source] = count - FORGIVENESS, until
