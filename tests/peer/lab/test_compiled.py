"""Compiled layers compute what the others do, to within rounding."""

import shutil

import pytest
import torch

from peer.lab.reference_run import Lab
from peer.lab.switches import Switches
from protocol.events.activity import Evaluated
from tests.reference.small_lab import small_lab
from tests.reference.small_manifest import small_manifest


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch compiles for the CPU with g++")
@pytest.mark.filterwarnings("default")  # torch's compiler warns of itself
def test_a_lab_with_compiled_layers_has_the_same_losses_within_rounding():
    run = small_manifest(
        model={"layers": 2},
        replicas={"groups": 1, "datacenters": 1, "stages": 2},
        inner={"steps": 2, "learning_rate": 1e-2, "warmup": 1},
    )
    plain, compiled = small_lab(run, Switches()), small_lab(run, Switches())
    for replica in compiled.swarm.weights.wholes.values():
        replica.compile_layers()
    compiled.evaluator.compile()
    expected = losses(plain)
    assert losses(compiled) == pytest.approx(expected, abs=1e-4)
    assert expected[0] != expected[-1]
    torch._dynamo.reset()


def losses(lab: Lab) -> list[float]:
    """Plain loss after each of two rounds."""
    said: list[float] = []
    for round in (1, 2):
        lab.round(round, lambda event: said.append(event.loss_plain) if isinstance(event, Evaluated) else None)
    return said
