"""The one crossing between the asyncio loop and the torch thread.

Nothing blocks the loop and nothing else touches the model. Cancelling `run` abandons its result, not the
call: the torch thread finishes what it is doing, then takes the next call.
"""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

from protocol.clock import monotonic

MOST_REST_SECONDS = 20.0
"""The longest rest after one call, in seconds."""

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(slots=True)
class Throttle:
    """The share of the time that a thread computes: between calls it rests for as long as that asks. `synchronize`
    waits until a device has done what it was ordered to do."""

    duty: float = 1.0
    synchronize: Callable[[], object] = bool

    def seconds_of_rest(self, busy: float) -> float:
        """Return how long to rest after so many seconds of computing; a rest is bounded, as others wait for it."""
        return min(MOST_REST_SECONDS, busy * (1 / self.duty - 1))


class TorchThread:
    """A single thread; calls run one at a time, in the order they were made."""

    def __init__(self, threads: int, niceness: int = 0, throttle: Throttle | None = None) -> None:
        """`threads`: cores that one torch operation may use. With `niceness` it gives way to everything else on this
        machine, while the loop, which others wait for, does not. `throttle` may have it rest between calls."""
        self.throttle = throttle or Throttle()
        self._rests_until = 0.0
        self._executor = ThreadPoolExecutor(
            1, thread_name_prefix="torch", initializer=_set_up, initargs=(threads, niceness)
        )

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call `function` on the torch thread and wait for its result."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, lambda: self._call(lambda: function(*args, **kwargs)))

    def _call(self, function: Callable[[], T]) -> T:
        """Call after the rest that the last call has earned, so that its result has not been kept waiting."""
        if self.throttle.duty == 1:
            return function()
        time.sleep(max(0.0, self._rests_until - monotonic()))
        started = monotonic()
        result = function()
        self.throttle.synchronize()
        ended = monotonic()
        self._rests_until = ended + self.throttle.seconds_of_rest(ended - started)
        return result

    def stop(self) -> None:
        """Drop the calls that have not begun."""
        self._executor.shutdown(wait=False, cancel_futures=True)


def _set_up(threads: int, niceness: int) -> None:
    import torch

    from peer.compute.capacity import give_large_blocks_back, lower_priority

    lower_priority(niceness)  # before OpenMP's threads begin, which inherit it
    give_large_blocks_back()
    torch.set_num_threads(threads)  # OpenMP counts threads for each calling thread apart
