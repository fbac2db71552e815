"""A swarm of processes against the lab, bit by bit, for what a testnet does not try."""

from pathlib import Path

import pytest
import torch

from bootstrap.genesis import load_run
from peer.lab.reference_run import Lab
from protocol.events.activity import Evaluated, RoundDone
from protocol.events.event import Event
from protocol.run.run_files import Descriptor
from tests.reference.processes import finish, serving, start

RUN = """
[model]
preset = "pico"
kv_heads = 2
[replicas]
groups = 1
stages = 2
{replicas}
[inner]
steps = 4
sequences = 6
microbatch = 2
learning_rate = 3e-3
warmup = 4
{inner}
[outer]
rounds = 4
patience = 100.0
{outer}
"""
"""Its rounds last for longer than news of them takes: else who only watches goes on with what it has heard of. Whoever
is slow is waited for: what is compared is the mathematics, on a machine however busy."""

VARIANTS = {
    "integers between stages, medians, a stage with most layers, n-gram tables": (
        'layers = [1, 3]\ncompression = 2\nwire = "int4"\ngradient_wire = "int8"\nngrams = 2\nngram_width = 12',
        "",
        'clip = "median"\naggregate = "senders"',
    ),
    "overlap of steps and of rounds, Muon, an observer evaluates": (
        "datacenters = 0\nngrams = 3",
        'optimizer = "muon"\noverlap = 2',
        'overlap = true\nvalues = "2bit"',
    ),
}
"""Each choice for itself: `tests/world/test_parity.py`, in virtual time."""


def lab(descriptor: Descriptor, folder: Path) -> list[Event]:
    torch.set_num_threads(1)
    said: list[Event] = []
    Lab.open(descriptor, folder, torch.device("cpu")).run(said.append)
    return said


@pytest.mark.parametrize("variant", VARIANTS)
def test_losses_and_digests_are_the_labs(tmp_path: Path, variant: str):
    replicas, inner, outer = VARIANTS[variant]
    with serving(RUN.format(replicas=replicas, inner=inner, outer=outer), tmp_path / "run") as ticket:

        def peer(*arguments: str):
            where = ["--dir", str(tmp_path / "-".join(arguments)), "--device", "cpu", "--threads", "1"]
            return start(arguments[0], str(ticket), *arguments[1:], *where)

        whole = "observe" if "observer" in variant else "replica"
        swarm = finish(
            [peer("join", "--stage", "0"), peer("join", "--stage", "1", "--memory", "recompute"), peer(whole)]
        )
        expected = lab(load_run(tmp_path / "run" / "b"), tmp_path / "run" / "b")
    rounds = {event.round: event for event in expected if isinstance(event, RoundDone)}
    assert len(rounds) == 4
    for process in swarm:
        done = [event for event in process if isinstance(event, RoundDone)]
        assert [event.round for event in done] == [1, 2, 3, 4]
        for event in done:
            assert event.digests.items() <= rounds[event.round].digests.items(), process
            assert event.contributions.items() <= rounds[event.round].contributions.items(), process
    evaluated = [event for event in swarm[2] if isinstance(event, Evaluated)]
    assert evaluated == [event for event in expected if isinstance(event, Evaluated)]
