"""The frame around every command that serves: one event loop, one way to stop, one line for an error."""

import asyncio
import contextlib
import gc
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from dataclasses import InitVar, dataclass, field
from typing import Any, TypeVar

from peer.telemetry.status import EventStream, Status
from protocol.descriptors import raise_limit
from protocol.errors import HetpeerError
from protocol.events.activity import Failed
from protocol.events.event import Event, Listener
from protocol.events.lines import from_line, to_line
from protocol.net.tasks import first_of

STOPPED_BY = (signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else []))
"""The signals that stop a command in order. A terminal that is closed sends SIGHUP."""

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells expect."""

LINE_BYTES = 2**20
"""The longest line a child prints is an event with a few digests. What is longer is passed over."""


@dataclass(slots=True)
class Terminal:
    """The events of a command: `emit` folds each into the process's status and tells it to the first listener, and to
    whoever is added. `json`: that is a program. `until_stdin_closes`: the end of standard input stops the command."""

    listener: InitVar[Listener]
    json: bool = False
    until_stdin_closes: bool = False
    status: InitVar[Status | None] = None
    emit: EventStream = field(init=False)

    def __post_init__(self, listener: Listener, status: Status | None) -> None:
        self.emit = EventStream([listener], status or Status())


Serve = Callable[[asyncio.Event], Awaitable[object]]
Result = TypeVar("Result")


def print_json(event: Event) -> None:
    """The `--json` listener: one event a line on standard output."""
    print(to_line(event), flush=True)


async def read_events(stdout: asyncio.StreamReader) -> AsyncIterator[Event]:
    """The events of a child that prints JSON, until its end. `stdout` has the limit `LINE_BYTES`."""
    while True:
        try:
            line = await stdout.readline()
        except ValueError:  # longer than that; the reader has dropped what it had of it
            continue
        if not line:
            return
        with contextlib.suppress(ValueError):
            yield from_line(line.decode())


def exit_code_of(emit: Listener, command: Callable[[], int]) -> int:
    """Run a command; an error of ours becomes one line and an exit code. SIGTERM and SIGHUP stop it as Ctrl-C
    does; SIGHUP does not where the command was started with `nohup`."""
    gc.freeze()  # what is imported stays: never look at it again
    gc.enable()
    before = {number: signal.signal(number, signal.default_int_handler) for number in heeded()}
    try:
        return command()
    except HetpeerError as error:
        return _fail(error, emit)
    except KeyboardInterrupt:
        return INTERRUPTED
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def heeded() -> list[signal.Signals]:
    """The signals that stop this process: SIGHUP is ignored where it was when the process began, as under `nohup`."""
    ignored = hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [number for number in STOPPED_BY if not (ignored and number == signal.SIGHUP)]


def _write_nowhere(terminals: list[int]) -> None:
    """Have what is written to these descriptors from now on go nowhere: their terminal has been closed, and writing to
    it is an error."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in terminals:
        os.dup2(nowhere, descriptor)
    os.close(nowhere)


def run_command(serve: Serve, terminal: Terminal) -> int:
    """Run `serve(stop)` in uvloop until it ends; the process's exit code.

    `stop` is set by Ctrl-C, SIGTERM, SIGHUP, and, for children of the testnet, by the end of standard input.
    """
    try:
        stopped = _run_in_loop(serve, terminal)
    except KeyboardInterrupt:
        return INTERRUPTED
    except HetpeerError as error:
        return _fail(error, terminal.emit)
    return INTERRUPTED if stopped == signal.SIGINT else 0


def run_query(ask: Callable[[], Coroutine[Any, Any, Result]], terminal: Terminal) -> Result:
    """Run `ask` in uvloop, and return its result. It is cancelled by what stops any command.

    Raises:
        HetpeerError: it failed.
        KeyboardInterrupt: it was stopped before its end.
    """
    results = list[Result]()

    async def keep() -> None:
        results.append(await ask())

    _run_in_loop(lambda stop: first_of(keep(), stop.wait()), terminal)
    if not results:
        raise KeyboardInterrupt
    return results[0]


def _run_in_loop(serve: Serve, terminal: Terminal) -> int | None:
    """Run `serve` in uvloop; returns the signal that stopped it, if one did.

    Raises:
        HetpeerError: it failed.
    """
    raise_limit()
    new_loop = None
    if sys.platform != "win32":
        import uvloop

        new_loop = uvloop.new_event_loop
    try:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            return runner.run(_serve(serve, terminal.until_stdin_closes))
    except BaseExceptionGroup as group:
        raise first_error(group) from None


def first_error(group: BaseExceptionGroup[BaseException]) -> HetpeerError:
    """The error to tell the user: task groups wrap what went wrong. Anything not ours is a bug, and raised."""
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            with contextlib.suppress(BaseExceptionGroup):
                return first_error(error)
        if isinstance(error, HetpeerError):
            return error
    raise group


def _fail(error: HetpeerError, emit: Listener) -> int:
    emit(Failed(str(error), error.exit_code))
    return error.exit_code


class StopSignal(asyncio.Event):
    """The wish of a command's owner that it ends: set by the first Ctrl-C or SIGTERM; `insisted` by a second one."""

    def __init__(self) -> None:
        super().__init__()
        self.insisted = asyncio.Event()


async def _serve(serve: Serve, until_stdin_closes: bool) -> int | None:
    """Returns the signal that stopped it, if one did."""
    stop = StopSignal()
    received: list[int] = []
    loop = asyncio.get_running_loop()
    terminals = [stream.fileno() for stream in (sys.stdout, sys.stderr) if stream.isatty()]

    def receive(number: int) -> None:
        if number not in (signal.SIGINT, signal.SIGTERM):
            _write_nowhere(terminals)
        received.append(number)
        if stop.is_set():
            stop.insisted.set()
        stop.set()

    for number in heeded():
        loop.add_signal_handler(number, receive, number)
    if until_stdin_closes:

        class UntilClosed(asyncio.Protocol):
            def connection_lost(self, exc: Exception | None) -> None:
                stop.set()

        await loop.connect_read_pipe(UntilClosed, sys.stdin)
    try:
        await serve(stop)
    except (HetpeerError, BaseExceptionGroup):
        if not stop.is_set():  # our children may have heard it, too: what their end breaks is no error then
            raise
    return received[0] if received else None
