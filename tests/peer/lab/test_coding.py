"""What a boundary's bytes say: coordinates, quantized or not, and the largest entries of what is left."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from peer.lab.coding import (
    BITS,
    GAUSSIAN_STEPS,
    MOST_BITS,
    SCALE_BITS,
    Coder,
    Spectrum,
    allocate,
    coordinates,
    residual_bits,
)
from tests.reference.boundary import orthonormal

MAX_TABLE = {1: 0.3634, 2: 0.1188, 3: 0.03744, 4: 0.01154, 5: 0.003495}
"""Mean squared errors of the best uniform quantizers of a normal variable (Max, 1960, table 2)."""

widths = st.integers(2, 24).flatmap(lambda d: st.tuples(st.just(d), st.integers(1, d)))


def normal(*shape: int, seed: int) -> Tensor:
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


@given(st.integers(8, 4096), st.sampled_from(sorted(BITS.values())), st.integers(0, 40), st.integers(16, 65536))
def test_coordinates_fill_the_budget_and_never_more(d: int, bits: int, residuals: int, budget: int):
    beside = (SCALE_BITS if bits < 16 else 0) + residuals * (math.ceil(math.log2(d)) + 16)
    if beside + bits > budget:
        with pytest.raises(ValueError, match="too few"):
            coordinates(budget, bits, residuals, d)
        return
    count = coordinates(budget, bits, residuals, d)
    assert 1 <= count <= d
    assert beside + count * bits <= budget
    assert count == d or beside + (count + 1) * bits > budget


@pytest.mark.parametrize(("d", "place"), [(2, 1), (4096, 12), (4097, 13), (5120, 13)])
def test_a_residual_is_its_place_and_a_number_in_bf16(d: int, place: int):
    assert residual_bits(d) == place + 16


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
