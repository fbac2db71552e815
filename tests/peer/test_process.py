"""One event loop, one way to stop, one line for an error."""

import asyncio
import os
import signal

import pytest

from peer.process import INTERRUPTED, LINE_BYTES, Terminal, first_error, heard, run_command, told
from peer.telemetry.events import Event, Failed, Finished, StepDone, to_line
from protocol.errors import LostMemberError, UserError


def terminal() -> tuple[Terminal, list[Event]]:
    said: list[Event] = []
    return Terminal(said.append), said


def test_work_that_ends_well_is_exit_code_zero():
    heard, said = terminal()

    async def serve(stop: asyncio.Event) -> None:
        return None

    assert run_command(serve, heard) == 0
    assert said == []


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, INTERRUPTED), (signal.SIGTERM, 0)])
def test_a_signal_asks_the_work_to_stop(number: signal.Signals, code: int):
    async def serve(stop: asyncio.Event) -> None:
        os.kill(os.getpid(), number)
        await stop.wait()

    assert run_command(serve, terminal()[0]) == code


def test_an_error_inside_task_groups_becomes_one_event_and_its_exit_code():
    heard, said = terminal()

    async def fail() -> None:
        raise LostMemberError("stage 1 is gone")

    async def serve(stop: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as outer:
            outer.create_task(asyncio.Event().wait())
            async with asyncio.TaskGroup() as inner:
                inner.create_task(fail())

    assert run_command(serve, heard) == 8
    assert said == [Failed("stage 1 is gone", 8)]


def test_what_breaks_while_stopping_is_no_error():
    heard, said = terminal()

    async def serve(stop: asyncio.Event) -> None:
        stop.set()
        raise LostMemberError("stage 1 is gone")

    assert run_command(serve, heard) == 0
    assert said == []


def test_a_bug_is_not_dressed_up_as_a_users_error():
    async def serve(stop: asyncio.Event) -> None:
        raise RuntimeError("a bug")

    with pytest.raises(RuntimeError):
        run_command(serve, terminal()[0])
    with pytest.raises(ExceptionGroup):
        first_error(ExceptionGroup("group", [RuntimeError("a bug")]))


def test_an_error_before_the_loop_is_told_too():
    heard, said = terminal()

    def command() -> int:
        raise UserError("no such thing")

    assert told(heard.emit, command) == 2
    assert said == [Failed("no such thing", 2)]


def test_a_child_is_heard_to_its_end_and_what_is_no_event_is_passed_over():
    async def scene() -> list[Event]:
        stdout = asyncio.StreamReader(limit=LINE_BYTES)
        for said in ("hello", "x" * (2 * LINE_BYTES), to_line(Failed("it broke", 4)), '{"event": "Unknown"}'):
            stdout.feed_data(said.encode() + b"\n")
        stdout.feed_data(to_line(Finished(2)).encode())
        stdout.feed_eof()
        return [event async for event in heard(stdout)]

    assert asyncio.run(scene()) == [Failed("it broke", 4), Finished(2)]


def test_a_terminals_status_hears_an_event_before_its_listener():
    rounds: list[int] = []
    terminal = Terminal(lambda event: rounds.append(terminal.emit.status.round))
    terminal.emit(StepDone(3, 0, None, 1))
    assert rounds == [3]
