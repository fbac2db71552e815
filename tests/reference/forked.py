"""Processes of `hetpeer` that begin with their modules imported: forks of a process that has imported them and does
nothing else. A replica takes 1.4 seconds of CPU time until it joins, where `python -m peer.cli replica` takes 4.0.

From a request on, such a process is as any other: of its own id, memory, files, environment and signals. Its command
line in `ps` is its parent's, and it hashes as the other forks of its parent do: there are two parents, of which each
has every other fork.
"""

import atexit
import gc
import json
import os
import random
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from itertools import count

REQUEST_BYTES = 2**17
"""More than arguments and an environment take; less than a socket's buffer."""

PARENTS = 2
"""Processes that hash differently find what depends on the order of a set."""

_numbers = count()


class Forked:
    """A process, as far as the tests use a `subprocess.Popen` in text mode. Its standard error is that of the test."""

    def __init__(self, arguments: Sequence[str]) -> None:
        stdin, ours = os.pipe()
        theirs, stdout = os.pipe()
        self._news, news = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        request = {"arguments": [*arguments], "environment": dict(os.environ), "folder": os.getcwd()}
        parent = _parent(next(_numbers) % PARENTS)
        socket.send_fds(parent, [json.dumps(request).encode()], [stdin, stdout, 2, news.fileno()])
        for each in (stdin, stdout):
            os.close(each)
        news.close()
        self.stdin, self.stdout = os.fdopen(ours, "w"), os.fdopen(theirs)
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
                raise subprocess.TimeoutExpired("hetpeer", timeout or 0.0)
            self.returncode = int(self._news.recv(64))
            self._news.close()
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, None]:
        """Close the standard input, and wait for the end; what is left of the standard output."""
        with suppress(BrokenPipeError):
            self.stdin.close()
        said = "" if self.stdout.closed else self.stdout.read()
        self.stdout.close()
        self.wait(timeout)
        return said, None

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> "Forked":
        return self

    def __exit__(self, *_: object) -> None:
        self.stdout.close()
        with suppress(BrokenPipeError):
            self.stdin.close()
        self.wait()


@cache
def _parent(number: int) -> socket.socket:
    """The connection to a parent of forks, which ends with this process."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, "-m", "tests.reference.forked", str(theirs.fileno())]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()])
    theirs.close()

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


def main(requests: socket.socket) -> None:
    """Import, and then fork for each request; a fork returns from here with the request's arguments."""
    gc.disable()
    import peer.cli.__main__

    for each in ("peer.daemon", "bootstrap.node", "uvloop"):
        __import__(each)
    gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # keepers are not waited for
    while True:
        request, files, *_ = socket.recv_fds(requests, REQUEST_BYTES, 4)
        if not request:
            return
        if os.fork() == 0:
            requests.close()
            break
        for each in files:
            os.close(each)
    asked = json.loads(request)
    if not _kept(files):
        os._exit(0)
    random.seed()
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    sys.argv[1:] = asked["arguments"]
    peer.cli.__main__.main()


def _kept(files: list[int]) -> bool:
    """Fork once more: whether this is the process that was asked for. The other tells of its id and its end."""
    *streams, news = files
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    process = os.fork()
    if process == 0:
        os.close(news)
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        return True
    for stream in (*streams, 0, 1, 2):
        os.close(stream)
    with suppress(BrokenPipeError):
        os.write(news, str(process).encode())
        os.write(news, str(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])).encode())
    return False


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
