"""A process that gets less of its machine than others: stopped and let go, many times a second."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil

PERIOD_SECONDS = 0.05
"""Short beside anything that peers wait for: they see a slow machine, not one that pauses."""


@contextmanager
def slowed(pid: int, share: float) -> Iterator[None]:
    """Let a process and its children run for this share of the time, as long as the block lasts or they live.

    A cgroup's quota would do the same, but needs root and differs between its two versions. The share is of the time,
    as the quota is of a core: who shares its core with others has less than that of it.
    """
    process = psutil.Process(pid)
    own = [process, *process.children(recursive=True)]
    over = threading.Event()

    def every(action: str) -> None:
        for each in own:
            with suppress(psutil.NoSuchProcess):
                getattr(each, action)()

    def slow_down() -> None:
        while not over.wait(share * PERIOD_SECONDS):
            every("suspend")
            over.wait((1 - share) * PERIOD_SECONDS)
            every("resume")

    slowing = threading.Thread(target=slow_down, daemon=True)
    slowing.start()
    try:
        yield
    finally:
        over.set()
        slowing.join()
        every("resume")
