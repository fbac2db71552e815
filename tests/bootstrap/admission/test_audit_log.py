"""The operator's log: whole lines, of two processes too, and never without an end."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bootstrap.admission.audit_log import LOG, MOST_CHARACTERS, AuditEntry, append_entry, last

OLD = "log.old.jsonl"


def test_what_is_written_is_read_the_latest_last(tmp_path: Path):
    entries = [
        AuditEntry(what="invited", at=1.0, invitation="1f9a03c7"),
        AuditEntry(what="admitted", at=2.5, peer="QmAnn", role="volunteer", stage=0, slot=3, address="192.0.2.1"),
        AuditEntry(what="refused", at=3.0, peer="QmBob", reason="this run is closed"),
    ]
    for entry in entries:
        append_entry(tmp_path, entry)
    assert last(tmp_path, 50) == entries
    assert last(tmp_path, 2) == entries[1:]
    assert last(tmp_path, 0) == []
    assert (tmp_path / LOG).stat().st_mode & 0o777 == 0o600


def test_a_log_that_nobody_has_written_is_empty(tmp_path: Path):
    assert last(tmp_path, 50) == []


def test_it_keeps_one_old_file_and_no_more(tmp_path: Path):
    for at in range(200):
        append_entry(tmp_path, AuditEntry(what="refused", at=at), most_bytes=500)
    assert {file.name for file in tmp_path.glob("log*")} == {LOG, OLD}
    assert sum((tmp_path / name).stat().st_size for name in (LOG, OLD)) <= 2 * 600
    found = [entry.at for entry in last(tmp_path, 500)]
    assert found == list(range(200 - len(found), 200))
    assert len(found) > 500 // 40


def test_what_a_stranger_says_fills_neither_a_line_nor_two(tmp_path: Path):
    long = "\n\x1b[2J😀" * 10_000
    append_entry(
        tmp_path, AuditEntry(what="refused", at=1.0, peer=long, address=long, reason=long, role=long, invitation=long)
    )
    data = (tmp_path / LOG).read_bytes()
    assert data.count(b"\n") == 1
    assert b"\x1b" not in data
    assert len(data) < 24 * 1024
    assert last(tmp_path, 1)[0].reason == long[:MOST_CHARACTERS]


def test_a_line_that_a_power_cut_left_half_is_passed_over(tmp_path: Path):
    append_entry(tmp_path, AuditEntry(what="refused", at=1.0))
    with (tmp_path / LOG).open("ab") as file:
        file.write(b'{"what": "adm\n\xff\xfe\n[]\n')
    append_entry(tmp_path, AuditEntry(what="refused", at=2.0))
    assert [entry.at for entry in last(tmp_path, 50)] == [1.0, 2.0]


def test_a_file_that_another_process_has_just_rotated_is_not_rotated_again(tmp_path: Path, monkeypatch):
    for at in (1.0, 2.0):
        append_entry(tmp_path, AuditEntry(what="refused", at=at))

    @contextmanager
    def once_another_has_had_it(path: Path) -> Iterator[None]:
        os.replace(path, path.with_name(OLD))
        append_entry(tmp_path, AuditEntry(what="refused", at=3.0))
        yield

    monkeypatch.setattr("protocol.files.exclusive", once_another_has_had_it)
    append_entry(tmp_path, AuditEntry(what="refused", at=4.0), most_bytes=(tmp_path / LOG).stat().st_size)
    assert [entry.at for entry in last(tmp_path, 9)] == [1.0, 2.0, 3.0, 4.0]


WRITE = """
import sys
from pathlib import Path
from bootstrap.admission.audit_log import AuditEntry, append_entry
for number in range(200):
    append_entry(Path(sys.argv[1]), AuditEntry(what="noted", at=number, peer=sys.argv[2], reason="x" * number), 40_000)
"""


def test_two_processes_lose_no_line_where_one_rotates(tmp_path: Path):
    processes = [subprocess.Popen([sys.executable, "-c", WRITE, str(tmp_path), name]) for name in "ab"]
    assert [process.wait(120) for process in processes] == [0, 0]
    assert (tmp_path / OLD).exists()
    for name in "ab":
        assert [entry.at for entry in last(tmp_path, 1000) if entry.peer == name] == list(range(200))
