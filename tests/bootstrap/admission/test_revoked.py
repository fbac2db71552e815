"""The list of those who get no certificate."""

from pathlib import Path

import pytest

from bootstrap.admission.database import DATABASE
from bootstrap.admission.lists import RevokedPeer
from bootstrap.admission.revoked import RevokedList, add, read_revoked
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
    assert [each.signed for each in read_revoked(tmp_path)] == [b"\x00\xff word", b""]


def test_what_is_written_is_read(tmp_path: Path):
    entries = [RevokedPeer(peer=ANN, start=n, at=float(n), signed=bytes([n] * n)) for n in range(4)]
    for entry in entries:
        add(tmp_path, entry)
    assert read_revoked(tmp_path) == tuple(entries)


def test_what_is_written_is_there_after_a_restart(tmp_path: Path):
    RevokedList(tmp_path).check(ANN)
    add(tmp_path, RevokedPeer(peer=ANN, start=3, at=1.5))
    with pytest.raises(RefusedError, match="revoked this peer"):
        RevokedList(tmp_path).check(ANN)


def test_a_damaged_list_lets_nobody_have_a_certificate(tmp_path: Path):
    (tmp_path / DATABASE).write_bytes(b"no database " * 1000)
    node = RevokedList(tmp_path)
    for _ in range(2):
        with pytest.raises(ResourceError, match=r"operator\.sqlite3 is damaged"):
            node.check(BOB)


def test_a_list_that_is_taken_away_lets_nobody_have_a_certificate_and_a_copy_in_its_place_is_read(tmp_path: Path):
    (copy := tmp_path / "copy").mkdir()
    add(copy, RevokedPeer(peer=ANN, start=3, at=1.5))
    node = RevokedList(tmp_path)
    node.check(ANN)
    for file in tmp_path.glob(f"{DATABASE}*"):
        file.unlink()
    with pytest.raises(ResourceError, match="No such file"):
        node.check(BOB)
    (copy / DATABASE).rename(tmp_path / DATABASE)
    with pytest.raises(RefusedError):
        node.check(ANN)
    node.check(BOB)
