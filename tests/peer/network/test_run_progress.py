"""Progress as a peer knows it: the node's word counts as far as holders' signatures prove it."""

from pathlib import Path

import pytest

from peer.network.run_progress import KnownProgress
from protocol.errors import FormatError
from protocol.identity import EMBEDDING, RunId, stage_part
from protocol.monitor import NodeWord
from protocol.outer.progress import Rewind
from protocol.trust.membership_card import Authority
from protocol.trust.rewinds import sign_rewind
from tests.bootstrap.monitor.test_holders import AUTHORITY, LIAR, OPERATOR, record, signed_by
from tests.reference.admitted import identity
from tests.reference.small_manifest import small_manifest

MANIFEST = small_manifest(outer={"rounds": 40})
ME = identity("me").peer_id


def test_the_nodes_word_counts_as_far_as_signed_records_prove_it(tmp_path: Path):
    known = KnownProgress(authority=AUTHORITY, folder=tmp_path)
    a, b = signed_by("a", record("a", 9, 0)), signed_by("b", record("b", 11, 1))
    known.learn_from_node(NodeWord(run=30, holders=(a, b, b"no record", a[:-1])), ME, MANIFEST)
    assert known.run == 11
    assert known.parts == {EMBEDDING: 11, stage_part(0): 9, stage_part(1): 11}


def test_a_record_of_a_round_far_beyond_the_run_raises_a_part_by_one_round_and_of_another_run_by_none(tmp_path: Path):
    known = KnownProgress(authority=AUTHORITY, folder=tmp_path)
    known.learn_from_node(NodeWord(run=9, holders=(signed_by("a", record("a", 30, 0)),)), ME, MANIFEST)
    assert (known.run, known.parts[stage_part(0)]) == (9, 10)
    other = KnownProgress(authority=Authority(RunId("cd" * 32), OPERATOR.peer_id), folder=tmp_path)
    other.learn_from_node(NodeWord(run=9, holders=(signed_by("a", record("a", 9, 0)),)), ME, MANIFEST)
    assert other.run == 0


def test_what_this_peer_has_held_itself_is_for_its_folder_to_say(tmp_path: Path):
    known = KnownProgress(authority=AUTHORITY, folder=tmp_path)
    known.learn_from_node(
        NodeWord(run=9, holders=(signed_by("a", record("a", 9, 0)),)), identity("a").peer_id, MANIFEST
    )
    assert (known.run, known.parts.get(stage_part(0), 0)) == (9, 0)


def test_a_rewind_is_kept_in_the_folder_and_only_a_later_one_takes_its_place(tmp_path: Path):
    known = KnownProgress(authority=AUTHORITY, folder=tmp_path)
    first, second = (sign_rewind(OPERATOR, AUTHORITY, Rewind(3, 9, issued)) for issued in (5, 6))
    with pytest.raises(FormatError):
        known.learn_rewind(sign_rewind(LIAR, AUTHORITY, Rewind(3, 9, 7)))
    assert known.learn_from_node(NodeWord(rewind=second), ME, MANIFEST)
    assert not known.learn_rewind(first)
    assert not known.learn_rewind(second)
    assert KnownProgress(authority=AUTHORITY, folder=tmp_path).rewound == 6
