"""Replicas that train at once against the same ones, which train one after another."""

from pathlib import Path

import pytest
import torch

from examples.experiments.saved import load_lab, save_lab
from examples.experiments.stacked import StackedSwarm, hasten, orthogonals, stackable
from peer.lab.reference_run import Lab
from peer.lab.switches import Switches
from peer.optim.muon import orthogonal
from protocol.events.activity import Evaluated, StepDone
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
        for each in lab.swarm.trained(1, lambda replica: {}, lambda event: None)
    ]


def stacked(run: Manifest) -> Lab:
    """A small lab whose replicas train at once."""
    lab = small_lab(run, Switches())
    hasten(lab)
    assert isinstance(lab.swarm, StackedSwarm)
    return lab


@pytest.mark.parametrize("replicas", [{}, {"wire": "int4", "anchor": "embedding"}, {"ngrams": 3}], ids=str)
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_each_replica_moves_as_it_does_alone(optimizer: str, replicas: dict):
    run = manifest(optimizer, **replicas)
    alone, at_once = small_lab(run), stacked(run)
    for slot, (expected, found) in enumerate(zip(moved(alone), moved(at_once), strict=True)):
        assert expected.keys() == found.keys()
        for name, delta in expected.items():
            assert delta.abs().max() > 0, name
            error = (found[name] - delta).norm() / delta.norm()
            assert error < TOLERANCE, f"replica {slot}, {name}: {error}"
    for one, other in zip(alone.swarm.replicas, at_once.swarm.replicas, strict=True):
        for ours, theirs in zip(one.optimizers, other.optimizers, strict=True):
            for name, state in ours.tensors().items():
                assert (theirs.tensors()[name] - state).norm() <= 1e-2 * state.norm() + 1e-6, name


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_run_learns_as_one_of_replicas_in_turn(optimizer: str):
    run = manifest(optimizer)
    alone, at_once = losses(small_lab(run, Switches())), losses(stacked(run))
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
    whole, first, second = (stacked(run) for _ in range(3))
    expected = losses(whole)
    losses(first, (1,))
    save_lab(first, path, None)
    load_lab(second, path)
    assert losses(second, (2, 3)) == expected[1:]


def test_a_step_is_told_once_for_all_that_take_it():
    run, heard = manifest(datacenters=0), list[StepDone]()
    lab = stacked(run)
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
        {"speeds": "1:1:1:1:2"},
        {"embedding": "project"},
        {"second_moment": "columns"},
        {"weight_projection": True},
        {"method": "adamw"},
    ],
    ids=str,
)
def test_a_run_whose_replicas_do_something_of_their_own_is_not_stacked(switches: dict):
    assert stackable(manifest(), Switches())
    assert not stackable(manifest(), Switches(**switches))


def test_a_wide_model_fills_a_gpu_by_itself():
    assert not stackable(small_manifest(model={"d": 1024, "heads": 8}), Switches())


def test_a_replica_keeps_its_state_in_the_stack():
    lab = stacked(manifest())
    moved(lab)
    assert isinstance(lab.swarm, StackedSwarm)
    stack = lab.swarm.stacks["group"]
    for copy, replica in enumerate(lab.swarm.replicas[:3]):
        for stage, own in zip(stack.stages, replica.optimizers, strict=True):
            assert torch.equal(own.state["exp_avg"][0], stage.optimizer.state["exp_avg"][0][copy])
