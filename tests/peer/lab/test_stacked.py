"""Replicas that train at once against the same ones, which train one after another."""

from pathlib import Path

import pytest
import torch

from peer.lab.reference_run import Lab, load_lab, save_lab
from peer.lab.stacked import StackedReplica, orthogonals, stackable
from peer.lab.switches import Switches
from peer.optim.muon import orthogonal
from peer.telemetry.events import Evaluated, StepDone
from protocol.manifest import Manifest
from tests.reference.small_lab import small_lab
from tests.reference.small_manifest import small_manifest

TOLERANCE = 5e-3
"""Of Δ, relative to its norm: sums have another order, and early steps of AdamW go by signs."""


def manifest(optimizer: str = "adamw", **replicas) -> Manifest:
    """Two microbatches a step; gradients that are clipped; Muon in the subspace, where it is Muon."""
    return small_manifest(
        model={"layers": 4, "heads": 2, "kv_heads": 1},
        replicas={"groups": 3, "datacenters": 2, "stages": 2} | replicas,
        inner={
            "steps": 3, "learning_rate": 1e-2, "warmup": 2, "clip": 0.5, "sequences": 4, "microbatch": 2,
            "optimizer": optimizer, "subspace_steps": optimizer == "muon",
        },
        outer={"rounds": 3, "top_k": 1024},
    )  # fmt: skip


def moved(lab: Lab) -> list[dict[str, torch.Tensor]]:
    """Δ of every tensor of each replica after a round's inner loops, in the order of the slots."""
    return [
        {f"{part}/{name}": each.moved[part][name] for part in each.moved for name in each.moved[part]}
        for each in lab.bench.trained(1, lambda replica: {}, lambda event: None)
    ]


SWITCHES = [
    {},
    {"late": 1},
    {"late": 1, "lookahead": True, "clip": "stage"},
    {"payload": "4bit"},
    {"anchors": "bigrams", "codec": "learned"},
    {"anchors": "convolution", "anchor_width": 3},
]


@pytest.mark.parametrize(
    ("switches", "replicas"),
    [*((each, {}) for each in SWITCHES), ({"payload": "4bit"}, {"anchor": "embedding"}), ({}, {"ngrams": 3})],
    ids=str,
)
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_each_replica_moves_as_it_does_alone(optimizer: str, switches: dict, replicas: dict):
    run, own = manifest(optimizer, **replicas), Switches(**switches)
    alone, at_once = small_lab(run, own), small_lab(run, own, stacked=True)
    assert at_once.bench.workshop.stacks.keys() == {"group", "datacenter"}
    for slot, (expected, found) in enumerate(zip(moved(alone), moved(at_once), strict=True)):
        assert expected.keys() == found.keys()
        for name, delta in expected.items():
            assert delta.abs().max() > 0, name
            error = (found[name] - delta).norm() / delta.norm()
            assert error < TOLERANCE, f"replica {slot}, {name}: {error}"
    for one, other in zip(alone.bench.replicas, at_once.bench.replicas, strict=True):
        for ours, theirs in zip(one.optimizers, other.optimizers, strict=True):
            for name, state in ours.tensors().items():
                assert (theirs.tensors()[name] - state).norm() <= 1e-2 * state.norm() + 1e-6, name


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_run_learns_as_one_of_replicas_in_turn(optimizer: str):
    run = manifest(optimizer)
    alone, at_once = losses(small_lab(run, Switches())), losses(small_lab(run, Switches(), stacked=True))
    assert at_once == pytest.approx(alone, abs=5e-4)
    assert alone[-1] < alone[0]


def losses(lab: Lab, rounds: tuple[int, ...] = (1, 2, 3)) -> list[float]:
    """Loss through the boundaries after each round."""
    said: list[float] = []
    for round in rounds:
        lab.round(round, lambda event: said.append(event.loss) if isinstance(event, Evaluated) else None)
    return said


def test_what_was_saved_goes_on_as_if_it_had_not_been(tmp_path: Path):
    run, path = manifest("muon"), tmp_path / "state"
    whole, first, second = (small_lab(run, Switches(), stacked=True) for _ in range(3))
    expected = losses(whole)
    losses(first, (1,))
    save_lab(first, path, None)
    load_lab(second, path)
    assert losses(second, (2, 3)) == expected[1:]


def test_a_step_is_told_once_for_all_that_take_it():
    run, heard = manifest(datacenters=0), list[StepDone]()
    lab = small_lab(run, Switches(), stacked=True)
    lab.round(1, lambda event: heard.append(event) if isinstance(event, StepDone) else None, evaluate=False)
    assert [event.step for event in heard] == [0, 1, 2]
    assert {event.tokens for event in heard} == {3 * run.tokens_per_step}


def test_matrices_of_all_shapes_get_the_steps_that_each_would_get_alone():
    torch.manual_seed(0)
    shapes = [(2, 8, 8), (2, 24, 8), (2, 8, 24), (2, 8, 8)]
    matrices = [torch.randn(shape) for shape in shapes]
    for many, found in zip(matrices, orthogonals(matrices), strict=True):
        for one, step in zip(many, found, strict=True):
            assert torch.allclose(step, orthogonal(one), atol=1e-5)


@pytest.mark.parametrize(
    "switches",
    [
        {"clip": "stage", "paths": "loose"},
        {"embedding": "project"},
        {"second_moment": "columns"},
        {"weight_projection": True},
        {"basis": "fitted"},
        {"method": "adamw"},
    ],
    ids=str,
)
def test_who_does_something_of_their_own_trains_alone(switches: dict):
    run, own = manifest(anchor="embedding" if "basis" in switches else "complement"), Switches(**switches)
    assert stackable(run, Switches())
    assert not stackable(run, own)
    assert not small_lab(run, own, stacked=True).bench.workshop.stacks


def test_a_wide_model_fills_a_gpu_by_itself():
    assert not stackable(small_manifest(model={"d": 1024, "heads": 8}), Switches())


def test_a_replica_keeps_its_state_in_the_stack():
    lab = small_lab(manifest(), Switches(), stacked=True)
    moved(lab)
    stack = lab.bench.workshop.stacks["group"]
    assert isinstance(stack, StackedReplica)
    for copy, replica in enumerate(lab.bench.replicas[:3]):
        for stage, own in zip(stack.stages, replica.optimizers, strict=True):
            assert torch.equal(own.state["exp_avg"][0], stage.optimizer.state["exp_avg"][0][copy])
