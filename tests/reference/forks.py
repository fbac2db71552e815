"""Processes of `python -m …` and `python ….py` that begin with their modules imported: forks of a process that has
imported them and does nothing else. A replica takes 1.3 seconds of CPU time until it has joined, where one that has to
import torch, hivemind and numba takes 5.3.

From then on a fork is as any other process: of its own id, memory, files, environment, signals and line in `ps`. It
hashes as its parent does. A fork that wants to begin others asks the parent that began it.
"""

import asyncio
import ctypes
import gc
import importlib
import json
import os
import random
import re
import resource
import runpy
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import IO, BinaryIO

from peer.process import LINE_BYTES
from peer.testnet import child
from protocol.errors import LostMemberError

ROOT = Path(__file__).parents[2]

COMMAND = "peer.cli.__main__"
"""Forks run it as their main module; its imports alone are of use to them."""

FIRST_BACKWARD = "torch.fx.experimental.symbolic_shapes"
"""The module that torch's first backward pass imports, and with it sympy: half a second of CPU time."""

PRELOADED = (COMMAND, "peer.daemon", "bootstrap.node", "peer.lab.reference_run", "uvloop", FIRST_BACKWARD)

REQUEST_BYTES = 2**17
"""More than a command line and an environment take; less than a socket's buffer."""

CLONE_NEWNET = 0x40000000

_own_parent: list[socket.socket] = []
"""In a fork: its connection to the parent that began it."""


NSENTER = ("nsenter", "--net=")
"""What goes before a command that is to run in another network namespace."""

FEW_FILES = re.compile(r'ulimit -n (\d+); exec "\$@"')


def with_files(number: int) -> tuple[str, ...]:
    """What goes before a command that may have so many open files."""
    return "sh", "-c", f'ulimit -n {number}; exec "$@"', "sh"


def can_fork(command: Sequence[str]) -> bool:
    """Whether a command is one that a fork can be: `python -m …` or `python ….py`, also in another network namespace or
    with fewer open files, where forks of what has been imported are safe."""
    program, script = (*split(command)[2], "", "")[:2]
    return sys.platform == "linux" and program == sys.executable and (script == "-m" or script.endswith(".py"))


def is_fork() -> bool:
    """Whether this process is a fork."""
    return bool(_own_parent)


def split(command: Sequence[str]) -> tuple[str, int, Sequence[str]]:
    """The file of the network namespace that a command enters first, empty if it stays in its own; the open files that
    it may have, 0 if as many as its parent; and what it runs."""
    namespace, files = "", 0
    program, option = NSENTER
    if len(command) > 2 and command[0] == program and command[1].startswith(option):
        namespace, command = command[1].removeprefix(option), command[2:]
    if len(command) > 4 and command[0] == "sh" and (limit := FEW_FILES.fullmatch(command[2])):
        files, command = int(limit[1]), command[4:]
    return namespace, files, command


def ask(
    parent: socket.socket,
    command: Sequence[str],
    streams: Sequence[int],
    environment: dict[str, str],
    folder: Path | None = None,
    own_session: bool = False,
) -> socket.socket:
    """Ask a parent for a fork that is such a command, with these descriptors as its standard input, output and error,
    in `folder` or that of the asking process. From the connection come two messages: its process id, and when it has
    ended its exit code, below zero for a signal.

    Raises:
        OSError: the parent has gone.
    """
    news, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    namespace, files, command = split(command)
    where = {"folder": str(folder or Path.cwd()), "environment": environment, "own_session": own_session}
    request = {"command": [*command], "namespace": namespace, "files": files} | where
    with theirs:
        try:
            socket.send_fds(parent, [json.dumps(request).encode()], [*streams, theirs.fileno()])
        except OSError:
            news.close()
            raise
    return news


def open_parent() -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """Begin a parent of forks, which ends when its connection is closed."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        command = [sys.executable, "-m", "tests.reference.forks", str(theirs.fileno())]
        process = subprocess.Popen(
            command,
            cwd=ROOT,  # where `tests` is found
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            start_new_session=True,  # the terminal's Ctrl-C is for the testnet
            env=os.environ | {"OMP_NUM_THREADS": "1"},  # OpenMP reads it when it is loaded
        )
        return ours, process


@cache
def parent() -> socket.socket:
    """The connection to the parent of this process's forks: its own, if it is a fork, or else one that begins now."""
    return _own_parent[0] if _own_parent else open_parent()[0]


# What a testnet has of a fork


@dataclass(slots=True, eq=False)
class ForkedProcess:
    """A fork, as far as a testnet uses an `asyncio.subprocess.Process`. `ended` has its exit code at last."""

    pid: int
    stdin: BinaryIO
    stdout: asyncio.StreamReader
    ended: "asyncio.Future[int]"

    @staticmethod
    async def start(command: Sequence[str], errors: int, environment: dict[str, str]) -> "ForkedProcess":
        """Begin such a command in a session of its own.

        Raises:
            LostMemberError: whoever begins the processes has gone.
        """
        stdin, ours = os.pipe()
        theirs, stdout = os.pipe()
        try:
            news = ask(parent(), command, (stdin, stdout, errors), environment, own_session=True)
        except OSError:
            os.close(ours)
            os.close(theirs)
            raise LostMemberError("the process that begins the others has ended") from None
        finally:
            os.close(stdin)
            os.close(stdout)
        loop = asyncio.get_running_loop()
        news.setblocking(False)
        reader = asyncio.StreamReader(LINE_BYTES, loop)
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(theirs, "rb"))
        number = await loop.sock_recv(news, 64)
        if not number:
            news.close()
            os.close(ours)
            raise LostMemberError("the process that begins the others has ended")
        ended: asyncio.Future[int] = loop.create_future()

        def end() -> None:
            loop.remove_reader(news)
            with news:
                ended.set_result(int(news.recv(64) or -signal.SIGKILL))

        loop.add_reader(news, end)
        return ForkedProcess(int(number), os.fdopen(ours, "wb"), reader, ended)

    @property
    def returncode(self) -> int | None:
        """Its exit code, below zero for a signal; None: it runs."""
        return self.ended.result() if self.ended.done() else None

    async def wait(self) -> int:
        """Wait for its end; the exit code, below zero for a signal."""
        return await asyncio.shield(self.ended)


async def spawn(
    command: Sequence[str], folder: Path, errors: IO[bytes]
) -> "asyncio.subprocess.Process | ForkedProcess":
    """Start a process as a testnet does, as a fork if it can be one."""
    if not can_fork(command):
        return await child.spawn(command, folder, errors)
    return await ForkedProcess.start(
        [*command, *child.own_options(folder)], errors.fileno(), os.environ | {"OMP_NUM_THREADS": "1"}
    )


# The parent


@dataclass(slots=True)
class _Parent:
    """A process that forks for whoever asks: the process that began it, and its forks."""

    first: socket.socket
    selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)
    running: dict[int, socket.socket] = field(default_factory=dict)

    def serve(self) -> list[str]:
        """Fork for each request, until the first connection closes. Returns in a fork alone, with its command."""
        woken, wakes = socket.socketpair()
        for each in (woken, wakes):
            each.setblocking(False)
        signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for each in (woken, self.first):
            self.selector.register(each, selectors.EVENT_READ)
        while True:
            for key, _ in self.selector.select():
                if key.fileobj is woken:
                    woken.recv(4096)
                    self._bury()
                    continue
                assert isinstance(key.fileobj, socket.socket)
                asked, files, *_ = socket.recv_fds(key.fileobj, REQUEST_BYTES, 4)
                if not asked and key.fileobj is self.first:
                    sys.exit(0)
                if not asked:
                    self.selector.unregister(key.fileobj)
                    key.fileobj.close()
                elif self._forked(files):
                    wakes.close()
                    woken.close()
                    return _become(json.loads(asked), files)

    def _forked(self, files: list[int]) -> bool:
        """Fork: whether this is the fork."""
        *streams, number = files
        news = socket.socket(fileno=number)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        process = os.fork()
        if process == 0:
            for each in [*self.running.values(), news, ours]:
                each.close()
            for key in list(self.selector.get_map().values()):
                if isinstance(key.fileobj, socket.socket):
                    key.fileobj.close()
            self.selector.close()
            _own_parent.append(theirs)
            return True
        theirs.close()
        for stream in streams:
            os.close(stream)
        self.running[process] = news
        self.selector.register(ours, selectors.EVENT_READ)
        with suppress(OSError):
            news.send(str(process).encode())
        return False

    def _bury(self) -> None:
        """Tell how forks have ended."""
        while self.running:
            process, status = os.waitpid(-1, os.WNOHANG)
            if not process:
                return
            with self.running.pop(process) as news, suppress(OSError):
                news.send(str(os.waitstatus_to_exitcode(status)).encode())


def _become(asked: dict[str, object], files: list[int]) -> list[str]:
    """In a fork: what it was asked to be, and its command."""
    for number, stream in enumerate(files[:3]):
        os.dup2(stream, number)
        os.close(stream)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if asked["own_session"]:
        os.setsid()
    if asked["namespace"]:
        _enter(str(asked["namespace"]))
    if limit := int(str(asked["files"])):
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    os.chdir(str(asked["folder"]))
    environment, command = asked["environment"], asked["command"]
    assert isinstance(environment, dict)
    assert isinstance(command, list)
    os.environ.clear()
    os.environ.update(environment)
    random.seed()
    return command


def _enter(namespace: str) -> None:
    """Enter the network namespace of this file, as `os.setns` does from Python 3.12 on.

    Raises:
        OSError: there is none, or only root may.
    """
    with open(namespace, "rb") as file:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(file.fileno(), CLONE_NEWNET):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), namespace)


def main(first: socket.socket) -> None:
    """Import what the forks need, serve, and run in each fork what it was asked to be."""
    gc.disable()
    for name in PRELOADED:
        importlib.import_module(name)
    del sys.modules[COMMAND]  # runpy warns of a main module that is imported already
    from setproctitle import setproctitle

    setproctitle("hetpeer testnet: begins the processes")  # once before a fork has an environment of its own
    gc.freeze()
    command = _Parent(first).serve()
    setproctitle(" ".join(command))
    _python, script, *sys.argv[1:] = command
    if script != "-m":
        path = Path(script).absolute()
        sys.path.insert(0, str(path.parent))  # before the repository, which was the first
        runpy.run_path(str(path), run_name="__main__")
        return
    module = sys.argv.pop(1)
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    from tests.reference import forks  # not this module under its other name: forks ask `_own_parent`

    forks.main(socket.socket(fileno=int(sys.argv[1])))
