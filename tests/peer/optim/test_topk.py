"""Top-k of chunks, against the plain reference."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from peer.optim.topk import as_chunks, top_k
from protocol.codec.chunks import chunk_grid
from tests.reference import sparse_outer

shapes = st.one_of(st.tuples(st.integers(1, 90)), st.tuples(st.integers(1, 24), st.integers(1, 24)))
sides = st.integers(1, 8)


@settings(max_examples=60, deadline=None)
@given(shapes, sides, st.data())
def test_the_kept_coordinates_are_the_references(shape: tuple[int, ...], side: int, data: st.DataObject):
    k = data.draw(st.integers(1, side**2))
    seed = data.draw(st.integers(0, 2**16))
    few = data.draw(st.sampled_from([3, 10**9]))  # few distinct values: many ties
    values = np.random.default_rng(seed).integers(-few, few, shape, dtype=np.int64)
    grid = chunk_grid(shape, side, k)
    kept = top_k(torch.from_numpy(values).to(torch.int32), grid)
    expected = sparse_outer.top_k(values, side, k)
    assert len(expected) == grid.kept
    positions = grid.positions(kept.offsets)
    assert [np.unravel_index(place, shape) for place in positions] == expected
    assert (kept.values == values.reshape(-1)[positions]).all()


@settings(max_examples=60, deadline=None)
@given(shapes, sides, st.data())
def test_the_torch_operations_choose_what_the_kernel_chooses(shape: tuple[int, ...], side: int, data: st.DataObject):
    few = data.draw(st.sampled_from([1, 3, 10**9, 2**31]))
    seed = data.draw(st.integers(0, 2**16))
    values = torch.from_numpy(np.random.default_rng(seed).integers(-few, few, (*shape, 2), dtype=np.int64))
    strided = values.to(torch.int32)[..., 0]  # not contiguous: the torch operations
    grid = chunk_grid(shape, side, data.draw(st.integers(1, side**2)))
    ours, theirs = top_k(strided.contiguous(), grid), top_k(strided, grid)
    assert (ours.offsets == theirs.offsets).all()
    assert (ours.values == theirs.values).all()


def test_the_smallest_integer_has_the_largest_magnitude():
    values = torch.tensor([1, -(2**31) + 1, 2**31 - 1, 0], dtype=torch.int32)
    assert top_k(values, chunk_grid((4,), 2, 1)).values.tolist() == [-(2**31) + 1]


def test_a_matrix_is_cut_into_blocks_not_rows():
    values = torch.arange(16, dtype=torch.int32).view(4, 4)
    chunks, tail = as_chunks(values, chunk_grid((4, 4), 2, 1))
    assert chunks.tolist() == [[0, 1, 4, 5], [2, 3, 6, 7], [8, 9, 12, 13], [10, 11, 14, 15]]
    assert tail.numel() == 0
