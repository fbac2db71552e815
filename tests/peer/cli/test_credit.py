import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from peer.cli import credit
from peer.cli.credit import CreditOptions, show_credit
from peer.process import Terminal
from peer.store.membership import MEMBERSHIP, KeptMembership
from peer.store.receipt_file import RECEIPTS, KeptReceipts
from peer.store.served import ContributionStore
from protocol.codec.snapshot import PIECE_BYTES, Header
from protocol.events.activity import Failed
from protocol.identity import EMBEDDING, PeerId, ReplicaId, stage_part
from protocol.layout import elements, model_layout
from protocol.outer.data_plan import Reading
from protocol.outer.history import History
from protocol.outer.ledger import Revocation
from protocol.run.run_files import DESCRIPTOR, RunFile, descriptor_of, file_names
from protocol.trust.keys import Identity, load_or_create
from protocol.trust.membership_card import Authority, Card, Role, Signer, issue
from protocol.trust.proofs import sign_revocation
from protocol.trust.receipts import (
    RETIRED,
    Work,
    microbatch_tokens,
    receipt_from_line,
    receipt_to_line,
    sign_credit_receipt,
)
from protocol.trust.signed import sign_fields as sign_message
from tests.reference.admitted import identity
from tests.reference.small_manifest import small_manifest

MANIFEST = small_manifest(replicas={"stages": 3}, outer={"rounds": 40})
OPERATOR, LEADER, LAST, SAME = (identity(name) for name in ("operator", "leader", "last", "same"))
DESCRIPTION = descriptor_of(MANIFEST, OPERATOR.peer_id, [RunFile(name, "ef" * 32, 5) for name in file_names(MANIFEST)])
AUTHORITY = Authority(DESCRIPTION.run_id, OPERATOR.peer_id)
TOKENS = microbatch_tokens(MANIFEST)
SIGNERS = {LEADER.peer_id: (LEADER, 0), LAST.peer_id: (LAST, 2), SAME.peer_id: (SAME, 1)}


def signed(receipt: Work) -> bytes:
    who, stage = SIGNERS[receipt.signer]
    card = issue(OPERATOR, AUTHORITY.run, Card(who.peer_id, "volunteer", stage, 0))
    return sign_credit_receipt(Signer(who, AUTHORITY, card), receipt)


def work(by: Identity, me: PeerId, round: int, pairs: int) -> Work:
    beside = SIGNERS[by.peer_id][1]
    group = ReplicaId(LEADER.peer_id)
    return Work(by.peer_id, me, round, group, 1, beside, 1, 1, pairs, pairs, pairs * TOKENS)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A peer of stage 1 with receipts of rounds 1, 2, 30 and 36, of which 1 counts, and 3, too."""
    folder = tmp_path / "peer"
    me = load_or_create(folder).peer_id
    (folder / DESCRIPTOR).write_bytes(DESCRIPTION.canonical())
    kept = KeptReceipts(folder / RECEIPTS, AUTHORITY)
    found = [
        work(LEADER, me, 1, 3),
        work(LEADER, me, 1, 6),
        work(LAST, me, 1, 4),
        work(LEADER, me, 30, 6),
        work(LEADER, me, 36, 1),
    ]
    found.append(work(LEADER, me, 2, 6))
    for each in found:
        kept.append(each.round, [signed(each)])
    older = sign_message(SAME, RETIRED.decode(), [AUTHORITY.run, me, 1, "stage-1", bytes(32), 3, b""])
    kept.append(1, [older])  # as a version before this one kept them
    hold(folder, 3, {SAME.peer_id: [(1, 3)], me: [(1, 1), (3, 3)]})
    return folder


def hold(folder: Path, round: int, counted: dict[PeerId, list[tuple[int, int]]]) -> None:
    """Have a folder hold the states after a round of what its peer follows; `counted` is stage 1's history."""
    store = folder / "snapshots"
    store.mkdir(exist_ok=True)
    for part, history, reading in (
        (EMBEDDING, History(), Reading.begin(MANIFEST)),
        (stage_part(1), History(counted), None),
    ):
        pieces = -(-4 * elements(model_layout(MANIFEST)[part]) // PIECE_BYTES)
        header = Header(part, round, history, ("ab" * 32,) * pieces, reading)
        (store / f"{part}-{round:08d}.header").write_bytes(header.to_bytes())


def run(*arguments: Path, capsys: pytest.CaptureFixture[str], out: Path | None = None) -> tuple[int, dict]:
    said: list[object] = []
    code = show_credit(
        CreditOptions(folder=arguments[0], verify=[*arguments[1:]], out=out), Terminal(said.append, json=True)
    )
    shown = capsys.readouterr().out
    return code, json.loads(shown) if shown else said[0]


def test_a_program_gets_what_each_round_brought_and_by_whose_word(folder: Path, capsys: pytest.CaptureFixture[str]):
    code, shown = run(folder, capsys=capsys)
    assert code == 0
    assert (shown["run"], shown["operator"]) == (AUTHORITY.run, AUTHORITY.operator)
    first, second, third, last, never = shown["rounds"]
    assert never["why"] == "one of the run's last rounds"
    assert (first["tokens"], first["tokens_of_both"], first["microbatches"]) == (6 * TOKENS, 4 * TOKENS, 6)
    assert set(first["neighbours"]) == {LEADER.peer_id, LAST.peer_id}
    assert [first["counted"], second["counted"], third["counted"], last["counted"]] == [True, False, True, False]
    assert (third["round"], third["tokens"]) == (3, 0)
    assert second["why"] == "counted in no state that this folder holds"
    assert "not closed here yet" in last["why"]
    assert shown["rounds_counted"] == 2
    assert shown["tokens"] == 19 * TOKENS
    assert shown["refused"] == []


def test_a_person_is_told_that_all_of_it_was_verified_and_against_what(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(credit, "CREDIT_ROUNDS", 4)
    assert show_credit(CreditOptions(folder=folder), Terminal(lambda event: None)) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "Before these: 1 round, which --json lists, too." in shown
    assert f"Signed by others: {19 * TOKENS:,} tokens in 4 rounds" in shown
    assert "Counted in the run's state: 2 rounds." in shown
    assert "Of the run's last rounds: 1 round. What is signed shows them" in shown
    assert "Counted, and signed by nobody: 1 round. A neighbour that is killed or cut off before it signs" in shown
    assert f"Verified offline against run {AUTHORITY.run[:12]}" in shown
    assert "receipts hold." in shown


def test_what_is_written_out_verifies_by_another_peers_folder(folder: Path, tmp_path: Path, capsys):
    given, other = tmp_path / "mine.receipts", tmp_path / "other"
    run(folder, capsys=capsys, out=given)
    other.mkdir()
    (other / DESCRIPTOR).write_bytes(DESCRIPTION.canonical())
    code, shown = run(other, given, capsys=capsys)
    assert code == 0
    assert shown["tokens"] == 19 * TOKENS
    assert shown["peer"] == load_or_create(folder).peer_id


def test_whoever_knows_one_run_need_not_name_it_to_verify(folder: Path, tmp_path: Path, capsys, monkeypatch):
    given, home = tmp_path / "mine.receipts", tmp_path / "home"
    run(folder, capsys=capsys, out=given)
    monkeypatch.setenv("HETPEER_HOME", str(home))
    options, said = CreditOptions(verify=[given]), list[Failed]()
    assert show_credit(options, Terminal(said.append)) == 4
    assert "there is no run under" in said[0].message
    for place in ("bootstrap-mine", "0123/stage-0", "0123/stage-1"):
        (home / place).mkdir(parents=True)
        (home / place / DESCRIPTOR).write_bytes(DESCRIPTION.canonical())
    assert show_credit(options, Terminal(said.append)) == 0
    assert "Verified offline" in capsys.readouterr().out


def test_where_no_peer_has_receipts_the_one_with_states_is_shown(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("HETPEER_HOME", str(tmp_path))
    (folder / RECEIPTS).rename(tmp_path / "away")
    datacenter = tmp_path / "0123" / "datacenter"
    datacenter.parent.mkdir()
    folder.rename(datacenter)
    (datacenter / "lock").touch()
    assert show_credit(CreditOptions(), Terminal(lambda event: None)) == 0
    assert "Counted in the run's state: 2 rounds." in capsys.readouterr().out


def test_of_several_peers_the_one_that_was_at_work_last_is_shown(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("HETPEER_HOME", str(tmp_path))
    said: list[Failed] = []
    assert show_credit(CreditOptions(), Terminal(said.append)) == 4
    assert "name its folder" in said[0].message
    run = tmp_path / "0123"
    for place in ("stage-0", "stage-1", "stage-2"):
        shutil.copytree(folder, run / place)
        (run / place / "lock").touch()
        for path in (*(run / place / RECEIPTS).glob("*"), *(run / place / "snapshots").glob("*")):
            os.utime(path, (1000.0, 1000.0))
    os.utime(next((run / "stage-1" / RECEIPTS).glob("*")), (2000.0, 2000.0))
    assert show_credit(CreditOptions(), Terminal(said.append)) == 0
    shown = capsys.readouterr().out
    assert f"Of the peer in {run}/stage-1 (it was at work last; others: {run}/stage-0, {run}/stage-2)" in shown
    assert show_credit(CreditOptions(json=True), Terminal(said.append, json=True)) == 0
    assert json.loads(capsys.readouterr().out)["rounds_counted"] == 2


def forged(folder: Path) -> dict[str, list[bytes]]:
    """What a holder may try, by what is said of it."""
    me, path = load_or_create(folder), folder / "credit" / "00000000.receipts"
    lines = path.read_bytes().splitlines(keepends=True)
    data = receipt_from_line(lines[0])
    card = issue(OPERATOR, AUTHORITY.run, Card(me.peer_id, "volunteer", 1, 0))
    own = sign_credit_receipt(Signer(me, AUTHORITY, card), replace(work(LAST, me.peer_id, 5, 3), stage=2))
    unknown = Signer(LAST, AUTHORITY, issue(me, AUTHORITY.run, Card(LAST.peer_id, "volunteer", 2, 0)))
    elsewhere = work(LEADER, SAME.peer_id, 9, 6)
    return {
        "does not hold": [*lines, receipt_to_line(data.replace(b"\x01\xd9", b"\x02\xd9", 1)[:-1] + b"\0")],
        "base64": [*lines, lines[0][: len(lines[0]) // 2]],
        "not peer": [*lines, receipt_to_line(signed(elsewhere))],
        "for itself": [*lines, receipt_to_line(own)],
        "nobody who may admit": [*lines, receipt_to_line(sign_credit_receipt(unknown, work(LAST, me.peer_id, 5, 3)))],
        "not those of": [*lines, receipt_to_line(signed(replace(work(LEADER, me.peer_id, 9, 6), tokens=10**9)))],
    }


@pytest.mark.parametrize(
    "why", ["does not hold", "base64", "not peer", "for itself", "nobody who may admit", "not those of"]
)
def test_what_is_forged_is_named_and_adds_nothing(folder: Path, tmp_path: Path, why: str, capsys):
    given = tmp_path / "forged"
    given.write_bytes(b"".join(forged(folder)[why]))
    code, shown = run(folder, given, capsys=capsys)
    assert code == 7
    (refused,) = shown["refused"]
    assert why in refused["why"]
    assert refused["line"] == len(forged(folder)[why])
    assert shown["tokens"] == 19 * TOKENS


def test_what_stands_there_twice_counts_once(folder: Path, tmp_path: Path, capsys):
    given = tmp_path / "twice"
    given.write_bytes(2 * (folder / "credit" / "00000000.receipts").read_bytes())
    code, shown = run(folder, given, capsys=capsys)
    assert code == 0
    assert shown["tokens"] == 19 * TOKENS


def test_of_a_peer_that_was_taken_out_nothing_holds_from_then_on(folder: Path, capsys):
    record = sign_revocation(OPERATOR, AUTHORITY, Revocation(LEADER.peer_id, 30, 30))
    ContributionStore(folder / "contributions").keep_revocation(record)
    code, shown = run(folder, capsys=capsys)
    assert code == 7
    assert len(shown["refused"]) == 2
    assert "taken its signer" in shown["refused"][0]["why"]
    assert shown["tokens"] == 12 * TOKENS


def test_a_folder_that_is_no_peers_is_an_error_that_says_so(tmp_path: Path, capsys):
    code, said = run(tmp_path, capsys=capsys)
    assert code == 4
    assert isinstance(said, Failed)
    assert "there is no run in" in said.message


def test_a_peer_without_receipts_is_told_so(folder: Path, capsys):
    for path in (folder / RECEIPTS).iterdir():
        path.unlink()
    assert show_credit(CreditOptions(folder=folder), Terminal(lambda event: None)) == 0
    assert "These are the states in the folder of" in capsys.readouterr().out
    for path in (folder / "snapshots").iterdir():
        path.unlink()
    assert show_credit(CreditOptions(folder=folder), Terminal(lambda event: None)) == 0
    assert "There are no receipts" in capsys.readouterr().out


@pytest.mark.parametrize(("role", "stage"), [("datacenter", 0), ("volunteer", 1)])
def test_a_peer_beside_whom_nobody_is_reads_who_can_sign_and_what_proves_its_rounds(
    folder: Path, capsys: pytest.CaptureFixture[str], role: Role, stage: int
):
    for path in (folder / RECEIPTS).iterdir():
        path.unlink()
    card = issue(OPERATOR, AUTHORITY.run, Card(load_or_create(folder).peer_id, role, stage, 0))
    (folder / MEMBERSHIP).write_text(KeptMembership(card=card).model_dump_json())
    assert show_credit(CreditOptions(folder=folder), Terminal(lambda event: None)) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "Signed by others: 0 tokens in 0 rounds. Counted in the run's state: 2 rounds." in shown
    whole = MANIFEST.tokens_per_step * MANIFEST.inner.steps
    alone = "this peer computes all stages itself. The run's state, which is alike for all who follow the run"
    assert (alone in shown, f"a whole round has {whole:,}" in shown) == (role == "datacenter",) * 2
