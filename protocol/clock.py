"""The two clocks that the daemon reads, and nothing else of it reads a clock: a simulated world puts its own in their
place."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Clocks(Protocol):
    """A machine's clocks."""

    def monotonic(self) -> float:
        """Seconds since some moment, which nobody sets."""

    def time(self) -> float:
        """Seconds since 1970, as the machine believes."""


_clocks: Clocks = time


def monotonic() -> float:
    """Seconds since some moment in the past: for durations, as nobody sets this clock."""
    return _clocks.monotonic()


def unix_time() -> float:
    """Seconds since 1970, as this machine believes: for what others are told."""
    return _clocks.time()


@contextmanager
def read_from(clocks: Clocks) -> Iterator[None]:
    """Read other clocks in the block, in the whole process: those of a simulated world."""
    global _clocks
    before, _clocks = _clocks, clocks
    try:
        yield
    finally:
        _clocks = before
