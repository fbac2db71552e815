"""What contributions' values become, and the bytes of offsets and values."""

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from peer.lab.quantizers import INDICES, QUANTIZERS, chunks, exact, sign, statistical
from protocol.codec.bitstream import Int32Array
from protocol.codec.chunks import ChunkGrid, chunk_grid

LARGEST = 2**31 - 1
values = st.lists(st.integers(-LARGEST, LARGEST), min_size=1, max_size=60).map(lambda each: np.array(each, np.int32))
shapes = st.one_of(
    st.tuples(st.integers(1, 9000)), st.tuples(st.sampled_from([1, 6, 64, 130]), st.sampled_from([7, 64, 96, 128]))
)


@given(values)
def test_exact_is_every_integer_itself(given_values: Int32Array):
    assert np.array_equal(exact(given_values), given_values)


@given(values)
def test_sign_keeps_the_signs_and_the_mean_magnitude_and_has_no_zero(given_values: Int32Array):
    numbers = [int(each) for each in given_values]
    mean = sum(map(abs, numbers)) / len(numbers)
    read = sign(given_values)
    assert read.dtype == np.int32
    assert read.tolist() == pytest.approx([mean if each >= 0 else -mean for each in numbers], abs=1)


def published(vals: torch.Tensor, bins: int = 4, range: float = 6.0) -> torch.Tensor:
    """The quantizer of SparseLoCo's published code: bins of equal width about the mean, read as their means."""
    mean = vals.mean()
    centred = vals - mean
    deviation = centred.norm() / math.sqrt(max(1, len(vals) - 1))
    scale = range * deviation / bins
    if scale == 0:
        return vals
    assume(bool((((centred / scale) % 1 - 0.5).abs() > 1e-9).all()))  # on an edge, either bin is right
    q = (centred / scale + bins // 2).round().clamp(0, bins - 1).long()
    lookup = torch.zeros(bins, dtype=vals.dtype)
    for b in q.unique().tolist():
        lookup[b] = centred[q == b].mean()
    return lookup[q] + mean


@given(
    st.one_of(
        values, st.integers(0, 999).map(lambda seed: np.random.default_rng(seed).normal(0, 9e6, 200).astype(np.int32))
    )
)
def test_statistical_is_the_fields_two_bits(given_values: Int32Array):
    expected = published(torch.from_numpy(given_values.astype(np.float64)))
    read = statistical(given_values)
    assert read.dtype == np.int32
    assert read.tolist() == pytest.approx(expected.tolist(), abs=1)
    assert len(set(read.tolist())) <= 4
    assert abs(int(read.astype(np.int64).sum() - given_values.astype(np.int64).sum())) <= len(read)


def test_of_what_top_k_keeps_two_bits_are_hardly_more_than_a_sign():
    """The notes' measurement: two of the four bins are empty, and the error is about 1% of the square."""
    normal = np.random.default_rng(0).normal(0, 1e6, (500, 4096))
    kept = np.take_along_axis(normal, np.abs(normal).argsort(1)[:, -32:], 1).flatten().astype(np.int32)
    square = float((kept.astype(float) ** 2).mean())
    errors = {
        name: float(((QUANTIZERS[name].apply(kept) - kept.astype(float)) ** 2).mean()) / square for name in QUANTIZERS
    }
    assert len(set(statistical(kept).tolist())) == 2
    assert errors["statistical"] == pytest.approx(0.0096, rel=0.15)
    assert errors["exact"] == 0 < errors["bf16"] < errors["2bit"] < errors["sign"]
    assert errors["sign"] == pytest.approx(errors["statistical"], rel=0.05)


@given(st.integers(1, 10_000))
def test_sizes_are_the_bits_rounded_up_to_bytes_and_what_each_tensor_needs_once(count: int):
    bits = {
        "bf16": 16 * count,
        "2bit": 2 * count + 2 * 32,
        "exact": 32 * count,
        "sign": count + 32,
        "statistical": 2 * count + 5 * 32,
    }
    assert {name: quantizer.size(count) for name, quantizer in QUANTIZERS.items()} == {
        name: -(-each // 8) for name, each in bits.items()
    }


def picks(grid: ChunkGrid, seed: int) -> np.ndarray:
    """Random offsets in canonical order."""
    random = np.random.default_rng(seed)
    each = [np.sort(random.choice(size, k, replace=False)) for size, k in zip(grid.sizes, grid.counts, strict=True)]
    return np.concatenate(each).astype(np.int16)


@given(shapes)
@settings(max_examples=40)
def test_the_chunks_counted_are_the_grids(shape: tuple[int, ...]):
    grid = chunk_grid(shape, 64, 32)
    assert chunks(grid) == list(zip(grid.sizes.tolist(), grid.counts.tolist(), strict=True))
    assert sum(size for size, _ in chunks(grid)) == math.prod(shape)
    assert sum(k for _, k in chunks(grid)) == grid.kept


@given(shapes, st.integers(0, 99))
@settings(max_examples=40)
def test_offsets_are_counted_in_bits_of_their_chunk_and_no_code_needs_fewer_than_the_bound(shape, seed: int):
    grid = chunk_grid(shape, 64, 32)
    offsets = picks(grid, seed)
    sizes = {name: INDICES[name](offsets, grid) for name in INDICES}
    pairs = list(zip(grid.sizes.tolist(), grid.counts.tolist(), strict=True))
    assert sizes["plain"] == math.ceil(sum(k * math.ceil(math.log2(size)) for size, k in pairs) / 8)
    choices = math.prod(math.comb(size, k) for size, k in pairs)
    assert abs(sizes["bound"] - math.ceil(math.log2(choices) / 8)) <= 1
    assert sizes["bound"] <= sizes["plain"]


@pytest.mark.parametrize(("k", "bound", "rice"), [(32, 8.318, 8.47), (64, 7.364, 7.50), (128, 6.382, 6.49)])
def test_bits_an_offset_are_those_of_the_notes(k: int, bound: float, rice: float):
    grid = chunk_grid((1280, 1280), 64, k)
    for seed in range(2):
        offsets = picks(grid, seed)
        bits = {name: 8 * INDICES[name](offsets, grid) / grid.kept for name in INDICES}
        assert bits["bound"] < bits["rice"] < bits["plain"]
        assert bits["plain"] == 12
        assert bits["bound"] == pytest.approx(bound, abs=2e-3)
        assert bits["rice"] == pytest.approx(rice, abs=0.05)
