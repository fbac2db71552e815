"""One event loop, one way to stop, one line for an error."""

import asyncio
import fcntl
import os
import resource
import signal
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from peer.process import (
    INTERRUPTED,
    LINE_BYTES,
    Terminal,
    exit_code_of,
    first_error,
    read_events,
    run_command,
    run_query,
)
from protocol.errors import LostMemberError, UserError
from protocol.events.activity import Failed, Finished, StepDone
from protocol.events.event import Event
from protocol.events.lines import to_line

ROOT = Path(__file__).parents[2]


def terminal() -> tuple[Terminal, list[Event]]:
    said: list[Event] = []
    return Terminal(said.append), said


def test_work_that_ends_well_is_exit_code_zero():
    shown, said = terminal()

    async def serve(stop: asyncio.Event) -> None:
        return None

    assert run_command(serve, shown) == 0
    assert said == []


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, INTERRUPTED), (signal.SIGTERM, 0), (signal.SIGHUP, 0)])
def test_a_signal_asks_the_work_to_stop(number: signal.Signals, code: int):
    async def serve(stop: asyncio.Event) -> None:
        os.kill(os.getpid(), number)
        await stop.wait()

    assert run_command(serve, terminal()[0]) == code


def test_under_nohup_a_closed_terminal_stops_nothing():
    async def serve(stop: asyncio.Event) -> None:
        os.kill(os.getpid(), signal.SIGHUP)
        os.kill(os.getpid(), signal.SIGTERM)
        await stop.wait()

    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        shown, _ = terminal()
        assert exit_code_of(shown.emit, lambda: run_command(serve, shown)) == 0
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


ON_A_TERMINAL = """
import asyncio, pathlib, sys
from peer.process import Terminal, run_command

async def serve(stop):
    print("up", flush=True)
    await stop.wait()
    print("leaving", flush=True)
    pathlib.Path(sys.argv[1]).write_text("said goodbye")

sys.exit(run_command(serve, Terminal(print)))
"""


def test_who_closes_the_terminal_stops_the_command_in_order(tmp_path: Path):
    master, slave = os.openpty()
    command = [sys.executable, "-c", ON_A_TERMINAL, str(tmp_path / "file")]
    how = {"stdin": slave, "stdout": slave, "stderr": slave, "start_new_session": True, "cwd": ROOT}
    child = subprocess.Popen(command, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0), **how)
    os.close(slave)
    with open(master, "rb", buffering=0) as lines:
        assert b"".join(iter(lambda: lines.read(1), b"\n")) == b"up\r"
    assert child.wait(60) == 0
    assert (tmp_path / "file").read_text() == "said goodbye"


def test_as_many_files_may_be_open_as_the_system_lets_a_process_have():
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1] - 1, before[1]))
    try:

        async def serve(stop: asyncio.Event) -> None:
            assert resource.getrlimit(resource.RLIMIT_NOFILE) == (before[1], before[1])

        assert run_command(serve, terminal()[0]) == 0
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_an_error_inside_task_groups_becomes_one_event_and_its_exit_code():
    shown, said = terminal()

    async def fail() -> None:
        raise LostMemberError("stage 1 is gone")

    async def serve(stop: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as outer:
            outer.create_task(asyncio.Event().wait())
            async with asyncio.TaskGroup() as inner:
                inner.create_task(fail())

    assert run_command(serve, shown) == 8
    assert said == [Failed("stage 1 is gone", 8)]


def test_what_breaks_while_stopping_is_no_error():
    shown, said = terminal()

    async def serve(stop: asyncio.Event) -> None:
        stop.set()
        raise LostMemberError("stage 1 is gone")

    assert run_command(serve, shown) == 0
    assert said == []


def test_a_bug_is_not_dressed_up_as_a_users_error():
    async def serve(stop: asyncio.Event) -> None:
        raise RuntimeError("a bug")

    with pytest.raises(RuntimeError):
        run_command(serve, terminal()[0])
    with pytest.raises(ExceptionGroup):
        first_error(ExceptionGroup("group", [RuntimeError("a bug")]))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_query_that_is_stopped_has_no_result(number: signal.Signals):
    async def ask() -> str:
        os.kill(os.getpid(), number)
        await asyncio.Event().wait()
        return "an answer"

    shown, said = terminal()
    assert exit_code_of(shown.emit, lambda: len(run_query(ask, shown))) == INTERRUPTED
    assert said == []


def test_a_query_has_its_answer_or_its_error():
    async def ask() -> str:
        return "an answer"

    async def fail() -> str:
        raise UserError("no such thing")

    shown, said = terminal()
    assert run_query(ask, shown) == "an answer"
    assert exit_code_of(shown.emit, lambda: len(run_query(fail, shown))) == 2
    assert said == [Failed("no such thing", 2)]


def test_an_error_before_the_loop_is_told_too():
    shown, said = terminal()

    def command() -> int:
        raise UserError("no such thing")

    assert exit_code_of(shown.emit, command) == 2
    assert said == [Failed("no such thing", 2)]


def test_a_child_is_heard_to_its_end_and_what_is_no_event_is_passed_over():
    async def scene() -> list[Event]:
        stdout = asyncio.StreamReader(limit=LINE_BYTES)
        for said in ("hello", "x" * (2 * LINE_BYTES), to_line(Failed("it broke", 4)), '{"event": "Unknown"}'):
            stdout.feed_data(said.encode() + b"\n")
        stdout.feed_data(to_line(Finished(2)).encode())
        stdout.feed_eof()
        return [event async for event in read_events(stdout)]

    assert asyncio.run(scene()) == [Failed("it broke", 4), Finished(2)]


def test_a_terminals_status_hears_an_event_before_its_listener():
    rounds: list[int] = []
    terminal = Terminal(lambda event: rounds.append(terminal.emit.status.round))
    terminal.emit(StepDone(3, 0, None, 1))
    assert rounds == [3]
