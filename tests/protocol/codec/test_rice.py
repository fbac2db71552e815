"""Golomb–Rice coded offsets."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.codec import rice
from protocol.codec.bitstream import pack_fixed, pack_unary
from protocol.codec.chunks import ChunkGrid, chunk_grid
from protocol.errors import FormatError

shapes = st.one_of(st.tuples(st.integers(1, 200)), st.tuples(st.integers(1, 24), st.integers(1, 24)))


@st.composite
def grids(draw: st.DrawFn) -> ChunkGrid:
    side = draw(st.integers(1, 8))
    return chunk_grid(draw(shapes), side, draw(st.integers(1, side**2)))


def random_offsets(grid: ChunkGrid, seed: int) -> np.ndarray:
    random = np.random.default_rng(seed)
    pairs = zip(grid.sizes, grid.counts, strict=True)
    return np.concatenate([np.sort(random.permutation(size)[:count]) for size, count in pairs])


def plain(offsets: list[int], grid: ChunkGrid) -> tuple[list[int], list[int]]:
    """The coding as its definition says it: quotients and rests."""
    r, quotients, rests, taken = rice.parameter(grid), [], [], 0
    for count in grid.counts:
        previous = -1
        for offset in offsets[taken : taken + count]:
            gap = offset - previous - 1
            quotients.append(gap >> r)
            rests.append(gap % 2**r)
            previous = offset
        taken += count
    return quotients, rests


@settings(max_examples=60, deadline=None)
@given(grids(), st.integers(0, 999))
def test_offsets_round_trip_in_the_streams_of_the_definition(grid: ChunkGrid, seed: int):
    offsets = random_offsets(grid, seed)
    unary, rests = rice.encode_offsets(offsets, grid)
    quotients, remainders = plain(offsets.tolist(), grid)
    assert unary == pack_unary(np.array(quotients, np.uint16), 0)
    assert rests == pack_fixed(np.array(remainders, np.uint16), rice.parameter(grid))
    assert len(unary) <= rice.longest_unary_bytes(grid)
    assert (rice.decode_offsets(unary, rests, grid) == offsets).all()


@settings(max_examples=60, deadline=None)
@given(grids(), st.data())
def test_whatever_decodes_lies_inside_its_chunk_and_rises(grid: ChunkGrid, data: st.DataObject):
    unary = data.draw(st.binary(max_size=rice.longest_unary_bytes(grid) + 1))
    rests = data.draw(st.binary(min_size=rice.rest_bytes(grid), max_size=rice.rest_bytes(grid)))
    try:
        offsets = rice.decode_offsets(unary, rests, grid)
    except FormatError:
        return
    for start, count, size in zip(grid.starts, grid.counts, grid.sizes, strict=True):
        of_chunk = offsets[start : start + count]
        assert (np.diff(of_chunk) > 0).all()
        assert 0 <= of_chunk[0] <= of_chunk[-1] < size
    assert rice.encode_offsets(offsets, grid) == (unary, rests)


def test_an_index_takes_less_than_eight_and_a_half_bits():
    grid = chunk_grid((2048, 2048), 64, 32)
    assert rice.parameter(grid) == 6
    streams = rice.encode_offsets(random_offsets(grid, 0), grid)
    assert 8.318 < 8 * sum(map(len, streams)) / grid.kept < 8.5


def test_an_offset_outside_its_chunk_is_refused():
    grid = chunk_grid((4,), 2, 1)
    unary, rests = rice.encode_offsets(np.array([3]), grid)
    assert rice.decode_offsets(unary, rests, grid).tolist() == [3]
    small = chunk_grid((3,), 2, 1)
    with pytest.raises(FormatError, match="outside its chunk"):
        rice.decode_offsets(unary, rests, small)


@pytest.mark.parametrize("zeros", [64, 70, 1024, 2**16, 2**17 - 8])
def test_no_run_of_zeros_is_so_long_that_it_comes_round_again(zeros: int):
    """16 bits hold a step of 64 quotients of 64; 1024 would be 0 again."""
    grid = chunk_grid((4096, 512), 64, 32)
    bits = np.ones(grid.kept + zeros, np.uint8)
    bits[8 : 8 + zeros] = 0
    with pytest.raises(FormatError):
        rice.decode_offsets(np.packbits(bits, bitorder="little").tobytes(), bytes(rice.rest_bytes(grid)), grid)


@pytest.mark.parametrize("shape", [(512,), (1024,), (4096,), (8192,), (5000,), (1024, 2816), (32000, 64)])
def test_the_longest_streams_of_real_sizes_are_within_their_bound(shape: tuple[int, ...]):
    """Of a large model's norms, embeddings and matrices, with the offsets as far behind as they can be."""
    grid = chunk_grid(shape, 64, 64)
    behind = np.concatenate(
        [np.arange(size - count, size) for size, count in zip(grid.sizes, grid.counts, strict=True)]
    )
    unary, rests = rice.encode_offsets(behind, grid)
    assert len(unary) <= rice.longest_unary_bytes(grid)
    assert (rice.decode_offsets(unary, rests, grid) == behind).all()
