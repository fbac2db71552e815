"""Which tokens are read, and in which order: a pure function, and each of an epoch once."""

from itertools import count, islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peer.data.batches import (
    LARGEST_SIZE,
    batch,
    held_out_batch,
    in_order,
    in_turn,
    permute,
    sequence_ids,
    sequences_in,
)
from protocol.errors import FormatError
from protocol.manifest import Manifest
from protocol.outer.data_plan import OWN_ORDER, Reading, chunks
from tests.reference.small_manifest import small_manifest

SLOTS, STEPS, CONTEXT = 3, 3, 8  # of the small manifest


def counted(data: st.DataObject, manifest: Manifest) -> dict[int, int]:
    """What counts in a round: replicas that come and go, some after a part of their steps."""
    slots = st.sets(st.integers(0, 5), min_size=1, max_size=4)
    return {slot: data.draw(st.integers(1, manifest.inner.steps)) for slot in data.draw(slots)}


@given(st.integers(1, 60), st.integers(1, 5), st.integers(1, 3), st.integers(1, 3), st.data())
@settings(max_examples=60, deadline=None)
def test_an_epoch_reads_every_sequence_once_whoever_comes_and_goes(
    available: int, sequences: int, groups: int, steps: int, data: st.DataObject
) -> None:
    manifest = small_manifest(
        replicas={"groups": groups, "datacenters": 0},
        inner={"steps": steps, "sequences": sequences, "microbatch": 1},
    )
    reading, done, restless = Reading.begin(manifest), set[int](), data.draw(st.integers(1, 12))
    while (first_unread := next(c for c in count() if c not in done)) * sequences < 2 * available:
        read = counted(data, manifest) if reading.folded < restless else {0: steps}
        for slot, taken in read.items():
            share = reading.share(reading.folded + 1, slot, manifest)
            these = set(islice(chunks(share), taken))
            assert not these & done
            done |= these
        reading = reading.fold(read, manifest)
    whole = [sequence for c in range(first_unread) for sequence in sequence_ids(manifest, available, c).tolist()]
    for epoch in range(2):
        assert sorted(whole[epoch * available : (epoch + 1) * available]) == list(range(available))


@given(st.integers(1, 200), st.integers(0, 2000) | st.integers(OWN_ORDER, OWN_ORDER + 2**70))
@settings(max_examples=60, deadline=None)
def test_number_k_is_a_member_of_its_epochs_permutation(available: int, chunk: int) -> None:
    manifest, n = small_manifest(), 4
    expected = []
    for k in range(chunk * n, chunk * n + n):
        expected += permute(np.array([k % available]), available, manifest.run.seed, k // available).tolist()
    assert sequence_ids(manifest, available, chunk).tolist() == expected


def test_a_step_may_be_longer_than_the_text() -> None:
    assert sequence_ids(small_manifest(inner={"sequences": 10}), 3, 0).max() < 3


def test_seeds_read_in_another_order() -> None:
    first, other = (sequence_ids(small_manifest(run={"seed": seed}), 1000, 0) for seed in (1, 2))
    assert first.tolist() != other.tolist()


def test_in_turn_is_what_is_given_out_where_all_replicas_take_every_step() -> None:
    """So the lab, which has no ledger, reads what the swarm does."""
    manifest = small_manifest()
    reading = Reading.begin(manifest)
    for round in range(1, 30):
        for slot in range(SLOTS):
            expected = [in_turn(manifest, round, step, slot) for step in range(STEPS)]
            assert [*chunks(reading.share(round, slot, manifest))] == expected
        reading = reading.fold(dict.fromkeys(range(SLOTS), STEPS), manifest)


@pytest.mark.parametrize(("round", "step", "slot"), [(0, 0, 0), (1, STEPS, 0), (1, -1, 0), (1, 0, -1), (1, 0, SLOTS)])
def test_places_the_manifest_does_not_have_are_errors(round: int, step: int, slot: int) -> None:
    """Else a replica would silently read what another reads."""
    with pytest.raises(ValueError, match="no round"):
        in_turn(small_manifest(), round, step, slot)


def test_sequence_i_starts_at_i_contexts_and_holds_one_token_more() -> None:
    manifest = small_manifest()
    tokens = np.arange(20 * CONTEXT + 1, dtype="<u2")
    ids = sequence_ids(manifest, 20, 5)
    read = batch(tokens, manifest, 5)
    assert read.dtype == np.int64
    assert read.tolist() == [list(range(i * CONTEXT, i * CONTEXT + CONTEXT + 1)) for i in ids]


def test_all_tokens_but_a_rest_are_in_some_sequence() -> None:
    manifest = small_manifest()
    assert [sequences_in(np.zeros(length, "<u2"), manifest) for length in (9, 16, 17)] == [1, 1, 2]


def test_the_same_chunk_always_reads_the_same() -> None:
    tokens = np.arange(500, dtype="<u2")
    first, again = (batch(tokens, small_manifest(), 17) for _ in range(2))
    np.testing.assert_array_equal(first, again)


def test_held_out_sequences_are_the_first() -> None:
    tokens = np.arange(100, dtype="<u2")
    read = held_out_batch(tokens, small_manifest())
    assert read.dtype == np.int64
    assert read.tolist() == [list(range(i * CONTEXT, i * CONTEXT + CONTEXT + 1)) for i in range(5)]


def test_short_held_out_text_gives_fewer_sequences() -> None:
    assert held_out_batch(np.arange(2 * CONTEXT + 1, dtype="<u2"), small_manifest()).shape == (2, CONTEXT + 1)


def test_too_few_tokens_for_one_sequence_are_an_error() -> None:
    tokens = np.zeros(CONTEXT, "<u2")
    with pytest.raises(FormatError, match="too few"):
        batch(tokens, small_manifest(), 0)
    with pytest.raises(FormatError, match="too few"):
        held_out_batch(tokens, small_manifest())


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
def test_one_number_alone_is_permuted_as_among_others(size: int, seed: int, data: st.DataObject) -> None:
    numbers = data.draw(st.lists(st.integers(0, size - 1), max_size=20))
    together = permute(np.array(numbers, np.int64), size, seed, 0).tolist()
    alone = [int(permute(np.array([number]), size, seed, 0)[0]) for number in numbers]
    assert together == alone
    assert all(0 <= number < size for number in together)


def test_epochs_and_seeds_differ() -> None:
    orders = {tuple(permute(np.arange(50), 50, seed, epoch)) for seed in range(5) for epoch in range(5)}
    assert len(orders) == 25


def test_a_permutation_is_the_same_for_ever() -> None:
    """A change here would make peers of two versions read the same text twice."""
    assert permute(np.arange(8), 1000, seed=1, epoch=0).tolist() == [359, 807, 390, 85, 203, 45, 201, 741]


def test_neighbours_are_scattered() -> None:
    """The mean distance of two random numbers of [0, N) is N / 3."""
    moved = permute(np.arange(10_000), 10_000, 1, 0)
    assert np.abs(np.diff(moved)).mean() == pytest.approx(10_000 / 3, rel=0.05)


@pytest.mark.parametrize(("number", "size"), [(10, 10), (-1, 10), (0, 0), (0, LARGEST_SIZE + 1)])
def test_a_number_outside_the_permutation_is_an_error(number: int, size: int) -> None:
    with pytest.raises(ValueError, match=r"outside|no permutation"):
        permute(np.array([number]), size, 1, 0)
