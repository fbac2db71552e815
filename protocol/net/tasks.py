"""The task structures that asyncio lacks: children of an object, the first of several tasks, work apart, a notifier,
and turns.

A task has one of two parents: an `asyncio.TaskGroup`, where the failure of one is the failure of all, or `Children`,
where the parent goes on without a child that failed. `tests/test_borders.py` forbids any other.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Coroutine, Hashable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from protocol.limits import CHECK_SHARE

Result = TypeVar("Result")


class Children:
    """The background tasks of one object or block, which end with it.

    A child that fails ends alone. Its error goes to whoever awaits it; if nobody does, asyncio reports it when the
    child is forgotten, also at the parent's end.
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._ends = False

    def __len__(self) -> int:
        """The number of children that still run."""
        return len(self._tasks)

    def __iter__(self) -> Iterator[asyncio.Task[Any]]:
        """The children that run now; it may be changed meanwhile."""
        return iter([*self._tasks])

    def spawn(self, work: Coroutine[Any, Any, Result]) -> asyncio.Task[Result]:
        """Start `work` as a child. If the parent ends, or has ended, it is cancelled before it begins."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if self._ends:
            task.cancel()
        return task

    def cancel(self) -> None:
        """Cancel every child, without waiting for it."""
        for task in self:
            task.cancel()

    async def end(self) -> None:
        """Cancel every child and wait until all have ended, those included that they start meanwhile. None is started
        from now on."""
        self._ends = True
        while self._tasks:
            self.cancel()
            await asyncio.wait(self._tasks)

    async def __aenter__(self) -> "Children":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.end()


async def first_of(*works: Coroutine[Any, Any, object]) -> None:
    """Do all of these until the first has ended; then cancel the others and wait for their end.

    A task that is to go on takes part as `asyncio.wait((task,))`. Raises what the first has raised; if several end at
    once, what the first in the order of the arguments has.
    """
    async with Children() as children:
        tasks = [children.spawn(work) for work in works]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task.done():
                task.result()


async def wait_at_most(seconds: float | None, work: Coroutine[Any, Any, object]) -> None:
    """Wait for `work`, so many seconds at most: then it is cancelled. None: without a limit."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await work


async def first_success(
    attempts: Sequence[Callable[[], Coroutine[Any, Any, Result]]], stagger: float, failures: tuple[type[Exception], ...]
) -> Result:
    """Return the result of the first attempt that succeeds, as happy eyeballs do (RFC 8305): each begins once the one
    before has failed, or has taken `stagger` seconds. The others are cancelled.

    Raises:
        Exception: the first attempt's error of those in `failures`, once all have failed; any other error at once.
    """
    async with Children() as children:
        tasks = list[asyncio.Task[Result]]()
        for attempt in attempts:
            tasks.append(children.spawn(attempt()))
            running = [task for task in tasks if not task.done()]
            await asyncio.wait(running, timeout=stagger, return_when=asyncio.FIRST_COMPLETED)
            if (result := _succeeded(tasks, failures)) is not None:
                return result.result()
        while running := [task for task in tasks if not task.done()]:
            await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            if (result := _succeeded(tasks, failures)) is not None:
                return result.result()
        return tasks[0].result()


def _succeeded(
    tasks: Iterable[asyncio.Task[Result]], failures: tuple[type[Exception], ...]
) -> asyncio.Task[Result] | None:
    """The first of these tasks that has ended, and not in one of these failures; None: none has."""
    ended = (task for task in tasks if task.done())
    return next((task for task in ended if not isinstance(task.exception(), failures)), None)


async def apart(work: Coroutine[Any, Any, Result]) -> Result:
    """Do `work` in a task of its own, and wait for it. If the caller is cancelled meanwhile, so is the work, and the
    caller ends once it has ended, also where the work swallows that: `asyncio.wait_for` of Python 3.11 does if what it
    waits for ends at that moment, and hivemind uses it."""
    async with Children() as children:
        task = children.spawn(work)
        await asyncio.wait((task,))
        return task.result()


class Notifier:
    """Tells everybody who waits that something has changed, so that they look again."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def ring(self) -> None:
        """Wake everybody who waits."""
        self._event.set()
        self._event = asyncio.Event()

    async def wait(self, seconds: float | None = None) -> None:
        """Wait until the next ring, so many seconds at most. Whatever was looked at just before cannot be missed."""
        await wait_at_most(seconds, self._event.wait())

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until a condition holds, which is looked at after each ring."""
        while not holds():
            await self._event.wait()


@dataclass(slots=True)
class Turns:
    """Work that costs this peer's loop time by others' word: one piece at a time, of one source after the other, for at
    most `share` of the loop's time. So no source keeps the loop from its other work, and none keeps the others waiting.
    """

    share: float = CHECK_SHARE
    waiting: OrderedDict[Hashable, deque[asyncio.Future[None]]] = field(default_factory=OrderedDict)
    done: int = 0
    """The number of pieces of work that were done."""
    _free_at: float = 0.0
    _timer: asyncio.TimerHandle | None = None

    @asynccontextmanager
    async def of(self, source: Hashable) -> AsyncIterator[None]:
        """Wait for the turn of a source. Nothing may be awaited in the block."""
        loop = asyncio.get_running_loop()
        if self.waiting or loop.time() < self._free_at:
            turn: asyncio.Future[None] = loop.create_future()
            self.waiting.setdefault(source, deque()).append(turn)
            self._call_again()
            try:
                await turn
            except asyncio.CancelledError:
                self._call_again()  # the next one's, if it was this one's already
                raise
        started = loop.time()
        try:
            yield
        finally:
            self.done += 1
            now = loop.time()
            self._free_at = now + (now - started) * (1 / self.share - 1)
            self._call_again()

    def _call_again(self) -> None:
        if self.waiting and self._timer is None:
            self._timer = asyncio.get_running_loop().call_at(self._free_at, self._go_on)

    def _go_on(self) -> None:
        """Let the next piece of work begin, of the source that has waited longest for a turn."""
        self._timer = None
        while self.waiting:
            source, turns = self.waiting.popitem(last=False)
            turn = turns.popleft()
            if turns:
                self.waiting[source] = turns
            if not turn.done():  # who waited may have been cancelled
                turn.set_result(None)
                return
