"""The list of those who get no certificate."""

from pathlib import Path

import pytest

from bootstrap.admission.revoked import REVOKED, RevokedList, RevokedPeer, add, read_revoked
from protocol.errors import RefusedError, ResourceError
from protocol.identity import PeerId

ANN, BOB = PeerId("QmAnn"), PeerId("QmBob")


def test_a_node_that_runs_hears_of_each_new_entry(tmp_path: Path):
    node = RevokedList(tmp_path)
    node.check(ANN)
    add(tmp_path, RevokedPeer(peer=ANN, start=3, at=1.5, signed=b"\x00\xff word"))
    with pytest.raises(RefusedError, match="revoked this peer"):
        node.check(ANN)
    node.check(BOB)
    add(tmp_path, RevokedPeer(peer=BOB, start=0, at=2.5))
    with pytest.raises(RefusedError):
        node.check(BOB)
    assert [each.signed for each in node.entries] == [b"\x00\xff word", b""]


def test_what_is_written_is_read(tmp_path: Path):
    entries = [RevokedPeer(peer=ANN, start=n, at=float(n), signed=bytes([n] * n)) for n in range(4)]
    for entry in entries:
        add(tmp_path, entry)
    assert read_revoked(tmp_path) == tuple(entries)
    assert (tmp_path / REVOKED).stat().st_mode & 0o777 == 0o600


def test_an_unchanged_list_is_not_read_again(tmp_path: Path):
    node = RevokedList(tmp_path)
    assert not node.refresh()
    add(tmp_path, RevokedPeer(peer=ANN, start=3, at=1.5))
    assert node.refresh()
    assert not node.refresh()


def test_a_damaged_list_lets_nobody_have_a_certificate(tmp_path: Path):
    (tmp_path / REVOKED).write_text('{"peer": "QmAnn"}\n')
    node = RevokedList(tmp_path)
    for _ in range(2):
        with pytest.raises(ResourceError, match=r"revoked\.jsonl is damaged"):
            node.check(BOB)


def test_a_list_that_is_taken_away_is_empty(tmp_path: Path):
    node = RevokedList(tmp_path)
    add(tmp_path, RevokedPeer(peer=ANN, start=3, at=1.5))
    node.refresh()
    (tmp_path / REVOKED).unlink()
    node.check(ANN)
