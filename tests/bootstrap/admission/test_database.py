"""The operator's database: what an earlier version left is read in, and what happens to it when things go wrong."""

import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from bootstrap.admission import audit_log, database, operator_lists
from bootstrap.admission.audit_log import AuditEntry
from bootstrap.admission.database import (
    DATABASE,
    INVITATIONS,
    LOG,
    REVOKED,
    TRIALS,
    Invitation,
    RevokedPeer,
    Trials,
    changing,
    reading,
)
from protocol.errors import RefusedError, ResourceError
from protocol.identity import PeerId

ANN, BOB = PeerId("QmAnn"), PeerId("QmBob")

TOKEN = bytes(range(20))

OLD_FILES = {
    INVITATIONS: """{
 "closed": true,
 "invitations": [
  {
   "id": "00010203",
   "sha256": "e7aebf577f60412f0312d442c70a1fa6148c090bf5bab404caec29482ae779e8",
   "uses": 2,
   "issued": 100,
   "expires": 200,
   "used_by": [
    "QmAnn"
   ],
   "revoked": false,
   "gateway": false
  },
  {
   "id": "a0010203",
   "sha256": "0000000000000000000000000000000000000000000000000000000000000000",
   "uses": 1,
   "issued": 101,
   "expires": 201,
   "used_by": [],
   "revoked": true,
   "gateway": true
  }
 ]
}
""",
    REVOKED: '{"peer":"QmBob","start":3,"at":150.5,"signed":"AP8gd29yZA=="}\n'
    '{"peer":"QmBob","start":0,"at":151.0,"signed":""}\n',
    TRIALS: '{"required":true,"stood":["QmAnn"]}',
    "log.old.jsonl": '{"what": "admitted", "at": 2.5, "peer": "QmAnn", "role": "volunteer", "stage": 0, "slot": 3}\n',
    LOG: '{"what": "revoked", "at": 150.5, "peer": "QmBob", "reason": "from round 3 on"}\n{"what": "adm',
}
"""As the version before this database wrote them; the log's last line was cut short."""


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """The folder of an earlier version's node."""
    for name, text in OLD_FILES.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def test_the_lists_of_an_earlier_version_go_on(old: Path):
    assert operator_lists.is_closed(old)
    first, second = operator_lists.read_invitations(old)
    assert (first.id, first.uses, first.used_by, first.state(150)) == ("00010203", 2, (ANN,), "open")
    made = {"id": "a0010203", "sha256": "0" * 64, "uses": 1, "issued": 101, "expires": 201}
    assert second == Invitation(**made, revoked=True, gateway=True)  # type: ignore[arg-type]
    assert operator_lists.read_revoked(old) == (
        RevokedPeer(peer=BOB, start=3, at=150.5, signed=b"\0\xff word"),
        RevokedPeer(peer=BOB, start=0, at=151.0),
    )
    assert operator_lists.read_trials(old) == Trials(required=True, stood=frozenset({ANN}))
    admitted = AuditEntry(what="admitted", at=2.5, peer=ANN, role="volunteer", stage=0, slot=3)
    shut_out = AuditEntry(what="revoked", at=150.5, peer=BOB, reason="from round 3 on")
    assert audit_log.last(old, 9) == [admitted, shut_out]
    with pytest.raises(RefusedError, match="ended"):
        operator_lists.redeem(old, TOKEN, BOB, 200)
    assert operator_lists.redeem(old, TOKEN, BOB, 150) == "00010203"


def test_old_files_are_read_once_and_stay_as_they_were(old: Path):
    operator_lists.add_revoked(old, RevokedPeer(peer=ANN, start=1, at=160.0))
    (old / TRIALS).write_text("later nonsense")
    (old / REVOKED).unlink()
    assert [each.peer for each in operator_lists.read_revoked(old)] == [BOB, BOB, ANN]
    assert operator_lists.read_trials(old).required
    assert (old / INVITATIONS).read_text() == OLD_FILES[INVITATIONS]


@pytest.mark.parametrize(
    ("name", "damage"),
    [(INVITATIONS, each) for each in (b"", b"{", b"[]", b'{"closed": "no"}', b'{"invitations": [{"id": 1}]}', b"\xff")]
    + [(TRIALS, each) for each in (b"", b"{", b'{"required": 1}', b'{"required": true, "more": 1}', b"\xff")]
    + [(REVOKED, b'{"peer": "QmAnn"}\n')],
)
def test_of_a_damaged_old_file_nothing_is_read_in_until_it_is_put_back(old: Path, name: str, damage: bytes):
    (old / name).write_bytes(damage)
    readers = (operator_lists.is_closed, operator_lists.read_trials, operator_lists.read_revoked)
    for attempt in (*readers, operator_lists.RevokedList(old).check):
        with pytest.raises(ResourceError, match=f"{name} is damaged: put it back from a copy, or move it away"):
            attempt(old)  # type: ignore[arg-type]
    (old / name).write_text(OLD_FILES[name])
    assert (
        operator_lists.is_closed(old),
        len(operator_lists.read_revoked(old)),
        operator_lists.read_trials(old).required,
    ) == (
        True,
        2,
        True,
    )


OPEN = """
import sys
from pathlib import Path
from bootstrap.admission.operator_lists import read_invitations
print(len(read_invitations(Path(sys.argv[1]))), flush=True)
"""


def test_processes_that_open_an_old_folder_at_once_read_it_in_once(old: Path):
    processes = [subprocess.Popen([sys.executable, "-c", OPEN, str(old)], stdout=subprocess.PIPE) for _ in range(4)]
    assert [process.communicate(timeout=120)[0] for process in processes] == [b"2\n"] * 4
    assert len(audit_log.last(old, 9)) == 2


def test_a_process_that_comes_second_reads_nothing_in(old: Path, monkeypatch: pytest.MonkeyPatch):
    operator_lists.add_revoked(old, RevokedPeer(peer=ANN, start=1, at=160.0))
    seen, version = iter([0]), database._version
    monkeypatch.setattr(database, "_version", lambda lists: next(seen, version(lists)))  # before the other was done
    assert [each.peer for each in operator_lists.read_revoked(old)] == [BOB, BOB, ANN]


def test_who_opens_a_database_that_another_just_makes_waits_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / DATABASE).touch()
    with closing(sqlite3.connect(tmp_path / DATABASE, isolation_level=None)) as maker:
        maker.execute("BEGIN IMMEDIATE")
        monkeypatch.setattr(database.time, "sleep", lambda seconds: maker.execute("ROLLBACK"))  # while the other waits
        assert operator_lists.read_invitations(tmp_path) == ()
        assert not maker.in_transaction


def test_a_database_of_a_later_version_is_left_alone(tmp_path: Path):
    operator_lists.require_trials(tmp_path, True)
    with closing(sqlite3.connect(tmp_path / DATABASE, isolation_level=None)) as later:
        later.execute(f"PRAGMA user_version = {database.TABLES_VERSION + 1}")
    with pytest.raises(ResourceError, match="later version"):
        operator_lists.require_trials(tmp_path, False)


KILLED = """
import sys, time
from pathlib import Path
from bootstrap.admission.database import changing
from bootstrap.admission.database import RevokedPeer
from bootstrap.admission.operator_lists import add_revoked
add_revoked(Path(sys.argv[1]), RevokedPeer(peer="QmAnn", start=1, at=1.0))
with changing(Path(sys.argv[1])) as lists:
    lists.execute("DELETE FROM revoked")
    print("in the middle", flush=True)
    time.sleep(600)
"""


def test_who_is_killed_in_the_middle_of_a_change_has_changed_nothing_and_what_was_changed_stays(tmp_path: Path):
    with subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"in the middle\n"
        assert [each.peer for each in operator_lists.read_revoked(tmp_path)] == [ANN]
        os.kill(process.pid, signal.SIGKILL)
    assert [each.peer for each in operator_lists.read_revoked(tmp_path)] == [ANN]
    operator_lists.add_revoked(tmp_path, RevokedPeer(peer=BOB, start=1, at=2.0))
    assert [each.peer for each in operator_lists.read_revoked(tmp_path)] == [ANN, BOB]


def test_on_a_full_disk_nobody_is_let_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    token = operator_lists.add_invitation(tmp_path, 1, 60, 0.0)
    connect = database.open_database

    def full(folder: Path) -> sqlite3.Connection:
        lists = connect(folder)
        lists.execute("PRAGMA max_page_count = 1")  # which is no less than there are
        fill = "BEFORE INSERT ON uses BEGIN INSERT INTO log VALUES (1, zeroblob(99999)); END"
        lists.execute(f"CREATE TEMP TRIGGER filling {fill}")
        return lists

    with monkeypatch.context() as patch:
        patch.setattr(database, "open_database", full)
        with pytest.raises(ResourceError, match=r"cannot use .*operator\.sqlite3: database or disk is full"):
            operator_lists.redeem(tmp_path, token, ANN, 0.0)
    assert operator_lists.read_invitations(tmp_path)[0].used_by == ()


def test_a_change_that_waits_too_long_for_another_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(database, "BUSY_SECONDS", 0.01)
    with changing(tmp_path), pytest.raises(ResourceError, match="database is locked"):
        operator_lists.require_trials(tmp_path, True)
    assert not operator_lists.read_trials(tmp_path).required


def test_where_nothing_can_be_written_the_lists_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    operator_lists.require_trials(tmp_path, True)
    monkeypatch.setattr("os.access", lambda path, mode: False)
    assert operator_lists.read_trials(tmp_path).required
    with pytest.raises(ResourceError, match="attempt to write a readonly database"):
        operator_lists.require_trials(tmp_path, False)


def test_a_database_that_cannot_be_opened_is_named(tmp_path: Path):
    (tmp_path / DATABASE).mkdir()
    for attempt in (operator_lists.is_closed, operator_lists.read_invitations, operator_lists.read_trials):
        with pytest.raises(ResourceError, match=r"cannot use .*operator\.sqlite3: unable to open database file"):
            attempt(tmp_path)
    with pytest.raises(ResourceError, match=r"cannot use .*missing"):
        operator_lists.read_trials(tmp_path / "missing")


def test_a_row_that_cannot_be_is_damage(tmp_path: Path):
    operator_lists.add_invitation(tmp_path, 1, 60, 0.0)
    with changing(tmp_path) as lists:
        lists.execute("UPDATE invitations SET uses = ?", ("many",))
    with pytest.raises(ResourceError, match="is damaged"):
        operator_lists.read_invitations(tmp_path)
    with reading(tmp_path) as lists:
        assert lists.execute("SELECT count(*) FROM invitations").fetchone()[0] == 1
