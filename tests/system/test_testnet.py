"""Real processes: the testnet succeeds, says who died, leaves nothing behind, and equals the lab."""

import json
import signal
import subprocess
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import psutil
import pytest

from peer.swarm.group.compression import START
from tests.reference.processes import HETPEER, completed_swarm, hetpeer, swarm_arguments


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A testnet of two groups and a datacenter that ran to its end."""
    directory = tmp_path_factory.mktemp("finished")
    arguments = ["--groups", "2", "--stages", "2", "--rounds", "3", "--inner-steps", "6", "--optimizer", "muon"]
    completed_swarm(directory, *arguments)
    return directory


def test_its_report_tells_every_round_and_its_loss_fell(finished: Path):
    report = json.loads((finished / "report.json").read_text())
    assert report["outcome"] == "completed"
    assert [row["round"] for row in report["rounds"]] == [1, 2, 3]
    assert report["rounds"][-1]["loss"] < report["rounds"][0]["loss"]
    assert all(row["contributions"] == {"embedding": 3, "stage-0": 3, "stage-1": 3} for row in report["rounds"])
    assert all(row["tokens"] == 3 * 6 * 8 * 128 for row in report["rounds"])
    assert report["bytes"]["pipeline_sent"] == sum(each["pipeline_sent"] for each in report["bytes"]["peers"].values())
    assert report["bytes"]["outer_sent"] > 0
    assert (finished / "loss.png").stat().st_size > 10_000


def test_the_bytes_between_stages_are_those_of_all_rounds_and_each_has_as_many(finished: Path):
    lines = [json.loads(line) for line in (finished / "net" / "events.jsonl").read_text().splitlines()]
    done = [line for line in lines if line["event"] == "RoundDone" and line["process"] == "volunteer 1, stage 0"]
    first, *others = [line["pipeline_sent"] for line in done]
    assert first > 0
    assert others == [2 * first, 3 * first]


def test_all_peers_of_a_part_hold_one_digest_datacenter_and_volunteers_alike(finished: Path):
    digests = json.loads((finished / "report.json").read_text())["digests"]
    assert {part: len(peers) for part, peers in digests.items()} == {"embedding": 5, "stage-0": 3, "stage-1": 3}
    assert all(len(set(peers.values())) == 1 for peers in digests.values())


def test_losses_and_digests_are_those_of_the_lab_bit_by_bit(finished: Path, tmp_path: Path):
    files = [str(finished / "net" / "run.toml"), "--data", str(finished / "village.txt")]
    report = ["--report", str(tmp_path / "lab.json")]
    hetpeer("lab", *files, "--device", "cpu", "--threads", "1", *report).check_returncode()
    swarm, lab = (json.loads(path.read_text()) for path in (finished / "report.json", tmp_path / "lab.json"))
    for ours, theirs in zip(swarm["rounds"], lab["rounds"], strict=True):
        assert (ours["loss"], ours["loss_plain"]) == (theirs["loss"], theirs["loss_plain"])
    for part, peers in swarm["digests"].items():
        assert set(peers.values()) == set(lab["digests"][part].values())


def test_groups_that_choose_their_own_k_say_why_and_all_peers_agree(tmp_path: Path):
    """Which k they find is the machine's matter: on one where others compute too, a pass may wait for its turn."""
    arguments = ["--groups", "2", "--stages", "2", "--rounds", "4", "--inner-steps", "3", "--compression", "auto"]
    outcome = completed_swarm(tmp_path, *arguments)
    for leader in ("volunteer 1, stage 0", "volunteer 2, stage 0"):
        chosen = [each for each in outcome.said("CompressionChosen") if each["process"] == leader]
        assert all("a step took" in each["why"] for each in chosen)
        tried = [START, *(each["compression"] for each in chosen)]
        assert len(tried) > 1  # after its first round a group tries another
        assert all(before != after for before, after in pairwise(tried))
    sent = [each["pipeline_sent"] for each in outcome.said("RoundDone") if each["process"] == "volunteer 1, stage 0"]
    assert len({after - before for before, after in pairwise([0, *sent])}) > 1  # and sends what it chose
    assert all(len(set(peers.values())) == 1 for peers in outcome.report["digests"].values())


class Watched:
    """A running testnet: its output as it comes, and its processes."""

    def __init__(self, directory: Path, *more: str) -> None:
        arguments = ["--groups", "1", "--stages", "2", "--rounds", "500", "--inner-steps", "4", *more]
        command = [*HETPEER, "testnet", *swarm_arguments(directory, *arguments)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.said = ""

    def wait_for(self, words: str) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said += line
            if words in line:
                return
        raise AssertionError(self.said)

    def children(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def child(self, words: str) -> psutil.Process:
        return next(each for each in self.children() if words in " ".join(each.cmdline()))

    def end(self) -> int:
        """The exit code, once it has ended."""
        rest, _ = self.process.communicate(timeout=60)
        self.said += rest
        return self.process.returncode


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Watched]:
    """A testnet in the middle of its work."""
    watched = Watched(tmp_path)
    with watched.process:
        try:
            watched.wait_for("loss after round ")
            yield watched
        finally:
            watched.process.kill()


def gone(processes: list[psutil.Process]) -> bool:
    """Whether all of them have ended, within a few seconds."""
    _, alive = psutil.wait_procs(processes, timeout=20)
    return not [each for each in alive if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.parametrize(
    ("victim", "name"),
    [
        ("--stage 1", "volunteer 1, stage 1"),
        ("peer.cli bootstrap", "bootstrap"),
    ],
)
def test_a_killed_process_is_named_and_none_is_left(running: Watched, victim: str, name: str):
    children = running.children()
    killed = running.child(victim)
    killed.kill()
    assert running.end() == 1
    assert f"{name} (process {killed.pid}) was killed by SIGKILL" in running.said
    assert gone(children)


def test_the_death_of_the_observer_is_noticed_where_no_datacenter_evaluates(tmp_path: Path):
    watched = Watched(tmp_path, "--datacenters", "0")
    with watched.process:
        try:
            watched.wait_for("loss after round ")
            children = watched.children()
            killed = watched.child("peer.cli observe")
            killed.kill()
            assert watched.end() == 1
            assert f"failed: the observer that evaluates (process {killed.pid}) ended with exit code -9" in watched.said
            assert gone(children)
        finally:
            watched.process.kill()


def test_a_run_goes_on_when_libp2ps_daemon_dies_and_leaves_no_process_when_the_testnet_is_killed(running: Watched):
    owner = running.child("--stage 1")
    (daemon,) = owner.children()
    daemon.kill()
    daemon.wait(20)
    while not owner.children():
        running.wait_for("loss after round")
    running.wait_for("loss after round")
    children = running.children()
    running.process.kill()
    running.process.wait(timeout=20)
    assert gone(children)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 1)])
def test_ctrl_c_stops_everything(running: Watched, number: signal.Signals, code: int):
    children = running.children()
    running.process.send_signal(number)
    assert running.end() == code
    assert "stopped by hand" in running.said
    assert gone(children)
