"""The boundaries of the lab's groups: the protocol's by default, what the switches make of them, and what their
bytes say."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from peer.compute.replica import WholeReplica
from peer.lab.boundaries import (
    GAUSSIAN_STEPS,
    MOST_BITS,
    Coder,
    GroupBoundaries,
    Spectrum,
    allocate,
)
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

MAX_TABLE = {1: 0.3634, 2: 0.1188, 3: 0.03744, 4: 0.01154, 5: 0.003495}
"""Mean squared errors of the best uniform quantizers of a normal variable (Max, 1960, table 2)."""

widths = st.integers(2, 24).flatmap(lambda d: st.tuples(st.just(d), st.integers(1, d)))


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def basis(d: int, k: int, seed: int) -> Tensor:
    return orthonormal(d, seed)[:, :k].contiguous()


@given(widths, st.sampled_from([torch.bfloat16, torch.float32]), st.integers(0, 99))
def test_plain_coordinates_are_the_projection_rounded_to_the_wires_format(sizes, dtype, seed: int):
    u, x = basis(*sizes, seed), normal(2, 3, sizes[0], seed=seed + 1)
    assert torch.equal(Coder(u, dtype)(x), (x @ u).to(dtype).float() @ u.T)


def nearest(unit: list[float], bits: list[int], scale: float) -> list[float]:
    """Each number as the nearest of its 2^bits levels (… −½, ½, 1½ …) · step · scale."""
    read = []
    for value, b in zip(unit, bits, strict=True):
        levels = [(cell + 0.5) * GAUSSIAN_STEPS[b] * scale for cell in range(-(2**b // 2), 2**b // 2)]
        read.append(min(levels, key=lambda level: abs(level - value), default=0.0))
    return read


@given(widths, st.data(), st.integers(0, 99))
@settings(max_examples=50)
def test_each_quantized_coordinate_is_read_as_the_nearest_level_of_its_bits(sizes, data, seed: int):
    d, k = sizes
    bits = data.draw(st.lists(st.integers(0, MOST_BITS), min_size=k, max_size=k).filter(any))
    deviation = data.draw(st.sampled_from([torch.ones(k), normal(k, seed=seed).exp()]))
    u, x = basis(d, k, seed), normal(3, d, seed=seed + 1)
    read = Coder(u, torch.bfloat16, torch.tensor(bits), deviation)(x) @ u / deviation
    for unit, row in zip(x @ u / deviation, read, strict=True):
        told = [value for value, b in zip(unit.tolist(), bits, strict=True) if b]
        scale = math.sqrt(sum(value**2 for value in told) / len(told))
        # In another order of summing, the scale's last bit may be another: one of its two neighbours is right.
        scales = {torch.tensor(scale * (1 + little)).bfloat16().item() for little in (-1e-6, 1e-6)}
        expected = [torch.tensor(nearest(unit.tolist(), bits, each)) for each in scales]
        # On an edge between two levels either is right: what counts is how far off it is.
        off = [((row - unit).abs() - (each - unit).abs()).abs().max().item() for each in expected]
        assert min(off) <= 1e-4 * scale


@pytest.mark.parametrize("bits", range(1, MOST_BITS + 1))
def test_the_steps_are_those_of_least_error_for_a_normal_variable(bits: int):
    at = torch.linspace(-9, 9, 360_001, dtype=torch.float64)
    density = torch.exp(-(at**2) / 2) / math.sqrt(2 * math.pi) * (at[1] - at[0])

    def error(step: float) -> float:
        half = 2 ** (bits - 1)
        read = ((at / step).floor().clamp(-half, half - 1) + 0.5) * step
        return ((at - read) ** 2 * density).sum().item()

    step = GAUSSIAN_STEPS[bits]
    assert error(step) < error(step * 0.99)
    assert error(step) < error(step * 1.01)
    assert error(step) == pytest.approx(MAX_TABLE.get(bits, error(step)), rel=2e-3)
    measured = Coder(torch.eye(512), torch.bfloat16, torch.full((512,), bits))(x := normal(400, 512, seed=bits))
    assert (measured - x).square().mean().item() == pytest.approx(error(step), rel=0.03)


@given(widths, st.data(), st.integers(0, 99))
def test_residuals_are_the_largest_entries_of_what_is_left_in_bf16(sizes, data, seed: int):
    d, k = sizes
    count = data.draw(st.integers(1, d))
    bits = data.draw(st.sampled_from([None, torch.full((k,), 4)]))
    u, x = basis(d, k, seed), normal(3, d, seed=seed + 1)
    expected = Coder(u, torch.bfloat16, bits)(x)
    for x_D, row in zip(x, expected, strict=True):
        rest = (x_D - row).tolist()
        for place in sorted(range(d), key=lambda i: -abs(rest[i]))[:count]:
            row[place] += torch.tensor(rest[place]).bfloat16().float()
    assert torch.equal(Coder(u, torch.bfloat16, bits, residuals=count)(x), expected)


@pytest.mark.parametrize("bits", [None, 1, 8])
def test_nothing_is_read_as_nothing(bits: int | None):
    coder = Coder(torch.eye(6), torch.bfloat16, None if bits is None else torch.full((6,), bits), residuals=2)
    assert torch.equal(coder(torch.zeros(2, 6)), torch.zeros(2, 6))


@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=3), st.integers(1, 9))
def test_bits_go_where_no_other_choice_leaves_less_error(variances: list[float], budget: int):
    """Σ σ² 4^−b, the error of ideal quantizers, against all ways to give out the bits."""

    def error(bits) -> float:
        return sum(variance / 4**b for variance, b in zip(variances, bits, strict=True))

    budget = min(budget, MOST_BITS * len(variances))
    every = itertools.product(range(MOST_BITS + 1), repeat=len(variances))
    least = min(error(bits) for bits in every if sum(bits) == budget)
    bits = allocate(torch.tensor(variances, dtype=torch.float64), budget).tolist()
    assert sum(bits) == budget
    assert error(bits) == pytest.approx(least)


@given(st.lists(st.floats(0, 1e3), min_size=1, max_size=40), st.integers(0, 500))
def test_no_coordinate_has_more_bits_than_there_are_steps_for(variances: list[float], budget: int):
    bits = allocate(torch.tensor(variances), budget)
    assert int(bits.max()) <= MOST_BITS
    assert int(bits.sum()) == min(budget, MOST_BITS * len(variances))


def scaled(d: int, seed: int, tokens: int = 10) -> Tensor:
    """[2, tokens, d] with variances that are far apart, in no axis's direction."""
    return normal(2, tokens, d, seed=seed) * 2.0 ** -torch.arange(d) @ orthonormal(d, seed)


@given(st.integers(2, 8), st.integers(1, 9), st.integers(0, 99))
@settings(max_examples=30)
def test_directions_are_those_of_the_singular_values_of_every_fourth_microbatch(d: int, microbatches: int, seed: int):
    spectrum = Spectrum(torch.zeros(d, d))
    data = [scaled(d, seed + i) for i in range(microbatches)]
    for x in data:
        spectrum.watch(x)
    x_nD = torch.cat(data[::4]).flatten(0, 1).double()
    _, singular, v = torch.linalg.svd(x_nD, full_matrices=False)
    directions, variances = spectrum.directions()
    assert spectrum.count == len(x_nD)
    torch.testing.assert_close(variances.double(), singular**2 / len(x_nD), rtol=1e-3, atol=1e-6 * float(variances[0]))
    torch.testing.assert_close(directions.T @ directions, torch.eye(d), rtol=0, atol=1e-5)
    overlap = (directions.double() * v.T).sum(0).abs()
    torch.testing.assert_close(overlap, torch.ones(d, dtype=torch.float64), rtol=0, atol=1e-2)


@given(st.integers(2, 8), st.integers(0, 99))
def test_variances_in_another_basis_are_those_of_the_coordinates_there(d: int, seed: int):
    spectrum, x, u = Spectrum(torch.zeros(d, d)), scaled(d, seed), basis(d, (d + 1) // 2, seed + 1)
    spectrum.watch(x)
    torch.testing.assert_close(spectrum.variances(u), (x @ u).square().flatten(0, 1).mean(0), rtol=1e-3, atol=1e-6)


def test_what_is_seen_after_clearing_is_all_that_counts():
    spectrum, x = Spectrum(torch.zeros(4, 4)), scaled(4, 1)
    for _ in range(3):
        spectrum.watch(scaled(4, 0))
    spectrum.clear()
    spectrum.watch(x)
    torch.testing.assert_close(spectrum.moment_DD, x.flatten(0, 1).T @ x.flatten(0, 1))
    assert spectrum.count == 20


def test_nothing_seen_has_no_variance():
    assert torch.equal(Spectrum(torch.zeros(3, 3)).directions()[1], torch.zeros(3))


def test_moments_are_as_exact_where_the_model_is_computed_in_bf16():
    exact, cast, x = Spectrum(torch.zeros(8, 8)), Spectrum(torch.zeros(8, 8)), scaled(8, 3)
    exact.watch(x)
    with torch.autocast("cpu", torch.bfloat16):
        cast.watch(x)
    assert torch.equal(exact.moment_DD, cast.moment_DD)


CPU = torch.device("cpu")
WIRE = pytest.mark.parametrize("wire", ["bf16", "fp32"])
ANCHOR = pytest.mark.parametrize("anchor", ["complement", "embedding"])
PAYLOADS = ["wire", "8bit", "4bit", "3bit", "2bit"]
FITTED = {"basis": "fitted"}
FREE = {"anchor": "embedding"}


def begin(manifest: Manifest, switches: Switches, te: Tensor, seed: int = 0) -> GroupBoundaries:
    return GroupBoundaries.begin(manifest, switches, orthonormal(manifest.model.d, seed), te)


def table(manifest: Manifest, seed: int = 0) -> Tensor:
    """A token embedding [V, d]."""
    return normal(manifest.model.vocabulary, manifest.model.d, seed=seed)


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
    te = to_float(lab.bench.grids[EMBEDDING][EMBEDDING_TENSOR])
    group = begin(manifest, Switches(), te)
    ours = WholeReplica(manifest, "group", basis, CPU, group_design(manifest, Switches(), group))
    protocols = WholeReplica(manifest, "group", basis, CPU)
    for step in range(3):
        rows = lab.bench.batch(1, step, 0)
        for replica in (ours, protocols):
            if step == 0:
                replica.load(lab.bench.grids)
        assert ours.inner_step(rows, step) == protocols.inner_step(rows, step)
    moved, expected = ours.moved(), protocols.moved()
    assert all(torch.equal(moved[part][name], expected[part][name]) for part in expected for name in expected[part])


@pytest.mark.parametrize("residuals", [0, 1])
@pytest.mark.parametrize(
    ("payload", "more"),
    [*((payload, more) for payload in PAYLOADS for more in ({}, FITTED)), ("allocated", FITTED)],
    ids=str,
)
def test_a_token_never_takes_more_bytes_than_k_numbers_in_bf16(payload: str, more: dict[str, str], residuals: int):
    manifest = small_manifest(model={"d": 32}, replicas={"compression": 4} | (FREE if more else {}))
    te = table(manifest)
    group = begin(manifest, Switches(payload=payload, residuals=residuals, **more), te)  # type: ignore[arg-type]
    limit, loosest = 2 * manifest.k, (2 * manifest.k * 8 - 16 - residuals * 21) // 16
    assert loosest <= group.bytes_per_token <= limit
    boundary, tokens = group.boundaries(te)(0), random_tokens(manifest, 8, 8)
    boundary.encode(normal(8, 8, 32) * torch.arange(32), tokens)
    boundary.encode_gradient(normal(8, 8, 32) * torch.arange(32))
    group.end_round(3)
    assert loosest <= group.bytes_per_token <= limit
    assert payload != "allocated" or group.bytes_per_token == limit


def low_rank(te: Tensor, tokens: Tensor, rank: int, seed: int = 0) -> Tensor:
    """TE[x] and something of `rank` dimensions."""
    return te[tokens] + normal(*tokens.shape, rank, seed=seed) @ orthonormal(te.shape[1], 99)[:rank]


def lost(group: GroupBoundaries, te: Tensor, tokens: Tensor, x: Tensor, g: Tensor) -> tuple[float, float]:
    """Shares of X − TE[x] and of the gradient G that do not come through."""
    boundary = group.boundaries(te)(0)
    read, back = (
        boundary.decode(boundary.encode(x, tokens), tokens),
        boundary.decode_gradient(boundary.encode_gradient(g)),
    )
    return (
        float((read - x).square().sum() / (x - te[tokens]).square().sum()),
        float((back - g).square().sum() / g.square().sum()),
    )


@pytest.mark.parametrize(
    ("payload", "most"), [("wire", 1e-5), ("8bit", 1e-3), ("4bit", 0.03), ("2bit", 0.2), ("allocated", 1e-3)]
)
def test_a_fitted_basis_loses_no_more_than_rounding_of_what_has_few_dimensions_but_not_in_its_first_round(
    payload: str, most: float
):
    manifest = small_manifest(model={"d": 32}, replicas={"compression": 8} | FREE)
    te, tokens = table(manifest), random_tokens(manifest, 16, 8)
    group = begin(manifest, Switches(payload=payload, gradient_basis="own", **FITTED), te)  # type: ignore[arg-type]
    x, g = low_rank(te, tokens, 3), 1e-6 * normal(16, 8, 3, seed=5) @ orthonormal(32, 98)[:3]
    forward, backward = lost(group, te, tokens, x, g)
    assert min(forward, backward) > 0.2
    group.end_round(3)
    forward, backward = lost(group, te, tokens, low_rank(te, tokens, 3, seed=1), g.flip(0))
    assert max(forward, backward) < most


def test_gradients_are_told_in_the_basis_of_activations_unless_they_have_their_own():
    manifest = small_manifest(model={"d": 32}, replicas={"compression": 8} | FREE)
    te, tokens = table(manifest), random_tokens(manifest, 16, 8)
    x, g = low_rank(te, tokens, 3), normal(16, 8, 3, seed=5) @ orthonormal(32, 98)[:3]
    losses = {}
    for choice in ("same", "own"):
        group = begin(manifest, Switches(gradient_basis=choice, **FITTED), te)  # type: ignore[arg-type]
        lost(group, te, tokens, x, g)
        group.end_round(3)
        losses[choice] = lost(group, te, tokens, x, g)
        out, back = group.coders[0]
        assert torch.equal(out.basis_dk, back.basis_dk) == (choice == "same")
    assert losses["same"][0] == losses["own"][0]
    assert losses["own"][1] < 1e-5 < 0.1 < losses["same"][1]


@pytest.mark.parametrize("residuals", [0, 1])
@pytest.mark.parametrize("payload", PAYLOADS)
def test_with_the_embedding_as_anchor_the_token_embedding_comes_through_exactly(payload: str, residuals: int):
    manifest = small_manifest(replicas={"compression": 2} | FREE)
    te, tokens = table(manifest), random_tokens(manifest, 2, 7)
    switches = Switches(payload=payload, residuals=residuals)  # type: ignore[arg-type]
    boundary = begin(manifest, switches, te).boundaries(te)(0)
    assert torch.equal(boundary.decode(boundary.encode(te[tokens], tokens), tokens), te[tokens])


def test_gradients_may_have_a_number_format_of_their_own_for_as_many_bytes():
    manifest = small_manifest(model={"d": 32}, replicas={"compression": 4})
    te, tokens, x = table(manifest), random_tokens(manifest, 2, 7), normal(2, 7, 32)
    mixed = begin(manifest, Switches(payload="4bit", gradient_payload="wire"), te).boundaries(te)(0)
    fine, coarse = (begin(manifest, Switches(payload=each), te).boundaries(te)(0) for each in ("4bit", "wire"))
    assert torch.equal(mixed.encode(x, tokens), fine.encode(x, tokens))
    assert torch.equal(mixed.encode_gradient(x), coarse.encode_gradient(x))


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
    group, u = lab.bench.workshop.group, nested(orthonormal(16), 4)
    assert group is not None
    genesis = to_float(lab.bench.grids[EMBEDDING][EMBEDDING_TENSOR])
    play(lab, 2)
    te = to_float(lab.bench.grids[EMBEDDING][EMBEDDING_TENSOR])
    assert not torch.equal(split_embedding(te, u)[1], split_embedding(genesis, u)[1])
    tokens, zero = torch.arange(300)[None], torch.zeros(1, 300, 16)
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
    assert all(coder.basis_dk is group.basis_dk for pair in group.coders for coder in pair)


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
    assert all(spectrum.count == 0 for pair in patient.spectra for spectrum in pair)


def test_a_basis_that_moves_takes_the_token_embeddings_subspace_with_it():
    """T_S of each round lies in that round's Col(U): Δ of a compressed replica has no other part."""
    manifest = small_manifest(inner={"learning_rate": 1e-2, "warmup": 0})
    lab = small_lab(manifest, Switches(grassmann=1))
    group = lab.bench.workshop.group
    assert group is not None
    bases = [group.basis_dk.clone()]
    for round in (1, 2):
        lab.bench.inner_loop(lab.bench.replicas[0], round, {}, lambda event: None)
        moved = lab.bench.workshop.wholes["group"].moved()[EMBEDDING][EMBEDDING_TENSOR]
        u = bases[-1]
        torch.testing.assert_close(moved @ u @ u.T, moved, rtol=0, atol=1e-6)
        group.end_round(3)
        bases.append(group.basis_dk.clone())
        assert not torch.allclose(moved @ bases[-1] @ bases[-1].T, moved, rtol=0, atol=1e-5)


def test_an_evaluation_teaches_nothing():
    manifest = small_manifest(replicas=FREE)
    te, tokens = table(manifest), random_tokens(manifest, 2, 7)
    group = begin(manifest, Switches(**FITTED), te)  # type: ignore[arg-type]
    group.boundaries(te, watched=False)(0).encode(normal(2, 7, 16), tokens)
    assert all(spectrum.seen == 0 for pair in group.spectra for spectrum in pair)
    group.boundaries(te)(0).encode(normal(2, 7, 16), tokens)
    assert group.spectra[0][0].seen == 1


def test_each_boundary_is_fitted_to_what_crosses_it():
    manifest = small_manifest(replicas={"stages": 3} | FREE)
    te, tokens = table(manifest), random_tokens(manifest, 4, 8)
    group = begin(manifest, Switches(**FITTED), te)  # type: ignore[arg-type]
    boundaries, xs = (
        group.boundaries(te),
        [te[tokens] + normal(4, 8, 4, seed=i) @ orthonormal(16, i)[:4] for i in (1, 2)],
    )
    for stage, x in enumerate(xs):
        boundaries(stage).encode(x, tokens)
    group.end_round(3)
    for stage, x in enumerate(xs):
        for other in (0, 1):
            boundary = group.boundaries(te)(other)
            off = (boundary.decode(boundary.encode(x, tokens), tokens) - x).abs().max()
            assert (off < 0.05) == (other == stage)


def test_a_model_of_one_stage_has_no_boundary_to_code_and_trains():
    lab = small_lab(small_manifest(replicas={"stages": 1}), Switches(payload="4bit"))
    before = {part: {name: tensor.clone() for name, tensor in grid.items()} for part, grid in lab.bench.grids.items()}
    play(lab, 1)
    for part, layout in model_layout(lab.bench.manifest).items():
        assert any(not torch.equal(lab.bench.grids[part][name], before[part][name]) for name in layout)
