"""Processes that take orders from the one who measures: a line of JSON on standard input, and one back for each."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

END_SECONDS = 10.0


def say(words: Any) -> None:
    """Answer."""
    print(json.dumps(words), flush=True)


async def hear() -> Any:
    """The next order; None at the end."""
    line = await asyncio.to_thread(sys.stdin.readline)
    return json.loads(line) if line else None


@dataclass(frozen=True, slots=True)
class Processes:
    """All of them, in order."""

    children: list[subprocess.Popen[str]]

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
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    children = [subprocess.Popen(command, **pipes, text=True, start_new_session=True) for command in commands]
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
