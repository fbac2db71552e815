"""How a tensor is cut, against a loop over its coordinates."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.codec.chunks import chunk_grid
from tests.reference import sparse_outer

shapes = st.one_of(st.tuples(st.integers(1, 90)), st.tuples(st.integers(1, 24), st.integers(1, 24)))


@settings(max_examples=60, deadline=None)
@given(shapes, st.integers(1, 8), st.data())
def test_every_coordinate_of_a_chunk_is_where_the_reference_puts_it(shape, side: int, data: st.DataObject):
    k = data.draw(st.integers(1, side**2))
    grid = chunk_grid(shape, side, k)
    chunks = sparse_outer.chunks(shape, side)
    assert grid.sizes.tolist() == [len(chunk) for chunk in chunks]
    assert grid.counts.tolist() == [max(1, round(len(chunk) * k / side**2)) for chunk in chunks]
    assert grid.kept == grid.counts.sum() == np.diff(grid.starts, append=grid.kept).sum()
    random = np.random.default_rng(data.draw(st.integers(0, 99)))
    offsets = [
        np.sort(random.permutation(len(chunk))[:count]) for chunk, count in zip(chunks, grid.counts, strict=True)
    ]
    expected = [chunk[offset] for chunk, some in zip(chunks, offsets, strict=True) for offset in some]
    positions = grid.positions(np.concatenate(offsets))
    assert [np.unravel_index(place, shape) for place in positions] == expected


@pytest.mark.parametrize(
    ("shape", "rows", "columns", "k"),
    [((128, 128), 64, 64, 32), ((2688, 1024), 64, 64, 32), ((50257, 64), 29, 64, 14), ((97, 64), 1, 64, 1)],
)
def test_the_sides_of_a_block_are_the_largest_divisors_and_keep_the_density(shape, rows: int, columns: int, k: int):
    grid = chunk_grid(shape, 64, 32)
    assert (grid.rows, grid.columns, grid.k) == (rows, columns, k)


def test_a_short_vector_is_one_chunk_of_its_own():
    grid = chunk_grid((1024,), 64, 32)
    assert (grid.full, grid.tail, grid.tail_k, grid.kept) == (0, 1024, 8, 8)
    long = chunk_grid((5000,), 64, 32)
    assert (long.full, long.tail, long.kept) == (1, 904, 32 + 7)


@pytest.mark.parametrize("shape", [(), (2, 2, 2), (0,), (3, 0)])
def test_only_vectors_and_matrices_are_cut(shape):
    with pytest.raises(ValueError, match="no chunks"):
        chunk_grid(shape, 64, 32)
