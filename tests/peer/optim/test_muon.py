"""Muon against what it is: singular vectors, and torch's own."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from peer.compute.design import Kind
from peer.compute.replica import WholeReplica
from peer.compute.trainer import StageTrainer
from peer.model.subspace import nested
from peer.optim.inner import AdamW
from peer.optim.muon import COEFFICIENTS, ITERATIONS, MOMENTUM, Muon, make_optimizer, orthogonal, step_scale
from protocol.identity import stage_part
from protocol.layout import is_layer_matrix, part_layout, writes_residual
from protocol.manifest_tables import Inner
from tests.reference.boundary import orthonormal
from tests.reference.small_lab import small_lab
from tests.reference.small_manifest import small_manifest

SHAPES = [(1, 1), (3, 5), (7, 2), (16, 16), (24, 40)]


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def quintic(value: float) -> float:
    """What the iteration makes of one singular value."""
    a, b, c = COEFFICIENTS
    for _ in range(ITERATIONS):
        value = a * value + b * value**3 + c * value**5
    return value


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@given(seed=st.integers(0, 99), scale=st.sampled_from([1e-3, 1.0, 1e3]))
@settings(max_examples=20)
def test_singular_vectors_stay_and_each_singular_value_goes_its_way(shape: tuple[int, int], seed: int, scale: float):
    matrix = scale * normal(*shape, seed=seed)
    left, values, right = torch.linalg.svd(matrix.double(), full_matrices=False)
    gone = torch.tensor([quintic(float(value)) for value in values / values.norm()], dtype=torch.float64)
    assert torch.allclose(orthogonal(matrix).double(), left @ gone.diag() @ right, atol=2e-4)


def test_singular_values_that_are_not_tiny_come_near_one():
    for value in torch.linspace(0.01, 1, 200).tolist():
        assert 0.6 < quintic(value) < 1.3


def test_nothing_has_no_direction():
    assert not orthogonal(torch.zeros(3, 4)).any()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_its_steps_are_those_of_torchs_own(shape: tuple[int, int]):
    """Which computes directions in bf16."""
    inner, start, rate = Inner(weight_decay=0.1), normal(*shape, seed=1), 1e-2
    ours, theirs = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    own = Muon([ours], inner, hidden=frozenset({0}))
    other = torch.optim.Muon(
        [theirs], lr=rate, weight_decay=0.1, momentum=MOMENTUM, nesterov=True, adjust_lr_fn="match_rms_adamw"
    )
    for step in range(5):
        gradient = normal(*shape, seed=10 + step)
        ours.grad, theirs.grad = gradient.clone(), 0.3 * gradient
        own.update(0.3, rate)
        other.step()
        assert ours.grad is not None
        assert not ours.grad.any()
    assert own.steps == 5
    far = 5 * rate * step_scale(ours.shape) * math.sqrt(min(shape))  # of five steps, all in one direction
    assert (ours - theirs).norm().item() < 0.02 * far
    assert (theirs - start).norm().item() > 0.1 * far or shape == (1, 1)


def test_what_is_not_hidden_takes_adamws_steps_and_the_state_can_be_taken_up():
    inner, starts = Inner(), [normal(3, 5, seed=1), normal(7, seed=2), normal(4, 6, seed=3)]
    mine = [nn.Parameter(start.clone()) for start in starts]
    again = [nn.Parameter(start.clone()) for start in starts]
    plain = [nn.Parameter(start.clone()) for start in starts]
    ours, protocols = Muon(mine, inner, hidden=frozenset({2})), AdamW(plain, inner)
    for step in range(6):
        for parameters, each in ((mine, ours), (plain, protocols)):
            for i, parameter in enumerate(parameters):
                parameter.grad = normal(*parameter.shape, seed=10 * step + i)
            each.update(0.5, 1e-2)
        if step == 2:
            later = Muon(again, inner, hidden=frozenset({2}))
            later.load(ours.tensors())
            for parameter, now in zip(again, mine, strict=True):
                parameter.data.copy_(now)
        if step > 2:
            for i, parameter in enumerate(again):
                parameter.grad = normal(*parameter.shape, seed=10 * step + i)
            later.update(0.5, 1e-2)
    assert torch.equal(mine[0], plain[0])
    assert torch.equal(mine[1], plain[1])
    assert not torch.allclose(mine[2], plain[2])
    assert all(torch.equal(one, other) for one, other in zip(mine, again, strict=True))
    assert ours.shapes == protocols.shapes | {"2.exp_avg_sq": (0,)}
    assert {name: tuple(each.shape) for name, each in ours.tensors().items()} == ours.shapes


def test_hidden_are_the_matrices_of_layers_and_neither_head_nor_embedding_nor_norms():
    manifest = small_manifest(inner={"optimizer": "muon"}, replicas={"groups": 0})
    kinds = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    for index in range(manifest.replicas.stages):
        own = StageTrainer(manifest, index, "datacenter", None, torch.device("cpu")).optimizer
        assert isinstance(own, Muon)
        names = [*part_layout(manifest, stage_part(index)), "embedding"]
        chosen = {names[i] for i in own.hidden}
        assert {name.split(".")[-2] for name in chosen} == set(kinds)
        assert all(name.startswith("model.layers.") for name in chosen)


def test_a_step_within_a_subspace_is_that_of_the_matrixs_coordinates_in_it():
    """W = U A: what moves is A [k, inputs], by Muon's own step."""
    inner, basis, rate = Inner(weight_decay=0), torch.linalg.qr(normal(24, 6, seed=3)).Q, 1e-2
    start, coordinates = normal(24, 40, seed=1), nn.Parameter(torch.zeros(6, 40))
    whole = nn.Parameter(start.clone())
    ours = Muon([whole], inner, hidden=frozenset({0}), within={0: basis})
    theirs = Muon([coordinates], inner, hidden=frozenset({0}))
    for step in range(4):
        gradient = normal(24, 40, seed=10 + step)
        whole.grad, coordinates.grad = gradient.clone(), basis.T @ gradient
        ours.update(0.3, rate)
        theirs.update(0.3, rate)
    assert torch.allclose(whole - start, basis @ coordinates, atol=1e-5)
    assert coordinates.abs().max() > rate


@pytest.mark.parametrize(
    ("kind", "replicas", "stays"),
    [
        ("group", {}, True),
        ("group", {"compression": "auto"}, True),
        ("datacenter", {}, False),
    ],
)
def test_what_a_group_writes_before_a_boundary_stays_in_the_subspace_and_nothing_else(
    kind: Kind, replicas: dict, stays: bool
):
    manifest = small_manifest(
        inner={"optimizer": "muon", "subspace_steps": True, "weight_decay": 0, "warmup": 0, "learning_rate": 1e-2},
        replicas={"stages": 2} | replicas,
    )
    lab, basis = small_lab(manifest), orthonormal(manifest.model.d)
    replica = WholeReplica(manifest, kind, basis, torch.device("cpu"))
    for stage in replica.stages if replicas.get("compression") == "auto" else ():
        stage.compress(manifest.compressions[-1], lab.swarm.grids)
    replica.load(lab.swarm.grids)
    for step in range(3):
        replica.inner_step(lab.swarm.batch(1, step, 0), step)
    u = nested(basis, manifest.k)
    for stage in range(2):
        for name, moved in replica.moved()[stage_part(stage)].items():
            if is_layer_matrix(name, tuple(moved.shape)) and len(moved) == manifest.model.d:
                outside = (moved - u @ (u.T @ moved)).norm() / moved.norm()
                assert (outside < 1e-3) == (stays and stage == 0 and writes_residual(manifest.model, name)), name


def test_adamw_is_the_manifests_where_it_says_nothing():
    found = make_optimizer([nn.Parameter(torch.zeros(2, 2))], ["model.layers.0.mlp.up_proj.weight"], small_manifest())
    assert type(found) is AdamW
