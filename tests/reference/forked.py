"""Processes of `hetpeer` that begin with their modules imported (`tests/reference/forks.py`), and commands run so. A
replica takes 1.3 seconds of CPU time until it joins, where `python -m peer.cli replica` takes 5.3.
"""

import atexit
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from itertools import count
from pathlib import Path

from tests.reference.forks import ask, is_fork, open_parent, parent

SECONDS = 480
"""For whatever a test waits for: ample on a busy machine."""

PARENTS = 2
"""Processes that hash differently find what depends on the order of a set: every other fork is of another parent."""

HETPEER = [sys.executable, "-m", "peer.cli"]
EXPERIMENTS = [sys.executable, "-m", "examples.experiments"]

_numbers = count()


class Fork:
    """A process with these descriptors as its standard input, output and error, as far as the tests use a
    `subprocess.Popen`."""

    def __init__(
        self,
        command: Sequence[str],
        streams: Sequence[int],
        environment: Mapping[str, str] = os.environ,
        folder: Path | None = None,
        own_session: bool = False,
    ) -> None:
        self.command = command
        self._news = ask(_parent_to_ask(), command, streams, dict(environment), folder, own_session)
        self.returncode: int | None = None
        self.pid = int(self._news.recv(64))

    def poll(self) -> int | None:
        """The exit code, below zero for a signal; None: it runs."""
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end; the exit code."""
        if self.returncode is None:
            if not select.select([self._news], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired([*self.command], timeout or 0.0)
            self.returncode = int(self._news.recv(64))
            self._news.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)


class Forked(Fork):
    """A process in text mode. Its standard error is that of the test, or goes to the descriptor `errors`, or joins its
    standard output."""

    def __init__(
        self,
        arguments: Sequence[str],
        inside: Sequence[str] = (),
        errors_join_output: bool = False,
        program: Sequence[str] = HETPEER,
        errors: int = 2,
        environment: Mapping[str, str] = os.environ,
        folder: Path | None = None,
        own_session: bool = False,
    ) -> None:
        stdin, ours = os.pipe()
        theirs, stdout = os.pipe()
        streams = stdin, stdout, stdout if errors_join_output else errors
        super().__init__([*inside, *program, *arguments], streams, environment, folder, own_session)
        for each in (stdin, stdout):
            os.close(each)
        self.stdin, self.stdout = os.fdopen(ours, "w"), os.fdopen(theirs)

    def communicate(self, timeout: float | None = None) -> tuple[str, None]:
        """Close the standard input, and wait for the end; what is left of the standard output."""
        with suppress(BrokenPipeError):
            self.stdin.close()
        said = "" if self.stdout.closed else self.stdout.read()
        self.stdout.close()
        self.wait(timeout)
        return said, None

    def __enter__(self) -> "Forked":
        return self

    def __exit__(self, *_: object) -> None:
        self.stdout.close()
        with suppress(BrokenPipeError):
            self.stdin.close()
        self.wait()


def hetpeer(
    *arguments: str, folder: Path | None = None, timeout: float = SECONDS, program: Sequence[str] = HETPEER
) -> subprocess.CompletedProcess[str]:
    """Run a command of hetpeer, or of another `program`, that needs no input to its end."""
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors, open(os.devnull) as nothing:
        streams = [each.fileno() for each in (nothing, output, errors)]
        process = Fork([*program, *arguments], streams, folder=folder)
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        output.seek(0)
        errors.seek(0)
        return subprocess.CompletedProcess([*program, *arguments], code, output.read(), errors.read())


def run(
    module: str, *arguments: str, folder: Path | None = None, timeout: float = SECONDS
) -> subprocess.CompletedProcess[str]:
    """Run `python -m module` that needs no input to its end."""
    return hetpeer(*arguments, folder=folder, timeout=timeout, program=(sys.executable, "-m", module))


def _parent_to_ask() -> socket.socket:
    """The connection to the parent of the next fork: of a fork its own."""
    return parent() if is_fork() else _parent(next(_numbers) % PARENTS)


@cache
def _parent(number: int) -> socket.socket:
    """The connection to a parent of forks, which ends with this process."""
    ours, process = open_parent()

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours
