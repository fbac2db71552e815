"""The boundaries of the lab's groups: the protocol's by default, and what the paper's ablations make of them."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from peer.compute.replica import WholeReplica
from peer.lab.boundaries import GradientMoment, GroupBoundaries
from peer.lab.designs import group_design
from peer.lab.switches import Switches
from peer.model.embedding import FactoredEmbedding, split_embedding
from peer.model.number_format import DTYPES
from peer.model.subspace import SubspaceBoundary, nested
from peer.optim.grid import to_float
from protocol.identity import EMBEDDING
from protocol.layout import EMBEDDING_TENSOR, model_layout
from protocol.manifest import Manifest
from tests.reference.boundary import floats, orthonormal
from tests.reference.llama import random_tokens
from tests.reference.small_lab import play, small_lab
from tests.reference.small_manifest import small_manifest

CPU = torch.device("cpu")
WIRE = pytest.mark.parametrize("wire", ["bf16", "fp32"])
ANCHOR = pytest.mark.parametrize("anchor", ["complement", "embedding"])


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def begin(manifest: Manifest, switches: Switches, te: Tensor, seed: int = 0) -> GroupBoundaries:
    return GroupBoundaries.begin(manifest, switches, orthonormal(manifest.model.d, seed), te)


def table(manifest: Manifest, seed: int = 0) -> Tensor:
    """A token embedding [V, d]."""
    return normal(manifest.model.vocabulary, manifest.model.d, seed=seed)


@given(st.integers(1, 9), st.integers(0, 99))
@settings(max_examples=30)
def test_a_moment_is_that_of_every_fourth_microbatch_since_it_was_cleared(microbatches: int, seed: int):
    moment = GradientMoment(torch.zeros(4, 4))
    moment.watch(normal(2, 5, 4, seed=99))
    moment.clear()
    gradients = [normal(2, 5, 4, seed=seed + i) for i in range(microbatches)]
    for gradient in gradients:
        moment.watch(gradient)
    g_nD = torch.cat(gradients[::4]).flatten(0, 1)
    torch.testing.assert_close(moment.moment_DD, g_nD.T @ g_nD, rtol=1e-4, atol=1e-4)
    assert moment.count == len(g_nD)


def test_moments_are_as_exact_where_the_model_is_computed_in_bf16():
    exact, cast, gradient = GradientMoment(torch.zeros(8, 8)), GradientMoment(torch.zeros(8, 8)), normal(2, 10, 8)
    exact.watch(gradient)
    with torch.autocast("cpu", torch.bfloat16):
        cast.watch(gradient)
    assert torch.equal(exact.moment_DD, cast.moment_DD)


@WIRE
@ANCHOR
@given(st.integers(0, 99))
@settings(max_examples=20)
def test_by_default_a_boundary_gives_the_bits_of_the_protocols(anchor: str, wire: str, seed: int):
    manifest = small_manifest(replicas={"wire": wire, "anchor": anchor})
    te, tokens, x = table(manifest, seed), random_tokens(manifest, 2, 7, seed), normal(2, 7, 16, seed=seed + 1)
    u = nested(orthonormal(16, seed), manifest.k)
    protocols = SubspaceBoundary(u, te if anchor == "embedding" else split_embedding(te, u)[1], floats(DTYPES[wire]))
    ours = begin(manifest, Switches(), te, seed).boundaries(te)(0)
    assert torch.equal(
        ours.decode(ours.encode(x, tokens), tokens), protocols.decode(protocols.encode(x, tokens), tokens)
    )
    assert torch.equal(
        ours.decode_gradient(ours.encode_gradient(x)), protocols.decode_gradient(protocols.encode_gradient(x))
    )


@WIRE
@ANCHOR
def test_by_default_a_group_built_from_the_labs_parts_trains_to_the_protocols_bits(anchor: str, wire: str):
    manifest = small_manifest(replicas={"wire": wire, "stages": 3, "anchor": anchor})
    lab, basis = small_lab(manifest), orthonormal(16)
    te = to_float(lab.swarm.grids[EMBEDDING][EMBEDDING_TENSOR])
    group = begin(manifest, Switches(), te)
    ours = WholeReplica(manifest, "group", basis, CPU, group_design(manifest, Switches(), group))
    protocols = WholeReplica(manifest, "group", basis, CPU)
    for step in range(3):
        rows = lab.swarm.batch(1, step, 0)
        for replica in (ours, protocols):
            if step == 0:
                replica.load(lab.swarm.grids)
        assert ours.inner_step(rows, step) == protocols.inner_step(rows, step)
    moved, expected = ours.moved(), protocols.moved()
    assert all(torch.equal(moved[part][name], expected[part][name]) for part in expected for name in expected[part])


@pytest.mark.parametrize("adaptation", [True, False])
def test_what_boundaries_take_off_is_split_from_te_of_the_round_or_without_adaptation_of_the_genesis(adaptation: bool):
    manifest = small_manifest()
    genesis, te = table(manifest, 1), table(manifest, 2)
    group = begin(manifest, Switches(adaptation=adaptation), genesis)
    tokens, x, u = random_tokens(manifest, 2, 7), normal(2, 7, 16), nested(orthonormal(16), manifest.k)
    boundary = group.boundaries(te)(0)
    anchor = split_embedding(te if adaptation else genesis, u)[1]
    reference = SubspaceBoundary(u, anchor, floats(torch.bfloat16))
    assert torch.equal(
        boundary.decode(boundary.encode(x, tokens), tokens), reference.decode(reference.encode(x, tokens), tokens)
    )


def test_without_adaptation_the_genesis_anchor_outlives_the_rounds_that_move_te():
    lab = small_lab(small_manifest(inner={"learning_rate": 1e-2, "warmup": 0}), Switches(adaptation=False))
    group, u = lab.swarm.weights.group, nested(orthonormal(16), 4)
    assert group is not None
    genesis = to_float(lab.swarm.grids[EMBEDDING][EMBEDDING_TENSOR])
    play(lab, 2)
    te = to_float(lab.swarm.grids[EMBEDDING][EMBEDDING_TENSOR])
    assert not torch.equal(split_embedding(te, u)[1], split_embedding(genesis, u)[1])
    tokens, zero = torch.arange(300)[None], torch.zeros(1, 300, 4)
    assert torch.equal(group.boundaries(te)(0).decode(zero, tokens)[0], split_embedding(genesis, u)[1])


def missed(g: Tensor, u: Tensor) -> float:
    """Σ ‖G − G U Uᵀ‖²."""
    return float((g - g @ u @ u.T).square().sum())


@given(st.integers(0, 99))
@settings(max_examples=30)
def test_a_grassmann_step_turns_the_basis_towards_the_gradients_and_keeps_it_orthonormal(seed: int):
    manifest = small_manifest()
    te = table(manifest)
    group = begin(manifest, Switches(grassmann=3), te, seed)
    embedding = group_design(manifest, group.switches, group).embedding()
    assert isinstance(embedding, FactoredEmbedding)
    g = normal(4, 8, 16, seed=seed) * 2.0 ** -torch.arange(16)
    before = group.basis_dk.clone()
    for steps in range(3):
        loss = missed(g, group.basis_dk)
        group.boundaries(te)(0).encode_gradient(1e-5 * g)
        group.end_round(3)
        assert missed(g, group.basis_dk) < loss, steps
    turned = torch.linalg.matrix_norm(group.basis_dk - before @ (before.T @ group.basis_dk), 2)
    assert 0.05 < turned < 0.3
    assert bool(((group.basis_dk * before).sum(0) > 0.9).all())  # no column is turned over: Z's moments stay good
    torch.testing.assert_close(group.basis_dk.T @ group.basis_dk, torch.eye(4), rtol=0, atol=1e-6)
    assert embedding.basis_dk is group.basis_dk
    boundary = group.boundaries(te)(0)
    assert isinstance(boundary, SubspaceBoundary)
    assert boundary.basis_dk is group.basis_dk


def test_the_basis_is_moved_only_after_so_many_inner_steps_by_all_gradients_since():
    manifest = small_manifest()
    te = table(manifest)
    patient, informed = (begin(manifest, Switches(grassmann=4), te) for _ in range(2))
    start = patient.basis_dk.clone()
    first, second = normal(4, 8, 16, seed=1), normal(4, 8, 16, seed=2)
    patient.boundaries(te)(0).encode_gradient(first)
    patient.end_round(3)
    assert torch.equal(patient.basis_dk, start)
    for _ in range(4):  # every fourth microbatch is looked at
        patient.boundaries(te)(0).encode_gradient(second)
    patient.end_round(3)
    informed.boundaries(te)(0).encode_gradient(torch.cat([first, second]))
    informed.end_round(4)
    assert not torch.equal(patient.basis_dk, start)
    torch.testing.assert_close(patient.basis_dk, informed.basis_dk)
    assert all(moment.count == 0 for moment in patient.moments)


def test_a_basis_that_moves_takes_the_token_embeddings_subspace_with_it():
    """T_S of each round lies in that round's Col(U): Δ of a compressed replica has no other part."""
    manifest = small_manifest(inner={"learning_rate": 1e-2, "warmup": 0})
    lab = small_lab(manifest, Switches(grassmann=1))
    group = lab.swarm.weights.group
    assert group is not None
    bases = [group.basis_dk.clone()]
    for round in (1, 2):
        lab.swarm.inner_loop(lab.swarm.replicas[0], round, {}, lambda event: None)
        moved = lab.swarm.weights.wholes["group"].moved()[EMBEDDING][EMBEDDING_TENSOR]
        u = bases[-1]
        torch.testing.assert_close(moved @ u @ u.T, moved, rtol=0, atol=1e-6)
        group.end_round(3)
        bases.append(group.basis_dk.clone())
        assert not torch.allclose(moved @ bases[-1] @ bases[-1].T, moved, rtol=0, atol=1e-5)


def test_an_evaluation_moves_nothing():
    manifest = small_manifest()
    te = table(manifest)
    group = begin(manifest, Switches(grassmann=3), te)
    group.boundaries(te, watched=False)(0).encode_gradient(normal(2, 7, 16))
    assert [moment.seen for moment in group.moments] == [0]
    group.boundaries(te)(0).encode_gradient(normal(2, 7, 16))
    assert [moment.seen for moment in group.moments] == [1]


def test_each_boundary_has_a_moment_of_its_own():
    manifest = small_manifest(replicas={"stages": 3})
    te = table(manifest)
    group = begin(manifest, Switches(grassmann=3), te)
    boundaries = group.boundaries(te)
    boundaries(1).encode_gradient(normal(2, 7, 16))
    assert [moment.seen for moment in group.moments] == [0, 1]


def test_a_model_of_one_stage_has_no_boundary_and_trains():
    lab = small_lab(small_manifest(replicas={"stages": 1}), Switches(grassmann=1))
    before = {part: {name: tensor.clone() for name, tensor in grid.items()} for part, grid in lab.swarm.grids.items()}
    play(lab, 1)
    for part, layout in model_layout(lab.swarm.manifest).items():
        assert any(not torch.equal(lab.swarm.grids[part][name], before[part][name]) for name in layout)
