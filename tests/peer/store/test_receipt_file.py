from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import peer.store.receipt_file as module
from peer.store.receipt_file import KeptReceipts, files
from protocol.errors import ResourceError
from protocol.identity import PeerId, ReplicaId, RunId
from protocol.trust.membership_card import Authority, Card, Signer, issue
from protocol.trust.receipts import Work, by_round, receipt_to_line, sign_credit_receipt
from tests.reference.admitted import identity

RUN, OPERATOR, BY = RunId("ab" * 32), identity("operator"), identity("leader")
AUTHORITY = Authority(RUN, OPERATOR.peer_id)
SIGNER = Signer(BY, AUTHORITY, issue(OPERATOR, RUN, Card(BY.peer_id, "volunteer", 0, 0)))


def receipt(round: int, pairs: int) -> Work:
    me, group = PeerId("QmMe"), ReplicaId(BY.peer_id)
    return Work(BY.peer_id, me, round, group, 1, 0, 1, 1, pairs, pairs, 10 * pairs)


def append(kept: KeptReceipts, *found: Work) -> None:
    for each in found:
        kept.append(each.round, [sign_credit_receipt(SIGNER, each)])


def test_receipts_are_read_as_they_were_kept(tmp_path: Path):
    found = [receipt(1, 3), receipt(1, 6), receipt(2, 6), receipt(300, 6)]
    append(KeptReceipts(tmp_path / "credit", AUTHORITY), *found)
    assert list(KeptReceipts(tmp_path / "credit", AUTHORITY).read()) == [receipt(1, 6), receipt(2, 6), receipt(300, 6)]
    assert [path.name for path in files(tmp_path / "credit")] == ["00000000.receipts", "00000256.receipts"]


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 700))
def test_a_half_written_line_is_passed_over_and_written_on_behind(tmp_path_factory: pytest.TempPathFactory, cut: int):
    folder = tmp_path_factory.mktemp("credit")
    append(KeptReceipts(folder, AUTHORITY), receipt(1, 3))
    (path,) = files(folder)
    with path.open("ab") as file:
        file.write(receipt_to_line(sign_credit_receipt(SIGNER, receipt(1, 6)))[:cut][:-1])
    assert list(KeptReceipts(folder, AUTHORITY).read()) == [receipt(1, 3)]
    again = KeptReceipts(folder, AUTHORITY)
    append(again, receipt(2, 4))
    assert list(again.read()) == [receipt(1, 3), receipt(2, 4)]


def test_a_file_that_has_grown_is_rid_of_what_was_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "LARGE_BYTES", 5000)
    kept = KeptReceipts(tmp_path, AUTHORITY)
    append(kept, *(receipt(1, pairs) for pairs in range(1, 40)))
    (path,) = files(tmp_path)
    assert path.stat().st_size < 7000
    assert [credit.tokens for credit in by_round(kept.read())] == [390]


def test_what_cannot_be_written_is_an_error_that_says_where(tmp_path: Path):
    (tmp_path / "credit").write_text("no folder")
    with pytest.raises(ResourceError, match="cannot keep receipts"):
        append(KeptReceipts(tmp_path / "credit", AUTHORITY), receipt(1, 3))
