"""The testnet watches its processes: small scripts stand in for `hetpeer`, each with a fate of its own."""

import asyncio
import io
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
import uvloop
from rich.console import Console

from peer.events import Event, Progress, Serving
from peer.report import Report
from peer.screen import TestnetScreen
from peer.testnet import processes
from peer.testnet.options import TestnetOptions, check_manifest, to_toml
from peer.testnet.processes import Testnet, TestnetError
from protocol import manifest as manifests

CHILD = """
import json, os, signal, subprocess, sys
from pathlib import Path

fates, role = json.loads(sys.argv[1]), sys.argv[2]
name = "stage " + sys.argv[sys.argv.index("--stage") + 1] if "--stage" in sys.argv else role
folder = Path(sys.argv[sys.argv.index("--dir") + 1])
tether = folder.parent / "tether"  # a named pipe: reading it ends when the process that writes it has ended


def say(event, **fields):
    print(json.dumps({"event": event} | fields), flush=True)


def fail(message, code):
    say("Failed", message=message, exit_code=code)
    sys.exit(code)


def serve():
    say("Serving", ticket="a-ticket", run_id="ab" * 32)
    sys.stdin.read()


def finish():
    say("Evaluated", round=2, loss=4.0, loss_plain=4.0)
    say("Finished", rounds=2)


def be_killed():
    os.kill(os.getpid(), signal.SIGKILL)


def be_terminated():
    os.kill(os.getpid(), signal.SIGTERM)


def be_killed_after_the_neighbour():
    tether.read_text()
    be_killed()


def be_terminated_after_the_neighbour():
    tether.read_text()
    be_terminated()


def lose_the_neighbour():
    global held
    held = tether.open("w")
    fail("stage 1 is gone", 8)


def serve_until_the_neighbour_has_ended():
    say("Serving", ticket="a-ticket", run_id="ab" * 32)
    be_killed_after_the_neighbour()


def ignore_everything():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    own = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    say("Progress", doing=f"my own child is {own.pid}", done=0, total=0)
    while True:
        signal.pause()


signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # as hetpeer does: it leaves in order
match fates.get(name, "serve" if role == "bootstrap" else "finish"):
    case "serve": serve()
    case "finish": finish()
    case "wait": sys.stdin.read()
    case "be killed": be_killed()
    case "be terminated": be_terminated()
    case "be killed after the neighbour": be_killed_after_the_neighbour()
    case "be terminated after the neighbour": be_terminated_after_the_neighbour()
    case "serve until the neighbour has ended": serve_until_the_neighbour_has_ended()
    case "lose the neighbour": lose_the_neighbour()
    case "report a lost neighbour": fail("stage 1 is gone", 8)
    case "ignore everything": ignore_everything()
    case "leave": sys.exit(0)
    case "fail": fail("not enough memory", 4)
    case "be a bug": raise RuntimeError("a bug of ours")
"""
"""`python child.py FATES ROLE …`. Who is not in FATES does well."""

OPTIONS = TestnetOptions(preset="nano", groups=1, stages=2, datacenters=1, compression=8, rounds=2, inner_steps=3)

WAIT = {"stage 0": "wait", "stage 1": "wait", "replica": "wait"}
"""Everybody works until told to stop."""


@dataclass(slots=True)
class Watched(TestnetScreen):
    """A screen that also keeps what was said, and may stop the testnet."""

    said: list[Event] = field(default_factory=list)
    stop_at: Callable[[list[Event]], bool] = lambda said: False
    stop: asyncio.Event = field(default_factory=asyncio.Event)

    def take(self, process: str, event: Event) -> None:
        """Follow what a process says."""
        super(Watched, self).take(process, event)
        self.said.append(event)
        if self.stop_at(self.said):
            self.stop.set()


@dataclass(slots=True)
class Outcome:
    """How a testnet ended: the error's message, if any, what its processes said, and its processes."""

    error: str | None
    said: list[Event]
    children: list[processes.Child]

    def pid(self, name: str) -> int:
        return next(child.process.pid for child in self.children if child.name == name)

    def left(self) -> list[str]:
        return [child.name for child in self.children if psutil.pid_exists(child.process.pid)]


@pytest.fixture
def testnet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Outcome]:
    """A testnet of a bootstrap node, two stages and a datacenter, by their fates; times are short."""
    monkeypatch.setattr(processes, "BLAME_SECONDS", 1.0)
    (tmp_path / "child.py").write_text(CHILD)
    os.mkfifo(tmp_path / "tether")

    async def watch(fates: dict[str, str], stop_at: Callable[[list[Event]], bool]) -> Outcome:
        report = Report(check_manifest(OPTIONS))
        screen = Watched(report, Console(file=io.StringIO()), stop_at=stop_at)
        command = (sys.executable, "-S", str(tmp_path / "child.py"), json.dumps(fates))
        net = Testnet(OPTIONS, tmp_path, report, screen, command=command)
        screen.start(net.names())
        error = None
        try:
            async with asyncio.timeout(30):
                await net.run(screen.stop)
        except* TestnetError as group:
            error = str(group.exceptions[0])
        return Outcome(error, screen.said, net.children)

    def run(fates: dict[str, str], stop_at: Callable[[list[Event]], bool] = lambda said: False) -> Outcome:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(watch(fates, stop_at))

    return run


def test_a_testnet_ends_when_all_have_finished_and_leaves_nobody(testnet: Callable[..., Outcome]):
    outcome = testnet({})
    assert outcome.error is None
    assert [child.name for child in outcome.children] == [
        "bootstrap",
        "volunteer 1, stage 0",
        "volunteer 1, stage 1",
        "datacenter 1",
    ]
    assert [child.process.returncode for child in outcome.children] == [0, 0, 0, 0]
    assert outcome.left() == []


@pytest.mark.parametrize(
    ("fates", "name", "how"),
    [
        ({"stage 1": "be killed"}, "volunteer 1, stage 1", "was killed by SIGKILL"),
        ({"replica": "be killed"}, "datacenter 1", "was killed by SIGKILL"),
        ({"stage 1": "be terminated"}, "volunteer 1, stage 1", "was stopped before the last round"),
        ({"stage 1": "leave"}, "volunteer 1, stage 1", "was stopped before the last round"),
        ({"stage 1": "fail"}, "volunteer 1, stage 1", "failed: not enough memory"),
        ({"bootstrap": "fail"}, "bootstrap", "failed: not enough memory"),
        ({"bootstrap": "be killed"}, "bootstrap", "was killed by SIGKILL"),
    ],
    ids=[
        "volunteer killed",
        "datacenter killed",
        "volunteer terminated",
        "exit code 0 without having finished",
        "error",
        "bootstrap fails before it serves",
        "bootstrap killed before it serves",
    ],
)
def test_the_first_death_ends_it_and_is_named(
    testnet: Callable[..., Outcome], fates: dict[str, str], name: str, how: str
):
    outcome = testnet(WAIT | fates)
    assert outcome.error == f"{name} (process {outcome.pid(name)}) {how}"
    assert outcome.left() == []


@pytest.mark.parametrize(
    ("fates", "name", "how"),
    [
        ({"stage 1": "be killed after the neighbour"}, "volunteer 1, stage 1", "was killed by SIGKILL"),
        (
            {"stage 1": "be terminated after the neighbour"},
            "volunteer 1, stage 1",
            "was stopped before the last round",
        ),
        ({"bootstrap": "serve until the neighbour has ended"}, "bootstrap", "was killed by SIGKILL"),
    ],
    ids=["killed", "terminated", "bootstrap killed"],
)
def test_who_took_a_neighbour_along_is_named_even_if_the_neighbour_ended_first(
    testnet: Callable[..., Outcome], fates: dict[str, str], name: str, how: str
):
    outcome = testnet(WAIT | {"stage 0": "lose the neighbour"} | fates)
    assert outcome.error == f"{name} (process {outcome.pid(name)}) {how}"
    assert outcome.left() == []


def test_where_nobody_else_ended_the_one_that_lost_its_neighbour_is_named(testnet: Callable[..., Outcome]):
    outcome = testnet(WAIT | {"stage 0": "report a lost neighbour"})
    name = "volunteer 1, stage 0"
    assert outcome.error == f"{name} (process {outcome.pid(name)}) failed: stage 1 is gone"


def test_a_bug_shows_the_end_of_its_log(testnet: Callable[..., Outcome]):
    outcome = testnet(WAIT | {"stage 1": "be a bug"})
    assert outcome.error is not None
    assert "ended early with exit code 1; it last said:\nTraceback" in outcome.error
    assert outcome.error.endswith("RuntimeError: a bug of ours")


def test_a_stop_closes_every_standard_input_which_is_enough(testnet: Callable[..., Outcome]):
    outcome = testnet(WAIT, stop_at=lambda said: isinstance(said[-1], Serving))
    assert outcome.error is None
    assert [child.process.returncode for child in outcome.children] == [0, 0, 0, 0]
    assert outcome.left() == []


def test_who_ignores_that_is_killed_with_its_own_children(
    testnet: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(processes, "STOP_SECONDS", 0.1)
    monkeypatch.setattr(processes, "KILL_SECONDS", 0.5)
    outcome = testnet(WAIT | {"stage 1": "ignore everything"}, stop_at=lambda said: isinstance(said[-1], Progress))
    own = [int(event.doing.split()[-1]) for event in outcome.said if isinstance(event, Progress)]
    assert outcome.left() == []
    _, alive = psutil.wait_procs([psutil.Process(pid) for pid in own if psutil.pid_exists(pid)], timeout=5)
    assert [each for each in alive if each.status() != psutil.STATUS_ZOMBIE] == []


def test_what_is_written_as_toml_is_the_manifest_that_was_checked(tmp_path: Path):
    (tmp_path / "run.toml").write_text(to_toml(OPTIONS.manifest_tables()))
    assert manifests.load(tmp_path / "run.toml") == check_manifest(OPTIONS)
