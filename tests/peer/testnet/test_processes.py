"""The testnet watches its processes: small scripts stand in for `hetpeer`, each with a fate of its own."""

import asyncio
import io
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import uvloop
from rich.console import Console

from peer.process import first_error
from peer.telemetry.run_report import Report
from peer.telemetry.terminal import TestnetScreen
from peer.testnet import child, processes
from peer.testnet.chaos import NOTATIONS, parse_chaos
from peer.testnet.child import Child, TestnetError
from peer.testnet.event_log import EventLog, Timed
from peer.testnet.processes import Testnet
from peer.testnet.testnet_options import TestnetOptions, check_testnet_manifest, to_toml
from protocol import manifest as manifests
from protocol.events.activity import Injected, Progress, StepDone
from protocol.events.event import Event

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


def work():
    say("StepDone", round=1, step=0, loss=5.0, tokens=1)
    sys.stdin.read()


def work_on_the_tether():
    held = tether.open("w")
    work()


def lose_who_is_on_the_tether():
    tether.read_text()
    fail("stage 1 is gone", 8)


def work_and_finish():
    # it finishes once chaos has paused and resumed it
    resumed = []
    signal.signal(signal.SIGCONT, lambda *_: resumed.append(True))
    say("StepDone", round=1, step=0, loss=5.0, tokens=1)
    while not resumed:
        signal.pause()
    finish()


def finish_at_the_second_start():
    if folder.exists():
        finish()
    else:
        folder.mkdir()
        work()


def find_the_run_over_at_the_second_start():
    if not folder.exists():
        folder.mkdir()
        work()


def finish_when_not_alone():
    say("StepDone", round=1, step=0, loss=5.0, tokens=1)
    tether.read_text()
    finish()


def greet_if_new():
    if folder.name.startswith("volunteer-2"):
        tether.open("w").close()
    finish()


def leave_if_new():
    if folder.name.startswith("volunteer-2"):
        tether.open("w").close()
    else:
        finish()


def talk_too_much():
    print("x" * 3_000_000, flush=True)
    finish()


def have_no_loss():
    say("Evaluated", round=2, loss=float("nan"), loss_plain=4.0)
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
signal.signal(signal.SIGINT, lambda *_: sys.exit(130))
match fates.get(name, "serve" if role == "bootstrap" else "finish"):
    case "serve": serve()
    case "finish": finish()
    case "wait": sys.stdin.read()
    case "work": work()
    case "work on the tether": work_on_the_tether()
    case "lose who is on the tether": lose_who_is_on_the_tether()
    case "work and finish": work_and_finish()
    case "finish at the second start": finish_at_the_second_start()
    case "find the run over at the second start": find_the_run_over_at_the_second_start()
    case "finish when not alone": finish_when_not_alone()
    case "greet if new": greet_if_new()
    case "leave if new": leave_if_new()
    case "talk too much": talk_too_much()
    case "have no loss": have_no_loss()
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

WORK = {"stage 0": "work", "stage 1": "work", "replica": "work"}
"""Everybody works until told to stop."""


@dataclass(slots=True)
class Watched(TestnetScreen):
    """A screen that also keeps what was said, and may stop the testnet."""

    said: list[Event] = field(default_factory=list)
    stop_at: Callable[[list[Event]], bool] = lambda said: False
    stop: asyncio.Event = field(default_factory=asyncio.Event)

    def take(self, process: str, event: Event, seconds: float = 0.0) -> None:
        """Follow what a process says."""
        super(Watched, self).take(process, event, seconds)
        self.said.append(event)
        if self.stop_at(self.said):
            self.stop.set()


@dataclass(slots=True)
class Outcome:
    """How a testnet ended: the error's message, if any, what its processes said, and its processes."""

    error: str | None
    said: list[Event]
    children: list[Child]
    report: Report
    log: list[Timed]

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

    async def watch(fates: dict[str, str], stop_at: Callable[[list[Event]], bool], spec: str) -> Outcome:
        report = Report(check_testnet_manifest(OPTIONS))
        screen = Watched(report, Console(file=io.StringIO()), stop_at=stop_at)
        command = (sys.executable, "-S", str(tmp_path / "child.py"), json.dumps(fates))
        log = EventLog.open(tmp_path / "events.jsonl")
        faults = parse_chaos(spec, NOTATIONS) if spec else ()
        net = Testnet(OPTIONS, tmp_path, screen, log, faults, command=command)
        screen.start(net.swarm.names)
        error = None
        try:
            async with asyncio.timeout(30):
                await net.run(screen.stop)
        except* TestnetError as group:
            error = str(first_error(group))
        finally:
            log.close()
        return Outcome(error, screen.said, net.children, report, log.entries)

    def run(
        fates: dict[str, str], stop_at: Callable[[list[Event]], bool] = lambda said: False, spec: str = ""
    ) -> Outcome:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(watch(fates, stop_at, spec))

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
    outcome = testnet(WORK | fates)
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
    outcome = testnet(WORK | {"stage 0": "lose the neighbour"} | fates)
    assert outcome.error == f"{name} (process {outcome.pid(name)}) {how}"
    assert outcome.left() == []


def test_where_nobody_else_ended_the_one_that_lost_its_neighbour_is_named(testnet: Callable[..., Outcome]):
    outcome = testnet(WORK | {"stage 0": "report a lost neighbour"})
    name = "volunteer 1, stage 0"
    assert outcome.error == f"{name} (process {outcome.pid(name)}) failed: stage 1 is gone"


def test_a_bug_shows_the_end_of_its_log(testnet: Callable[..., Outcome]):
    outcome = testnet(WORK | {"stage 1": "be a bug"})
    assert outcome.error is not None
    assert "ended early with exit code 1; it last said:\nTraceback" in outcome.error
    assert outcome.error.endswith("RuntimeError: a bug of ours")


def test_a_stop_closes_every_standard_input_which_is_enough(testnet: Callable[..., Outcome]):
    outcome = testnet(WORK, stop_at=lambda said: sum(isinstance(each, StepDone) for each in said) == 3)
    assert outcome.error is None
    assert [child.process.returncode for child in outcome.children] == [0, 0, 0, 0]
    assert outcome.left() == []


def test_who_ignores_that_is_killed_with_its_own_children(
    testnet: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(child, "STOP_SECONDS", 0.1)
    monkeypatch.setattr(child, "KILL_SECONDS", 0.5)
    outcome = testnet(WORK | {"stage 1": "ignore everything"}, stop_at=lambda said: isinstance(said[-1], Progress))
    own = [int(event.doing.split()[-1]) for event in outcome.said if isinstance(event, Progress)]
    assert outcome.left() == []
    _, alive = psutil.wait_procs([psutil.Process(pid) for pid in own if psutil.pid_exists(pid)], timeout=5)
    assert [each for each in alive if each.status() != psutil.STATUS_ZOMBIE] == []


@pytest.mark.parametrize(
    ("cut", "layers"),
    [({}, (2, 2)), ({"layers": (1, 3)}, (1, 3)), ({"balance": "compute"}, (3, 1))],
    ids=["by count", "by hand", "by compute"],
)
def test_what_is_written_as_toml_is_the_manifest_that_was_checked(
    cut: dict[str, Any], layers: tuple[int, ...], tmp_path: Path
):
    options = replace(OPTIONS, **cut)
    (tmp_path / "run.toml").write_text(to_toml(options.manifest_tables()))
    assert manifests.load_manifest(tmp_path / "run.toml") == check_testnet_manifest(options)
    assert check_testnet_manifest(options).replicas.layers == layers


# Chaos


def injected(outcome: Outcome) -> list[tuple[str, list[str]]]:
    return [(each.action, each.processes) for each in outcome.said if isinstance(each, Injected)]


def test_a_process_that_chaos_killed_is_no_failure(testnet: Callable[..., Outcome]):
    outcome = testnet({"replica": "work"}, spec="kill:datacenter=0@round=1")
    assert outcome.error is None
    assert injected(outcome) == [("killed", ["datacenter 1"])]
    assert outcome.left() == []


def test_nor_is_one_that_left_in_order(testnet: Callable[..., Outcome]):
    outcome = testnet({"replica": "work"}, spec="leave:datacenter=0@round=1")
    assert outcome.error is None
    assert injected(outcome) == [("told to leave", ["datacenter 1"])]


def test_one_that_fails_by_itself_is_a_failure_under_chaos_too(testnet: Callable[..., Outcome]):
    outcome = testnet(WORK | {"stage 1": "fail"}, spec="kill:datacenter=0@round=1")
    name = "volunteer 1, stage 1"
    assert outcome.error == f"{name} (process {outcome.pid(name)}) failed: not enough memory"


def test_a_neighbour_that_a_kill_took_along_is_named_not_the_killed(testnet: Callable[..., Outcome]):
    fates = {"stage 0": "lose who is on the tether", "stage 1": "work on the tether", "replica": "wait"}
    outcome = testnet(fates, spec="kill:stage=1@round=1")
    name = "volunteer 1, stage 0"
    assert outcome.error == f"{name} (process {outcome.pid(name)}) failed: stage 1 is gone"


def test_a_killed_process_comes_back_with_the_folder_it_had(testnet: Callable[..., Outcome]):
    fates = {"stage 0": "wait", "replica": "finish at the second start"}
    outcome = testnet(fates, spec="kill:datacenter=0@round=1+0.1s,kill:stage=0@1s")
    assert outcome.error is None
    assert injected(outcome) == [
        ("killed", ["datacenter 1"]),
        ("started again", ["datacenter 1"]),
        ("killed", ["volunteer 1, stage 0"]),
    ]
    assert [child.name for child in outcome.children].count("datacenter 1") == 2


def test_one_that_comes_back_to_a_run_that_is_over_is_no_failure(testnet: Callable[..., Outcome]):
    fates = {"stage 0": "wait", "replica": "find the run over at the second start"}
    outcome = testnet(fates, spec="kill:datacenter=0@round=1+0.1s,kill:stage=0@1s")
    assert outcome.error is None
    assert [child.name for child in outcome.children].count("datacenter 1") == 2


def test_where_chaos_leaves_nobody_the_run_has_failed(testnet: Callable[..., Outcome]):
    outcome = testnet(WORK, spec="kill:group=0@round=1,kill:datacenter=0@round=1")
    assert outcome.error == "chaos has left nobody to train"


def test_a_pause_stops_a_process_and_lets_it_go_on(testnet: Callable[..., Outcome]):
    outcome = testnet({"replica": "work and finish"}, spec="pause:datacenter=0@round=1+0.2s")
    assert outcome.error is None
    assert injected(outcome) == [("paused", ["datacenter 1"]), ("resumed", ["datacenter 1"])]


def test_a_paused_process_does_not_hinder_a_stop(testnet: Callable[..., Outcome]):
    outcome = testnet(WORK, stop_at=lambda said: isinstance(said[-1], Injected), spec="pause:all@round=1+500s")
    assert outcome.error is None
    assert outcome.left() == []


def test_a_fault_on_the_dead_is_recorded_as_such(testnet: Callable[..., Outcome]):
    fates = {"replica": "work", "stage 0": "work and finish"}
    spec = "kill:datacenter=0@round=1,pause:datacenter=0@0.3s+1s,pause:stage=0@0.5s+0.1s"
    outcome = testnet(fates, spec=spec)
    assert outcome.error is None
    assert ("not applied", ["datacenter 1"]) in injected(outcome)
    assert next(each.reason for each in outcome.said if isinstance(each, Injected) and each.reason) == "already dead"


def test_a_fault_that_was_never_due_is_recorded_as_such(testnet: Callable[..., Outcome]):
    outcome = testnet({}, spec="kill:datacenter=0@round=2")
    assert outcome.error is None
    assert injected(outcome) == [("not done", [])]


def test_who_is_held_up_by_chaos_is_waited_for(testnet: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(processes, "STRAGGLER_SECONDS", 1.0)
    outcome = testnet({"replica": "work and finish"}, spec="pause:datacenter=0@round=1+2.5s")
    assert outcome.error is None


def test_who_lingers_without_reason_is_not(testnet: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(processes, "STRAGGLER_SECONDS", 3.0)
    outcome = testnet({"replica": "work"}, spec="kill:stage=0@round=2")
    assert outcome.error == "no process has said anything for 3.0 s; unfinished: datacenter 1"


def test_a_swarm_in_which_all_are_silent_is_given_up(testnet: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(processes, "STILL_SECONDS", 0.5)
    outcome = testnet(WORK, spec="kill:stage=0@round=2")
    assert outcome.error is not None
    assert outcome.error.startswith("no process has said anything for 0.5 s; unfinished: volunteer 1, stage 0;")


def test_one_more_joins(testnet: Callable[..., Outcome]):
    outcome = testnet({"replica": "finish when not alone", "stage 1": "greet if new"}, spec="join:stage=1@round=1")
    assert outcome.error is None
    assert injected(outcome) == [("joined", ["volunteer 2, stage 1"])]
    assert outcome.children[-1].name == "volunteer 2, stage 1"


def test_one_that_joins_a_run_that_is_over_is_no_failure(testnet: Callable[..., Outcome]):
    outcome = testnet({"replica": "finish when not alone", "stage 1": "leave if new"}, spec="join:stage=1@round=1")
    assert outcome.error is None
    assert outcome.children[-1].name == "volunteer 2, stage 1"


# What children say


def test_a_line_that_is_far_too_long_is_passed_over(testnet: Callable[..., Outcome]):
    outcome = testnet({"replica": "talk too much"})
    assert outcome.error is None


def test_every_event_is_kept_with_its_time_as_strict_json(testnet: Callable[..., Outcome], tmp_path: Path):
    testnet({"replica": "have no loss"})

    def refuse(word: str) -> None:
        raise AssertionError(word)

    lines = [json.loads(line, parse_constant=refuse) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    said = [line for line in lines if line["process"] == "datacenter 1"]
    assert [(line["event"], line.get("round"), line.get("loss", 0.0)) for line in said] == [
        ("Evaluated", 2, None),
        ("Finished", None, 0.0),
    ]
    times = [line["at"] for line in lines]
    assert times == sorted(times)
