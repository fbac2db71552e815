"""A fork is what it was asked to be, and tells how it ended; its parent ends with whoever began it."""

import asyncio
import json
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from protocol.errors import LostMemberError
from tests.chaos import namespaces
from tests.reference import forks
from tests.reference.forks import ForkedProcess, can_fork, with_files
from tests.reference.own_loop import run

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks are for Linux")

PORTRAIT = [sys.executable, "-m", "tests.reference.self_portrait"]


@pytest.fixture(scope="module")
def begun() -> Iterator[tuple[socket.socket, int]]:
    connection, process = forks.open_parent()
    yield connection, process.pid
    connection.close()
    assert process.wait(60) == 0


@pytest.fixture
def parent(begun: tuple[socket.socket, int], monkeypatch: pytest.MonkeyPatch) -> int:
    """The process id of what this process's forks are forks of."""
    monkeypatch.setattr(forks, "parent", lambda: begun[0])
    return begun[1]


async def told(process: ForkedProcess) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(await process.stdout.readline())
    return found


def played(scene: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await scene()

    run(bounded())


def test_a_fork_is_what_it_was_asked_to_be_and_tells_how_it_ended(
    parent: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)

    async def scene() -> None:
        with (tmp_path / "errors").open("wb") as errors:
            process = await ForkedProcess.start([*PORTRAIT, "3"], errors.fileno(), {"HETPEER_WORD": "hello"})
        said = await told(process)
        assert said == {
            "pid": process.pid,
            "parent": parent,
            "session": process.pid,
            "folder": str(tmp_path),
            "files": [*resource.getrlimit(resource.RLIMIT_NOFILE)],
            "word": "hello",
            "imported": True,
            "ctrl_c": True,
        }
        assert " ".join(psutil.Process(process.pid).cmdline()) == " ".join([*PORTRAIT, "3"])
        assert process.returncode is None
        process.stdin.close()
        assert await process.wait() == process.returncode == 3
        assert (tmp_path / "errors").read_text() == "ends\n"
        assert await process.stdout.read() == b""

    played(scene)


def test_a_fork_that_is_killed_says_so_and_the_others_go_on(parent: int):
    async def scene() -> None:
        one, other = [await ForkedProcess.start([*PORTRAIT, "0"], 2, {}) for _ in range(2)]
        await told(one)
        os.kill(one.pid, signal.SIGKILL)
        assert await one.wait() == -signal.SIGKILL
        await told(other)
        assert other.returncode is None
        for each in (one, other):
            each.stdin.close()
        assert await other.wait() == 0

    played(scene)


def test_forks_that_end_at_once_are_all_told_of(parent: int):
    async def scene() -> None:
        several = [await ForkedProcess.start([*PORTRAIT, "0"], 2, {}) for _ in range(8)]
        for each in several:
            await told(each)
        os.kill(parent, signal.SIGSTOP)
        for each in several:
            os.kill(each.pid, signal.SIGKILL)
        os.kill(parent, signal.SIGCONT)
        assert {await each.wait() for each in several} == {-signal.SIGKILL}
        for each in several:
            each.stdin.close()

    played(scene)


def test_a_fork_begins_others_by_its_own_parent(parent: int):
    async def scene() -> None:
        process = await ForkedProcess.start([*PORTRAIT, "0", "fork"], 2, {})
        first, second = await told(process), await told(process)
        assert second["pid"] != first["pid"]
        assert second["parent"] == first["parent"] == parent
        process.stdin.close()
        assert await process.wait() == 0

    played(scene)


def test_a_fork_may_have_as_many_open_files_as_it_was_asked_to(parent: int):
    async def scene() -> None:
        for inside, files in ((with_files(300), [300, 300]), ((), [*resource.getrlimit(resource.RLIMIT_NOFILE)])):
            process = await ForkedProcess.start([*inside, *PORTRAIT, "0"], 2, {})
            assert (await told(process))["files"] == files
            process.stdin.close()
            assert await process.wait() == 0

    played(scene)


@pytest.mark.skipif(namespaces.missing() is not None, reason=f"needs {namespaces.missing()}")
def test_a_fork_enters_the_network_namespace_that_it_was_asked_to(parent: int):
    async def scene() -> None:
        async with namespaces.opened() as network:
            inside = await network.enter("somebody")
            process = await ForkedProcess.start([*inside, *PORTRAIT, "0"], 2, {})
            await told(process)
            assert os.stat(f"/proc/{process.pid}/ns/net").st_ino == os.stat(inside[1].removeprefix("--net=")).st_ino
            assert os.stat(f"/proc/{parent}/ns/net").st_ino == os.stat("/proc/self/ns/net").st_ino
            process.stdin.close()
            assert await process.wait() == 0

    played(scene)


def test_when_the_parent_has_gone_that_is_said(monkeypatch: pytest.MonkeyPatch):
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    theirs.close()
    monkeypatch.setattr(forks, "parent", lambda: ours)
    before = psutil.Process().num_fds()

    async def scene() -> None:
        with pytest.raises(LostMemberError, match="the process that begins the others has ended"):
            await ForkedProcess.start([*PORTRAIT, "0"], 2, {})

    played(scene)
    assert psutil.Process().num_fds() == before
    ours.close()


def test_a_script_that_is_a_fork_finds_what_is_beside_it(parent: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "beside.py").write_text("WORD = 'found'\n")
    words = "import json, sys, os, beside; print(json.dumps([beside.WORD, __name__, sys.argv[1:], os.getppid()]))"
    (tmp_path / "script.py").write_text(words)
    monkeypatch.chdir(tmp_path)

    async def scene() -> None:
        process = await ForkedProcess.start([sys.executable, "script.py", "--option"], 2, {})
        said: object = json.loads(await process.stdout.readline())
        assert said == ["found", "__main__", ["--option"], parent]
        process.stdin.close()
        assert await process.wait() == 0

    played(scene)


def test_only_what_python_runs_as_a_module_or_a_script_is_a_fork():
    assert can_fork([sys.executable, "-m", "peer.cli", "join"])
    assert can_fork([sys.executable, "benchmarks/tls.py", "--small"])
    assert not can_fork([sys.executable])
    assert not can_fork([])
    assert can_fork(["nsenter", "--net=/run/netns/x", sys.executable, "-m", "peer.cli", "join"])
    assert can_fork([*with_files(300), sys.executable, "-m", "peer.cli", "join"])
    assert not can_fork(["sh", "-c", "ulimit -n 300", "sh", sys.executable, "-m", "peer.cli", "join"])
    assert not can_fork(["nsenter", "--mount=x", sys.executable, "-m", "peer.cli", "join"])
    assert not can_fork([sys.executable, "-c", "pass"])
