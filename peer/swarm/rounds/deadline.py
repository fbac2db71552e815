"""How long a round waits for slow replicas, from what was observed. Pure."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

ROUNDS_REMEMBERED = 8

LEAST_SHARE = 0.1
"""A tenth of a round's length is no delay: what is measured below it is noise."""

LEAST_SECONDS = 2.0
"""A process among many on few cores may rest for seconds, in rounds that last no longer."""

LAST = 4
"""The run's last contributions are waited for so many times as long: nobody waits to go on."""

EARLY_SHARE = 0.8
"""A slow replica stops at this share of the wait, so that its contribution arrives before the end."""


@dataclass(slots=True)
class Pace:
    """What past rounds took: seconds until half of the contributions were here, and from there to the last."""

    patience: float
    halves: deque[float] = field(default_factory=lambda: deque(maxlen=ROUNDS_REMEMBERED))
    delays: deque[float] = field(default_factory=lambda: deque(maxlen=ROUNDS_REMEMBERED))

    @property
    def usual(self) -> float:
        """Seconds until half of a round's contributions are here, as a rule; 0 before the first round."""
        return median(self.halves) if self.halves else 0.0

    @property
    def grace(self) -> float:
        """Seconds that a slow replica is waited for, where the length of the round says nothing."""
        return self.patience * max(median(self.delays) if self.delays else 0.0, LEAST_SECONDS)

    def wait(self, started: float, arrivals: Sequence[float], expected: int, last: bool = False) -> float | None:
        """Until when to wait for the rest of `expected` contributions; None while less than half are here. After the
        run's `last` round none can make up for what is missed.

        `started` is when this round began, `arrivals` when each contribution came, in seconds of one clock.
        """
        half = self._half(started, arrivals, expected)
        if half is None:
            return None
        length = max(0.0, half - started)
        usual = median(self.delays) if self.delays else length
        delays = self.patience * max(usual, LEAST_SHARE * length, LEAST_SECONDS)
        return half + (LAST if last else 1) * delays

    def stop(self, started: float, arrivals: Sequence[float], expected: int) -> float | None:
        """When a replica that is not done yet ends its inner loop."""
        until, half = self.wait(started, arrivals, expected), self._half(started, arrivals, expected)
        return None if until is None or half is None else half + EARLY_SHARE * (until - half)

    def remember(self, started: float, arrivals: Sequence[float], expected: int) -> None:
        """A round has ended. What came after `stop` tells nothing of how long to wait: it was cut short, and came when
        the wait let it. Counted, each wait would make the next one longer, until all wait for the slowest replica."""
        half, stop = halfway(arrivals, expected), self.stop(started, arrivals, expected)
        if half is not None and stop is not None:
            self.halves.append(half - started)
            self.delays.append(max(each for each in arrivals if each <= max(half, stop)) - half)

    def _half(self, started: float, arrivals: Sequence[float], expected: int) -> float | None:
        """When half were here, but not before they usually are: what a broken group had done comes early."""
        half = halfway(arrivals, expected)
        return half if half is None or not self.halves else max(half, started + median(self.halves))


def halfway(arrivals: Sequence[float], expected: int) -> float | None:
    """When half of the expected contributions were here."""
    needed = max(1, (expected + 1) // 2)
    return sorted(arrivals)[needed - 1] if len(arrivals) >= needed else None
