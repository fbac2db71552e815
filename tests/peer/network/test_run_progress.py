"""Progress as a peer knows it: the node's word counts as far as holders' signatures prove it."""

from contextlib import nullcontext
from pathlib import Path

import pytest

from peer.network.run_progress import KnownProgress
from protocol.errors import FormatError
from protocol.identity import EMBEDDING, RunId, stage_part
from protocol.monitor import NodeWord
from protocol.outer.phases import RunPhase
from protocol.outer.progress import Rewind
from protocol.trust.membership_card import Authority
from protocol.trust.rewinds import sign_rewind
from tests.bootstrap.monitor.test_holders import AUTHORITY, LIAR, OPERATOR, record, signed_by
from tests.reference.admitted import identity
from tests.reference.small_manifest import small_manifest

MANIFEST = small_manifest(outer={"rounds": 40})
TRUSTING, CAREFUL = (small_manifest(outer={"rounds": 40, "liars": liars}) for liars in (0, 1))
ME = identity("me").peer_id


def test_the_nodes_word_counts_as_far_as_signed_records_prove_it(tmp_path: Path):
    known = KnownProgress(manifest=MANIFEST, authority=AUTHORITY, folder=tmp_path)
    a, b = signed_by("a", record("a", 9, 0)), signed_by("b", record("b", 11, 1))
    known.learn_from_node(NodeWord(run=30, holders=(a, b, b"no record", a[:-1])), ME)
    assert known.run == 11
    assert known.parts == {EMBEDDING: 11, stage_part(0): 9, stage_part(1): 11}


def test_a_record_of_a_round_far_beyond_the_run_raises_a_part_by_one_round_and_of_another_run_by_none(tmp_path: Path):
    known = KnownProgress(manifest=MANIFEST, authority=AUTHORITY, folder=tmp_path)
    known.learn_from_node(NodeWord(run=9, holders=(signed_by("a", record("a", 30, 0)),)), ME)
    assert (known.run, known.parts[stage_part(0)]) == (9, 10)
    other = KnownProgress(manifest=MANIFEST, authority=Authority(RunId("cd" * 32), OPERATOR.peer_id), folder=tmp_path)
    other.learn_from_node(NodeWord(run=9, holders=(signed_by("a", record("a", 9, 0)),)), ME)
    assert other.run == 0


def test_what_this_peer_has_held_itself_is_for_its_folder_to_say(tmp_path: Path):
    known = KnownProgress(manifest=MANIFEST, authority=AUTHORITY, folder=tmp_path)
    known.learn_from_node(NodeWord(run=9, holders=(signed_by("a", record("a", 9, 0)),)), identity("a").peer_id)
    assert (known.run, known.parts.get(stage_part(0), 0)) == (9, 0)


def test_a_rewind_is_kept_in_the_folder_and_only_a_later_one_takes_its_place(tmp_path: Path):
    known = KnownProgress(manifest=MANIFEST, authority=AUTHORITY, folder=tmp_path)
    first, second = (sign_rewind(OPERATOR, AUTHORITY, Rewind(3, 9, issued)) for issued in (5, 6))
    with pytest.raises(FormatError):
        known.learn_rewind(sign_rewind(LIAR, AUTHORITY, Rewind(3, 9, 7)))
    assert known.learn_from_node(NodeWord(rewind=second), ME)
    assert not known.learn_rewind(first)
    assert not known.learn_rewind(second)
    assert KnownProgress(manifest=MANIFEST, authority=AUTHORITY, folder=tmp_path).rewound == 6


def test_a_peer_proves_to_another_how_far_the_run_is_while_the_node_is_away(tmp_path: Path):
    def progress(me: str) -> KnownProgress:
        return KnownProgress(manifest=TRUSTING, authority=AUTHORITY, folder=tmp_path / me)

    stays, comes_back = progress("stays"), progress("comes back")
    a, b = signed_by("a", record("a", 9, 0)), signed_by("b", record("b", 11, 1))
    stays.learn_from_node(NodeWord(run=11, holders=(a, b)), ME)
    assert stays.proofs_beyond(11) == ()
    comes_back.learn_from_peer(record("a", 9, 0), stays.proofs_beyond(3), ME)
    assert (comes_back.run, comes_back.parts) == (11, {EMBEDDING: 11, stage_part(0): 9, stage_part(1): 11})
    assert {*comes_back.proofs_beyond(3)} == {a, b}


def test_what_a_peer_passes_on_proves_nothing_that_liars_could_say_alone(tmp_path: Path):
    a, late, b = (signed_by(name, record(name, round, 0)) for name, round in (("a", 30), ("a", 31), ("b", 9)))
    for signed, run in (((a,), 0), ((a, late), 0), ((a, b), 9), ((a, b[:-1]), 0), ((b"no record",), 0)):
        known = KnownProgress(manifest=CAREFUL, authority=AUTHORITY, folder=tmp_path)
        with nullcontext() if {*signed} <= {a, late, b} else pytest.raises(FormatError):  # an offence
            known.learn_from_peer(record("a", 9, 0), signed, ME)
        assert known.run == run
        assert max(known.parts.values(), default=0) <= run + 1


def test_proofs_are_of_no_round_beyond_the_run_and_one_more_than_may_lie(tmp_path: Path):
    rounds = {"a": 30, "b": 10, "c": 9, "d": 8}
    records = [record(name, round, 0) for name, round in rounds.items()]
    signed = {one.peer_id: signed_by(name, one) for name, one in zip(rounds, records, strict=True)}
    for manifest, kept in ((TRUSTING, "b"), (CAREFUL, "bc")):
        known = KnownProgress(manifest=manifest, authority=AUTHORITY, folder=tmp_path)
        known.raise_to(9)
        known.see(records, signed)
        assert known.proofs_beyond(8) == tuple(signed[identity(name).peer_id] for name in kept)
        assert known.proofs_beyond(9) == ()


@pytest.mark.parametrize("phase", ["", RunPhase.CATCHING_UP, RunPhase.AWAITING_STATE])
def test_only_the_node_and_a_peer_that_holds_the_newest_state_confirm_how_far_the_run_is(tmp_path: Path, phase: str):
    known = KnownProgress(manifest=MANIFEST, authority=AUTHORITY, folder=tmp_path)
    known.learn_from_peer(record("a", 9, 0).model_copy(update={"phase": phase}), (), ME)
    assert known.confirmed == (not phase)
    known.learn_from_node(NodeWord(), ME)
    assert known.confirmed
