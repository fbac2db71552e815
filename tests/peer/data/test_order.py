"""In which order sequences are read."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peer.data.order import in_order
from peer.data.permutation import permute

seeds = st.integers(0, 2**32 - 1)


@given(st.integers(1, 2000), st.integers(1, 300), seeds, st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
def test_every_sequence_comes_once(sequences: int, together: int, seed: int, epoch: int) -> None:
    moved = in_order(np.arange(sequences), sequences, together, seed, epoch)
    np.testing.assert_array_equal(np.sort(moved), np.arange(sequences))


@given(st.integers(1, 2000), st.integers(1, 300), seeds)
@settings(max_examples=60, deadline=None)
def test_sequences_of_a_block_are_read_one_after_the_other(sequences: int, together: int, seed: int) -> None:
    blocks = in_order(np.arange(sequences), sequences, together, seed, 0) // together
    changes = np.count_nonzero(np.diff(blocks))
    assert changes == len(np.unique(blocks)) - 1
    assert (blocks == sequences // together)[-(sequences % together) or sequences :].all(), "the rest comes last"


@given(st.integers(1, 500), st.integers(1, 40), seeds, st.data())
@settings(max_examples=60, deadline=None)
def test_one_number_alone_goes_where_it_goes_among_others(
    sequences: int, together: int, seed: int, data: st.DataObject
) -> None:
    numbers = data.draw(st.lists(st.integers(0, sequences - 1), max_size=20))
    among = in_order(np.array(numbers, np.int64), sequences, together, seed, 3).tolist()
    assert among == [int(in_order(np.array([number]), sequences, together, seed, 3)[0]) for number in numbers]


@given(st.integers(1, 2000), seeds, st.integers(0, 100))
@settings(max_examples=40, deadline=None)
def test_sequences_without_blocks_are_in_the_order_they_always_were(sequences: int, seed: int, epoch: int) -> None:
    numbers = np.arange(sequences)
    np.testing.assert_array_equal(
        in_order(numbers, sequences, 1, seed, epoch), permute(numbers, sequences, seed, epoch)
    )


def test_epochs_seeds_and_blocks_have_orders_of_their_own() -> None:
    orders = {tuple(in_order(np.arange(60), 60, 10, seed, epoch)) for seed in range(5) for epoch in range(5)}
    assert len(orders) == 25
    one = in_order(np.arange(60), 60, 10, 1, 0).reshape(6, 10) % 10
    assert len({tuple(block) for block in one}) == 6


def test_an_order_is_the_same_for_ever() -> None:
    """A change here would make peers of two versions read the same text twice."""
    assert in_order(np.arange(8), 1003, 4, seed=1, epoch=0).tolist() == [734, 732, 733, 735, 900, 903, 901, 902]


@pytest.mark.parametrize(("number", "sequences", "together"), [(10, 10, 3), (-1, 10, 3), (0, 10, 0)])
def test_a_number_outside_is_an_error(number: int, sequences: int, together: int) -> None:
    with pytest.raises(ValueError, match=r"outside|no blocks"):
        in_order(np.array([number]), sequences, together, 1, 0)
