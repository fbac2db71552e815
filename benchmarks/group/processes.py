"""Processes that take orders from the one who measures: a line of JSON on standard input, and one back for each.

Where the one who measures is a fork itself, as in the test suite, they are forks, too (`tests/reference/forks.py`): one
that has to import torch takes three seconds of CPU time until it can do anything."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

sys.path.append(str(Path(__file__).parents[2]))

from tests.reference.forked import Fork, Forked
from tests.reference.forks import can_fork, is_fork

ROOT = Path(__file__).parents[2]

Started = subprocess.Popen[str] | Forked

END_SECONDS = 10.0


def say(words: Any) -> None:
    """Answer."""
    print(json.dumps(words), flush=True)


async def hear() -> Any:
    """The next order; None at the end."""
    line = await asyncio.to_thread(sys.stdin.readline)
    return json.loads(line) if line else None


def begin(
    command: Sequence[str], errors: IO[str] | None = None, environment: Mapping[str, str] = os.environ
) -> Started:
    """Start a process with pipes to its standard input and output, in a session of its own, in the repository's
    folder; its standard error goes to a file, or where this process's goes."""
    if is_fork() and can_fork(command):
        said = 2 if errors is None else errors.fileno()
        return Forked(command, program=(), errors=said, environment=environment, folder=ROOT, own_session=True)
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": errors}
    return subprocess.Popen(command, **pipes, env=environment, cwd=ROOT, text=True, start_new_session=True)


def begin_aside(command: Sequence[str], said: IO[str]) -> subprocess.Popen[bytes] | Fork:
    """Start a process in the repository's folder that hears nothing, and whose words go to a file."""
    if is_fork() and can_fork(command):
        with open(os.devnull) as nothing:
            return Fork(command, (nothing.fileno(), said.fileno(), said.fileno()), folder=ROOT)
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=said, stderr=said, cwd=ROOT)


@dataclass(frozen=True, slots=True)
class Processes:
    """All of them, in order."""

    children: list[Started]

    def tell(self, words: Any) -> list[Any]:
        """The same order to all; what each answers."""
        self.order([words] * len(self.children))
        return self.answers()

    def order(self, words: Sequence[Any]) -> None:
        """To each its own."""
        for each, said in zip(self.children, words, strict=True):
            assert each.stdin is not None
            print(json.dumps(said), file=each.stdin, flush=True)

    def introduce(self) -> None:
        """Tell each who all are, and wait until each expects its neighbours, and then until all are connected."""
        self.tell(self.answers())
        self.tell("meet")

    def answers(self) -> list[Any]:
        """A line of each."""
        lines = []
        for each in self.children:
            assert each.stdout is not None
            line = each.stdout.readline()
            if not line:
                raise RuntimeError(f"process {each.pid} ended with {each.wait()}")
            lines.append(json.loads(line))
        return lines


@contextlib.contextmanager
def started(commands: Sequence[Sequence[str]]) -> Iterator[Processes]:
    """A process for each command, for as long as the block lasts. Those that it has started itself end with it: they
    hold its output, for whose end a caller waits."""
    children = [begin(command) for command in commands]
    try:
        yield Processes(children)
    finally:
        for each in children:
            assert each.stdin is not None
            each.stdin.close()
        for each in children:
            try:
                each.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                each.kill()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(each.pid, signal.SIGKILL)
            assert each.stdout is not None
            each.stdout.close()
