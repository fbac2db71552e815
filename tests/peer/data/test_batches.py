"""Which tokens are read: a pure function, and each of an epoch once."""

from itertools import count, islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peer.data.batches import batch, held_out_batch, in_turn, sequence_ids, sequences_in
from peer.data.permutation import permute
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
