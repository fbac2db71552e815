"""The node's memory of who held the newest states: by their own signatures, and across restarts."""

from pathlib import Path

from bootstrap.monitor.holders import KEPT_HOLDERS, Holders
from protocol.identity import RunId
from protocol.outer.phases import RunPhase
from protocol.outer.progress import Rewind
from protocol.trust.membership_card import Authority, Card, Role, Signer, issue
from protocol.trust.records import PeerRecord, read_record, sign_record
from protocol.trust.rewinds import REWIND_FILE, sign_rewind
from tests.reference.admitted import identity

RUN = RunId("ab" * 32)
OPERATOR, LIAR = identity("operator"), identity("liar")
AUTHORITY = Authority(RUN, OPERATOR.peer_id)


def record(name: str, round: int, stage: int | None = None, **changes: object) -> PeerRecord:
    role: Role = "datacenter" if stage is None else "volunteer"
    fields = {"peer_id": identity(name).peer_id, "address": "h:1", "role": role, "stage": stage or 0, "slot": 0}
    return PeerRecord.model_validate(fields | {"round": round, "contributed": round, **changes})


def signed_by(name: str, told: PeerRecord) -> bytes:
    me = identity(name)
    card = issue(OPERATOR, RUN, Card(me.peer_id, told.role, told.stage, 0))
    return sign_record(Signer(me, AUTHORITY, card), told)


def seen(holders: Holders, run: int, *told: tuple[str, PeerRecord]) -> dict[str, int]:
    """The rounds of the named holders, by name, once these have been seen."""
    holders.see([told for _, told in told], {told.peer_id: signed_by(name, told) for name, told in told}, run)
    return rounds(holders)


def rounds(holders: Holders) -> dict[str, int]:
    names = {identity(name).peer_id: name for name in ("a", "b", "c", "center")}
    found = [read_record(data, record.peer_id, AUTHORITY) for data, record in zip(*_named(holders), strict=True)]
    return {names[record.peer_id]: record.round for record in found}


def _named(holders: Holders) -> tuple[tuple[bytes, ...], list[PeerRecord]]:
    return holders.named(), holders.newest.records()


def test_the_newest_holder_of_each_stage_is_kept_also_when_the_node_starts_again(tmp_path: Path):
    holders = Holders(AUTHORITY, tmp_path)
    assert seen(holders, 9, ("a", record("a", 9, 0)), ("b", record("b", 8, 1))) == {"a": 9, "b": 8}
    assert seen(holders, 12, ("c", record("c", 12, 1)), ("b", record("b", 10, 1))) == {"a": 9, "c": 12}
    assert seen(holders, 12, ("center", record("center", 11))) == {"a": 9, "c": 12, "center": 11}
    assert rounds(Holders(AUTHORITY, tmp_path)) == {"a": 9, "c": 12, "center": 11}


def test_who_does_not_hold_the_newest_state_is_no_holder(tmp_path: Path):
    holders = Holders(AUTHORITY, tmp_path)
    behind = record("a", 9, 0, phase=RunPhase.CATCHING_UP), record("b", 9, 1, phase=RunPhase.AWAITING_STATE)
    assert seen(holders, 9, ("a", behind[0]), ("b", behind[1]), ("c", record("c", 0, 1))) == {}


def test_one_liar_takes_the_node_no_further_than_the_round_after_its_own(tmp_path: Path):
    holders = Holders(AUTHORITY, tmp_path)
    assert seen(holders, 9, ("a", record("a", 11, 0)), ("b", record("b", 10, 1))) == {"b": 10}


def test_a_damaged_file_or_a_strangers_record_in_it_counts_as_absent(tmp_path: Path):
    holders = Holders(AUTHORITY, tmp_path)
    seen(holders, 9, ("a", record("a", 9, 0)), ("b", record("b", 8, 1)))
    kept = (tmp_path / KEPT_HOLDERS).read_bytes()
    (tmp_path / KEPT_HOLDERS).write_bytes(kept[:-1])
    assert rounds(Holders(AUTHORITY, tmp_path)) == {}
    (tmp_path / KEPT_HOLDERS).write_bytes(kept)
    assert rounds(Holders(Authority(RunId("cd" * 32), OPERATOR.peer_id), tmp_path)) == {}


def test_the_operators_rewind_is_read_from_its_folder_and_no_other(tmp_path: Path):
    holders = Holders(AUTHORITY, tmp_path)
    signed = sign_rewind(OPERATOR, AUTHORITY, Rewind(3, 9, 1))
    for data, kept in ((sign_rewind(LIAR, AUTHORITY, Rewind(3, 9, 2)), b""), (signed, signed), (b"damaged", signed)):
        (tmp_path / REWIND_FILE).write_bytes(data)
        holders.see([], {}, 9)
        assert holders.signed_rewind == kept
