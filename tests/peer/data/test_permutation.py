"""A permutation without a list."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peer.data.permutation import LARGEST_SIZE, permute

seeds = st.integers(0, 2**32 - 1)


@given(st.integers(1, 3000), seeds, st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
def test_every_number_comes_once(size: int, seed: int, epoch: int) -> None:
    moved = permute(np.arange(size), size, seed, epoch)
    np.testing.assert_array_equal(np.sort(moved), np.arange(size))


@pytest.mark.parametrize("size", [*range(1, 70), 255, 256, 257, 4095, 4096, 4097, 100_003])
def test_sizes_at_powers_of_two_are_no_exception(size: int) -> None:
    np.testing.assert_array_equal(np.sort(permute(np.arange(size), size, 1, 0)), np.arange(size))


@given(st.integers(1, LARGEST_SIZE), seeds, st.data())
@settings(max_examples=60, deadline=None)
def test_one_number_alone_goes_where_it_goes_among_others(size: int, seed: int, data: st.DataObject) -> None:
    numbers = data.draw(st.lists(st.integers(0, size - 1), max_size=20))
    together = permute(np.array(numbers, np.int64), size, seed, 0).tolist()
    alone = [int(permute(np.array([number]), size, seed, 0)[0]) for number in numbers]
    assert together == alone
    assert all(0 <= number < size for number in together)


def test_epochs_and_seeds_differ() -> None:
    orders = {tuple(permute(np.arange(50), 50, seed, epoch)) for seed in range(5) for epoch in range(5)}
    assert len(orders) == 25


def test_an_order_is_the_same_for_ever() -> None:
    """A change here would make peers of two versions read the same text twice."""
    assert permute(np.arange(8), 1000, seed=1, epoch=0).tolist() == [359, 807, 390, 85, 203, 45, 201, 741]


def test_neighbours_are_scattered() -> None:
    """The mean distance of two random numbers of [0, N) is N / 3."""
    moved = permute(np.arange(10_000), 10_000, 1, 0)
    assert np.abs(np.diff(moved)).mean() == pytest.approx(10_000 / 3, rel=0.05)


@pytest.mark.parametrize(("number", "size"), [(10, 10), (-1, 10), (0, 0), (0, LARGEST_SIZE + 1)])
def test_a_number_outside_is_an_error(number: int, size: int) -> None:
    with pytest.raises(ValueError, match=r"outside|no permutation"):
        permute(np.array([number]), size, 1, 0)
