"""The one crossing between the asyncio loop and the torch thread.

Nothing blocks the loop and nothing else touches the model. Cancelling `run` abandons its result, not the
call: the torch thread finishes what it is doing, then takes the next call.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class TorchThread:
    """A single thread; calls run one at a time, in the order they were made."""

    def __init__(self, threads: int, niceness: int = 0) -> None:
        """`threads`: cores that one torch operation may use. With `niceness` it gives way to everything else on this
        machine, while the loop, which others wait for, does not."""
        self._executor = ThreadPoolExecutor(
            1, thread_name_prefix="torch", initializer=_set_up, initargs=(threads, niceness)
        )

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call `function` on the torch thread and wait for its result."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, lambda: function(*args, **kwargs))

    def stop(self) -> None:
        """Drop the calls that have not begun."""
        self._executor.shutdown(wait=False, cancel_futures=True)


def _set_up(threads: int, niceness: int) -> None:
    import torch

    from peer.compute.capacity import give_large_blocks_back, lower_priority

    lower_priority(niceness)  # before OpenMP's threads begin, which inherit it
    give_large_blocks_back()
    torch.set_num_threads(threads)  # OpenMP counts threads for each calling thread apart
