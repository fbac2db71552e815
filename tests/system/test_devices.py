"""A datacenter in two processes beside a group of volunteers: one state, whoever is killed, and nothing left behind."""

import json
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from protocol.events.activity import Contributed, Evaluated, Finished, Progress, RoundDone, StepDone
from protocol.events.decisions import Audited
from protocol.trust.ticket import Ticket
from tests.reference.processes import RUN, Peer, hetpeer, serving

ROUNDS = """steps = 6
[outer]
rounds = 4
patience = 60
"""
"""Starting workers again takes as long as many of these rounds: for so long the others are to wait here."""


@pytest.fixture
def ticket(tmp_path: Path) -> Iterator[Ticket]:
    """A run of a group of two stages and a datacenter."""
    with serving(RUN.format(datacenters=1, sequences=4) + ROUNDS, tmp_path / "run") as ticket:
        yield ticket


@pytest.fixture
def volunteers(ticket: Ticket, tmp_path: Path) -> Iterator[list[Peer]]:
    def join(stage: int) -> Peer:
        where = ["--stage", str(stage), "--dir", str(tmp_path / f"stage-{stage}")]
        return Peer("join", str(ticket), *where, "--device", "cpu", "--threads", "1")

    with join(0) as first, join(1) as second:
        yield [first, second]


def datacenter(ticket: Ticket, tmp_path: Path) -> Peer:
    where = ["--dir", str(tmp_path / "datacenter")]
    return Peer("replica", str(ticket), "--nproc", "2", *where, "--device", "cpu", "--threads", "2", "--audit")


def lab(tmp_path: Path) -> list[dict[str, float]]:
    """The rounds of the same run in one process, which nothing disturbs."""
    files = [str(tmp_path / "run" / "run.toml"), "--data", str(tmp_path / "run" / "text.txt")]
    report = ["--report", str(tmp_path / "lab.json")]
    hetpeer("lab", *files, "--device", "cpu", "--threads", "1", *report).check_returncode()
    rounds: list[dict[str, float]] = json.loads((tmp_path / "lab.json").read_text())["rounds"]
    return rounds


def workers(peer: Peer) -> list[psutil.Process]:
    """The processes that compute for it, by rank."""
    children = psutil.Process(peer.process.pid).children()
    found = [each for each in children if "peer.devices" in each.cmdline()]
    return sorted(found, key=lambda each: each.cmdline()[3])


def gone(processes: list[psutil.Process]) -> bool:
    """Whether all of them end within seconds."""
    _, alive = psutil.wait_procs(processes, timeout=10)
    return not [each for each in alive if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]


def test_who_loses_a_worker_does_the_round_again_and_all_end_with_one_state_and_the_losses_of_the_lab(
    ticket: Ticket, volunteers: list[Peer], tmp_path: Path
):
    with datacenter(ticket, tmp_path) as replica:
        replica.wait_for(StepDone, lambda event: (event.round, event.step) == (2, 1))
        first = workers(replica)
        first[1].kill()
        lost = f"worker 1 (process {first[1].pid}) was killed by SIGKILL; going on from the start of round 2"
        assert replica.wait_for(Progress, lambda event: event.doing.startswith("worker ")).doing == lost
        assert gone(first)
        replica.wait_for(StepDone, lambda event: event.round == 3)
        second = workers(replica)
        assert len(second) == 2
        digests = replica.wait_for(Finished).digests
        assert {**volunteers[0].wait_for(Finished).digests, **volunteers[1].wait_for(Finished).digests} == digests
        assert replica.process.wait(60) == 0
        assert gone(second)
    done = [event for event in replica.said if isinstance(event, RoundDone)]
    assert [event.contributions["embedding"] for event in done] == [2, 2, 2, 2]
    evaluated = [event for event in replica.said if isinstance(event, Evaluated)]
    for event, row in zip(evaluated, lab(tmp_path), strict=True):
        assert (event.loss, event.loss_plain) == pytest.approx((row["loss"], row["loss_plain"]), abs=2e-3)
    assert {event.round for event in replica.said if isinstance(event, Audited)} >= {1, 2, 3}


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch compiles for the CPU with g++")
def test_a_replica_in_bf16_and_compiled_holds_the_state_of_volunteers_in_fp32(
    ticket: Ticket, volunteers: list[Peer], tmp_path: Path
):
    own = ["--dir", str(tmp_path / "datacenter"), "--device", "cpu", "--threads", "1"]
    with Peer("replica", str(ticket), *own, "--precision", "bf16", "--compile") as replica:
        digests = replica.wait_for(Finished).digests
        assert {**volunteers[0].wait_for(Finished).digests, **volunteers[1].wait_for(Finished).digests} == digests
    losses = [event.loss_plain for event in replica.said if isinstance(event, Evaluated)]
    assert losses[-1] < losses[0]


ALONE = """
[model]
preset = "nano"
layers = 2
[replicas]
groups = 0
datacenters = 1
[inner]
steps = 1000
sequences = 4
microbatch = 4
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, -signal.SIGKILL), (signal.SIGINT, 130)])
def test_no_worker_outlives_its_daemon_and_who_leaves_contributes_first(
    number: signal.Signals, code: int, tmp_path: Path
):
    with serving(ALONE, tmp_path / "run") as ticket, datacenter(ticket, tmp_path) as replica:
        replica.wait_for(StepDone, lambda event: event.step == 3)
        computing = workers(replica)
        assert len(computing) == 2
        if number == signal.SIGINT:  # as a terminal does
            for each in computing:
                each.send_signal(number)
        assert replica.end(number) == code
        assert gone(computing)
    contributed = [event.round for event in replica.said if isinstance(event, Contributed)]
    assert contributed == ([1] if number == signal.SIGINT else [])


def test_a_number_of_processes_that_cannot_be_is_one_clear_line(ticket: Ticket, tmp_path: Path):
    done = hetpeer("replica", str(ticket), "--nproc", "3", "--dir", str(tmp_path / "peer"), "--device", "cpu")
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stderr.endswith("4 sequences, which 3 processes cannot share evenly; take 2 or 4\n")
