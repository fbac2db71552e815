"""What was put in the store of contributions is there after a crash, once, and goes when it is of no use any more."""

import hashlib
import os
from pathlib import Path

import pytest

from peer.store.contributions import BLOCK_BYTES, ContributionStore
from protocol.errors import ResourceError
from protocol.identity import EMBEDDING, ContributionName, PeerId
from protocol.outer.ledger import Entry


def entry(round: int, blob: bytes) -> Entry:
    receipts = {PeerId("QmB"): b"its receipt"}
    return Entry(
        ContributionName(EMBEDDING, round, PeerId("QmA")),
        hashlib.sha256(blob).hexdigest(),
        len(blob),
        b"proof of " + blob,
        receipts,
    )


def test_what_was_put_is_found_again_with_proof_receipts_and_bytes(tmp_path: Path):
    first = ContributionStore(tmp_path)
    first.put(entry(1, b"one"), b"one")
    first.put(entry(2, b"void"))
    again = ContributionStore(tmp_path)
    found = list(again.found())
    assert found == [(b"proof of one", [b"its receipt"], True), (b"proof of void", [b"its receipt"], False)]
    assert again.read(entry(1, b"one").sha256) == b"one"
    assert again.lookup(entry(2, b"void").sha256) is None


def test_what_is_damaged_is_passed_over_and_what_is_half_written_goes(tmp_path: Path):
    contribution_store = ContributionStore(tmp_path)
    for round, blob in enumerate((b"turned", b"cut short", b"no head", b"whole"), 1):
        contribution_store.put(entry(round, blob), blob)
    turned, cut, headless = (
        contribution_store.slices[entry(0, blob).sha256].path for blob in (b"turned", b"cut short", b"no head")
    )
    turned.write_bytes(turned.read_bytes()[:-1] + b"D")
    cut.write_bytes(cut.read_bytes()[:-2])
    headless.write_bytes(b"\xc1")
    half = turned.with_name(f".{turned.name}.partial")
    half.write_bytes(b"half")
    assert [proof for proof, _, _ in ContributionStore(tmp_path).found()] == [b"proof of whole"]
    assert half.exists()  # its peer may be at work
    ContributionStore(tmp_path).tidy()
    assert not half.exists()


def test_closed_rounds_go_but_for_what_is_to_be_kept(tmp_path: Path):
    contribution_store = ContributionStore(tmp_path)
    for round in range(1, 6):
        contribution_store.put(entry(round, bytes([round])), bytes([round]))
    kept = entry(2, b"\x02").sha256
    contribution_store.drop(EMBEDDING, 3, keep=[kept])
    contribution_store.put(entry(1, b"too late"), b"too late")
    contribution_store.drop(EMBEDDING, 4, keep=[kept])
    assert {proof for proof, _, _ in ContributionStore(tmp_path).found()} == {b"proof of \x02", b"proof of \x05"}
    assert contribution_store.slices.keys() == {kept, entry(5, b"\x05").sha256}


def test_a_contribution_costs_one_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    contribution_store, synced = ContributionStore(tmp_path), []
    contribution_store.put(entry(1, b"one"), b"one")
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: (synced.append(file), real(file)))
    contribution_store.put(entry(2, b"two"), b"two")
    assert len(synced) == 2  # the file, and its name


def test_what_there_is_no_room_for_is_not_written(tmp_path: Path):
    """And what is dropped makes room: files are counted as the disk counts them."""
    contribution_store, half = ContributionStore(tmp_path, most_bytes=3 * BLOCK_BYTES), b"x" * (BLOCK_BYTES // 2)
    contribution_store.put(entry(1, b"one"), b"one")
    contribution_store.put(entry(2, half), half)
    for _ in range(2):  # also after a restart
        with pytest.raises(ResourceError, match="--max-disk"):
            contribution_store.put(entry(3, b"three"), b"three")
        contribution_store = ContributionStore(tmp_path, most_bytes=3 * BLOCK_BYTES)
        contribution_store.tidy()
    contribution_store.put(entry(1, b"one"), b"one")  # the same again takes no more
    contribution_store.drop(EMBEDDING, 1)
    contribution_store.put(entry(3, b"three"), b"three")
    assert sum(path.stat().st_blocks * 512 for path in tmp_path.glob("*/*")) <= 3 * BLOCK_BYTES
