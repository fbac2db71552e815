"""Which tokens a replica reads: a pure function, without overlap."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peer.data.batches import batch, held_out_batch, sequence_ids, sequences_in
from peer.data.permutation import permute
from protocol.errors import FormatError
from protocol.manifest import Manifest
from tests.reference.small_manifest import small_manifest

SLOTS, STEPS, CONTEXT = 3, 3, 8  # of the small manifest


def read_in_order(manifest: Manifest, available: int, rounds: int) -> list[int]:
    """All that all slots read in some rounds, in the order of the numbers k."""
    places = product(range(1, rounds + 1), range(manifest.replicas.total), range(manifest.inner.steps))
    return [
        sequence
        for round, slot, step in places
        for sequence in sequence_ids(manifest, available, round, step, slot).tolist()
    ]


@given(st.integers(1, 200), st.integers(1, 5), st.integers(1, 3), st.integers(1, 3))
@settings(max_examples=40, deadline=None)
def test_an_epoch_reads_everything_once(available: int, sequences: int, groups: int, steps: int) -> None:
    manifest = small_manifest(
        replicas={"groups": groups, "datacenters": 0},
        inner={"steps": steps, "sequences": sequences, "microbatch": 1},
    )
    rounds = 2 * available // (groups * steps * sequences) + 1
    read = read_in_order(manifest, available, rounds)
    for epoch in range(len(read) // available):
        assert sorted(read[epoch * available : (epoch + 1) * available]) == list(range(available))


@given(st.integers(1, 60), st.integers(1, 50), st.integers(0, STEPS - 1), st.integers(0, SLOTS - 1))
@settings(max_examples=60, deadline=None)
def test_number_k_is_a_member_of_its_epochs_permutation(available: int, round: int, step: int, slot: int) -> None:
    manifest = small_manifest()
    n = manifest.inner.steps * manifest.inner.sequences
    expected = []
    for j in range(manifest.inner.sequences):
        k = ((round - 1) * SLOTS + slot) * n + step * manifest.inner.sequences + j
        expected += permute(np.array([k % available]), available, manifest.run.seed, k // available).tolist()
    assert sequence_ids(manifest, available, round, step, slot).tolist() == expected


def test_a_step_may_be_longer_than_the_text() -> None:
    assert sequence_ids(small_manifest(inner={"sequences": 10}), 3, 1, 0, 0).max() < 3


def test_the_last_round_of_the_longest_run_has_its_place() -> None:
    assert (sequence_ids(small_manifest(), 2**40, 2**31 - 1, 2, 2) < 2**40).all()


def test_seeds_read_in_another_order() -> None:
    first, other = (sequence_ids(small_manifest(run={"seed": seed}), 1000, 1, 0, 0) for seed in (1, 2))
    assert first.tolist() != other.tolist()


def test_who_comes_beside_the_first_replicas_reads_the_same_text_in_another_order() -> None:
    run = small_manifest()
    first, beside = (sequence_ids(run, 997, 1, 0, slot) for slot in (1, 1 + SLOTS))
    assert first.tolist() != beside.tolist()
    whole = [sequence_ids(run, 64, round, step, slot) for round in (1, 2) for step in range(STEPS) for slot in (SLOTS,)]
    assert all(0 <= each < 64 for ids in whole for each in ids)


@pytest.mark.parametrize(("round", "step", "slot"), [(0, 0, 0), (1, STEPS, 0), (1, -1, 0), (1, 0, -1)])
def test_places_the_manifest_does_not_have_are_errors(round: int, step: int, slot: int) -> None:
    """Else a replica would silently read what another reads."""
    with pytest.raises(ValueError, match="no round"):
        sequence_ids(small_manifest(), 100, round, step, slot)


def test_sequence_i_starts_at_i_contexts_and_holds_one_token_more() -> None:
    manifest = small_manifest()
    tokens = np.arange(20 * CONTEXT + 1, dtype="<u2")
    ids = sequence_ids(manifest, 20, 2, 1, 2)
    read = batch(tokens, manifest, 2, 1, 2)
    assert read.dtype == np.int64
    assert read.tolist() == [list(range(i * CONTEXT, i * CONTEXT + CONTEXT + 1)) for i in ids]


def test_all_tokens_but_a_rest_are_in_some_sequence() -> None:
    manifest = small_manifest()
    assert [sequences_in(np.zeros(length, "<u2"), manifest) for length in (9, 16, 17)] == [1, 1, 2]


def test_the_same_place_always_reads_the_same() -> None:
    tokens = np.arange(500, dtype="<u2")
    first, again = (batch(tokens, small_manifest(), 3, 2, 1) for _ in range(2))
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
        batch(tokens, small_manifest(), 1, 0, 0)
    with pytest.raises(FormatError, match="too few"):
        held_out_batch(tokens, small_manifest())
