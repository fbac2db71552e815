"""A datacenter of two machines, each a network namespace, that meet over gloo: one is cut off, and comes back."""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from protocol.events.activity import Failed, Finished, Progress, RoundDone, StepDone
from protocol.identity import Part
from tests.reference.processes import Peer, hetpeer, serving
from tests.system.test_devices import gone, workers

RUN = """
[model]
preset = "pico"
layers = 2
[replicas]
groups = 0
datacenters = 1
[inner]
steps = 4
sequences = 4
microbatch = 2
[outer]
rounds = 3
"""

FIRST, SECOND = "10.78.0.1", "10.78.0.2"
RENDEZVOUS = f"{FIRST}:7800"


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True, timeout=10)


@contextmanager
def two_namespaces() -> Iterator[tuple[str, str]]:
    """Two machines with a line between them; how their namespaces are named. Skips the test where there can be none."""
    names = [f"hetpeer-machines-{os.getpid()}-{number}" for number in range(2)]
    if os.geteuid() or not all(map(shutil.which, ("ip", "nsenter"))):
        pytest.skip("network namespaces need Linux, root, and the commands ip and nsenter")
    try:
        try:
            for name in names:
                ip("netns", "add", name)
            ip("-n", names[0], "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", names[1])
        except subprocess.CalledProcessError as error:
            pytest.skip(f"this machine lets nobody make network namespaces: {error.stderr.strip()}")
        for name, address in zip(names, (FIRST, SECOND), strict=True):
            ip("-n", name, "addr", "add", f"{address}/24", "dev", "eth0")
            for link in ("lo", "eth0"):
                ip("-n", name, "link", "set", link, "up")
        yield names[0], names[1]
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, timeout=10)


def inside(namespace: str) -> Sequence[str]:
    return "nsenter", f"--net=/run/netns/{namespace}"


def machine(folder: Path, *arguments: str, namespace: str = "") -> Peer:
    where = ["--nnodes", "2", "--rendezvous", RENDEZVOUS, "--secret-file", str(folder / "machines.key")]
    own = [*arguments, "--nproc", "1", *where, "--device", "cpu", "--threads", "1"]
    return Peer("replica", *own, inside=inside(namespace))


def digests_of_one_machine(folder: Path) -> dict[Part, str]:
    """What the same run comes to on one machine, in two processes, undisturbed."""
    with serving(RUN, folder / "alone") as ticket:
        own = ["--dir", str(folder / "alone" / "datacenter"), "--device", "cpu", "--threads", "2"]
        with Peer("replica", str(ticket), "--nproc", "2", *own) as replica:
            return replica.wait_for(Finished).digests


def test_a_machine_that_is_cut_off_in_the_midst_of_a_round_comes_back_and_the_state_is_that_of_one_machine(
    tmp_path: Path,
):
    with (
        two_namespaces() as (here, there),
        serving(RUN, tmp_path / "run", listen=f"{FIRST}:0", inside=inside(here)) as ticket,
        machine(tmp_path, str(ticket), "--dir", str(tmp_path / "datacenter"), namespace=here) as first,
    ):
        first.wait_for(Progress, lambda event: event.doing.startswith("waiting for machine 1 since"))
        with machine(tmp_path, "--node-rank", "1", namespace=there) as second:
            first.wait_for(StepDone, lambda event: (event.round, event.step) == (2, 0))
            computing = workers(first) + workers(second)
            ip("-n", there, "link", "set", "eth0", "down")
            again = ("going on from the start of round 2", "evaluating once more")  # if it was cut off so late
            lost = first.wait_for(Progress, lambda event: any(each in event.doing for each in again))
            silences = "has been silent for 3", "has taken nothing for 3"  # it was to speak, or to be spoken to
            assert lost.doing.startswith(tuple(f"machine 1 ({SECOND}): {SECOND} {silence}" for silence in silences))
            second.wait_for(Progress, lambda event: "waits for the first machine" in event.doing)
            assert len(computing) == 2
            assert gone(computing)
            ip("-n", there, "link", "set", "eth0", "up")
            digests = first.wait_for(Finished).digests
            assert second.process.wait(60) == first.process.wait(60) == 0
        assert [event.round for event in first.said if isinstance(event, RoundDone)] == [1, 2, 3]
        told = [event.doing for event in second.said if isinstance(event, Progress)]
        assert told.count(f"the first machine, {RENDEZVOUS}, has taken in machine 1") == 2
        assert told[-1] == "the run is over"
        assert not [event for event in (*first.said, *second.said) if isinstance(event, Failed)]
    assert digests == digests_of_one_machine(tmp_path)


WAITING = ["replica", "--nproc", "1", "--nnodes", "2", "--rendezvous", "127.0.0.1:1", "--device", "cpu"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_a_machine_that_waits_ends_as_it_is_told(number: signal.Signals, code: int, tmp_path: Path):
    (tmp_path / "key").write_text("k" * 64)
    (tmp_path / "key").chmod(0o600)
    with Peer(*WAITING, "--node-rank", "1", "--secret-file", str(tmp_path / "key")) as other:
        other.wait_for(Progress, lambda event: "waits for the first machine, 127.0.0.1:1, since" in event.doing)
        assert other.end(number) == code


def test_a_first_machine_that_waits_for_the_others_leaves_when_it_is_told(tmp_path: Path):
    with serving(RUN, tmp_path / "run") as ticket:
        where = ["--rendezvous", "127.0.0.1:0", "--secret-file", str(tmp_path / "key"), "--dir", str(tmp_path / "peer")]
        with Peer("replica", str(ticket), "--nnodes", "2", *where, "--device", "cpu", "--threads", "1") as first:
            first.wait_for(Progress, lambda event: event.doing.startswith("waiting for machine 1 since"))
            assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600
            assert first.end(signal.SIGINT) == 130


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (
            ["hetpeer1-abc", "--node-rank", "1", "--secret-file", "key"],
            "only the first machine, of rank 0, takes a ticket",
        ),
        (["--node-rank", "1", "--secret-file", "key"], "--secret-file key is missing: copy it from the first machine"),
        (["--node-rank", "2", "--secret-file", "key"], "--node-rank 2: of 2 machines, the ranks are 0 to 1"),
    ],
)
def test_what_a_machine_lacks_is_one_clear_line(more: list[str], words: str, tmp_path: Path):
    done = hetpeer(*WAITING, *more, folder=tmp_path)
    assert done.returncode in (2, 4), done.stdout + done.stderr
    assert words in done.stderr.splitlines()[-1]
