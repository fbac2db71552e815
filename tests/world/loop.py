"""An event loop whose clock jumps to the next timer, and which knows of every callback whose machine it runs on.

Nothing waits for real: where no callback is ready, the time of the next timer is now. Every task and timer carries the
context of the process that made it (`HOST`); the callbacks of a process that is stopped are held back until it goes on,
those of a dead one are never run. Work for other threads is done in place, in the order in which it was given, and
takes as much virtual time as it says (`VirtualLoop.spend`).
"""

import asyncio
import gc
import heapq
import sys
import warnings
from asyncio import events
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass, field
from typing import Any, Protocol

THREAD_SECONDS = 0.0002
"""How long work on another thread takes that says nothing of its time."""


class Process(Protocol):
    """A process of the simulated world, as its loop sees it."""

    held: list[events.Handle] | None
    """The callbacks that wait for the process to go on; None: it runs."""
    dead: bool


HOST: ContextVar[Any] = ContextVar("host", default=None)
"""The simulated process in which code runs."""


class StuckError(Exception):
    """Nobody in the world waits for anything that will ever happen."""


class Task(asyncio.Task):  # type: ignore[type-arg]
    """A task with a number: sets of tasks have the same order in every run of a schedule."""

    made = 0

    def __init__(self, *arguments: Any, **named: Any) -> None:
        Task.made += 1
        self.number = Task.made
        context = named.get("context")
        self.host = HOST.get() if context is None else context.get(HOST)
        super().__init__(*arguments, **named)

    def __hash__(self) -> int:
        return self.number

    def __eq__(self, other: object) -> bool:
        return self is other


@dataclass(slots=True)
class Thread:
    """Another thread: the work that was given to it, in order."""

    waiting: deque[tuple[Any, Callable[..., Any], tuple[Any, ...], Context]] = field(default_factory=deque)
    busy: bool = False
    executor: Any = None


def _is_single(executor: Any) -> bool:
    """Whether work given to an executor is done one piece after the other."""
    return isinstance(executor, ThreadPoolExecutor) and executor._max_workers == 1


class VirtualLoop(asyncio.BaseEventLoop):
    """The loop. `now` is the virtual time, in seconds since it was made."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.spent = 0.0
        """What the work that is being done on another thread has said that it takes."""
        self.threads: dict[Executor, Thread] = {}
        self.turns = 0
        self.cost: Callable[[Any, Any], float] = lambda executor, host: 0.0
        """What work on an executor's thread takes in a process, beside what it says itself."""
        self.tasks: dict[Any, list[Task]] = {}
        """The tasks of each process, for its death."""
        self.set_task_factory(self._make_task)

    def time(self) -> float:
        """The virtual time."""
        return self.now

    def spend(self, seconds: float) -> None:
        """Say that the work on another thread which calls this takes so long."""
        self.spent += seconds

    def _make_task(self, loop: asyncio.AbstractEventLoop, work: Any, **named: Any) -> Task:
        task = Task(work, loop=loop, **named)
        of = self.tasks.setdefault(task.host, [])
        of.append(task)
        if len(of) % 256 == 0:
            self.tasks[task.host] = [each for each in of if not each.done()]
        return task

    def _run_once(self) -> None:
        """Run what is ready; where nothing is, go on to the next timer.

        Raises:
            StuckError: there is none.
        """
        ready, scheduled = self._ready, self._scheduled  # type: ignore[attr-defined]
        while scheduled and scheduled[0]._cancelled:
            heapq.heappop(scheduled)._scheduled = False
        if not ready and not self._stopping:  # type: ignore[attr-defined]
            if not scheduled:
                raise StuckError
            self.now = max(self.now, scheduled[0]._when)
        while scheduled and scheduled[0]._when <= self.now:
            handle = heapq.heappop(scheduled)
            handle._scheduled = False
            if not handle._cancelled:
                ready.append(handle)
        for _ in range(len(ready)):
            handle = ready.popleft()
            if handle._cancelled:
                continue
            host = handle._context.get(HOST)
            if host is not None and (host.dead or host.held is not None):
                if not host.dead:
                    host.held.append(handle)
                continue
            self.turns += 1
            handle._run()

    def go_on(self, host: Process) -> None:
        """Let a process that was stopped go on: what it was to do meanwhile, it does now."""
        held, host.held = host.held or [], None
        self._ready.extend(held)  # type: ignore[attr-defined]

    def _timer_handle_cancelled(self, handle: Any) -> None:
        """Cancelled timers are dropped when their time comes."""

    def _process_events(self, event_list: Any) -> None:
        """There are no files and sockets."""

    def _write_to_self(self) -> None:
        """There are no other threads."""

    def call_soon_threadsafe(self, callback: Callable[..., Any], *arguments: Any, context: Any = None) -> Any:
        return self.call_soon(callback, *arguments, context=context)

    def run_in_executor(self, executor: Any, function: Callable[..., Any], *arguments: Any) -> Any:
        """Do the work when it would begin on its thread; its result comes when it would have ended. Who is cancelled
        meanwhile gets no result: the work is done all the same."""
        result = self.create_future()
        thread = self.threads.setdefault(executor, Thread()) if _is_single(executor) else Thread()
        thread.executor = executor
        thread.waiting.append((result, function, arguments, copy_context()))
        if not thread.busy:
            thread.busy = True
            self._begin(thread)
        return result

    def _begin(self, thread: "Thread") -> None:
        """Do the next piece of work of a thread now, and tell of it when its time is over."""
        result, function, arguments, context = thread.waiting.popleft()
        self.call_soon(self._work, thread, result, function, arguments, context=context)

    def _work(self, thread: "Thread", result: Any, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        before, self.spent = self.spent, 0.0
        try:
            value, error = function(*arguments), None
        except BaseException as raised:  # as a thread would hand it over
            value, error = None, raised
        took, self.spent = max(self.spent + self.cost(thread.executor, HOST.get()), THREAD_SECONDS), before
        self.call_later(took, self._finish, thread, result, value, error)

    def _finish(self, thread: "Thread", result: Any, value: Any, error: BaseException | None) -> None:
        thread.busy = bool(thread.waiting)
        if thread.busy:
            self._begin(thread)
        if result.done():
            return
        if error is not None:
            result.set_exception(error)
        else:
            result.set_result(value)

    def forget(self) -> None:
        """End all tasks here and now, not in the middle of another world, and let nothing happen any more. What they do
        to clean up happens to nobody."""
        hook, sys.unraisablehook = sys.unraisablehook, lambda unraisable: None
        try:
            for task in [task for tasks in self.tasks.values() for task in tasks if not task.done()]:
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                _close(task.get_coro())
            self.tasks.clear()
            self.threads.clear()
            self._ready.clear()  # type: ignore[attr-defined]
            self._scheduled.clear()  # type: ignore[attr-defined]
            gc.collect()
        finally:
            sys.unraisablehook = hook

    def __del__(self) -> None:
        """Nothing is to be closed."""

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """There is none."""


def _close(coroutine: Any) -> None:
    """End a coroutine where it stands, though it waits for something in cleaning up."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # what it begins in cleaning up is awaited by nobody
        for _ in range(100):
            try:
                coroutine.close()
                return
            except BaseException:  # "ignored GeneratorExit", or whatever its cleaning up has raised
                continue


def in_host(host: Any, context: Context | None = None) -> Context:
    """A context of its own for code that runs in a process."""
    context = context or Context()
    context.run(HOST.set, host)
    return context
