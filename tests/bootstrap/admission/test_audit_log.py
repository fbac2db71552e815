"""The operator's log: whole entries, of two processes too, and never without an end."""

import subprocess
import sys
from pathlib import Path

from bootstrap.admission.audit_log import MOST_FIELD_CHARACTERS, AuditEntry, append_entry, audit_log_files, last
from bootstrap.admission.database import DATABASE, LOG, reading


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
    assert (tmp_path / DATABASE).stat().st_mode & 0o777 == 0o600


def test_a_log_that_nobody_has_written_is_empty(tmp_path: Path):
    assert last(tmp_path, 50) == []


def test_it_keeps_so_many_bytes_of_the_last_entries_and_no_more(tmp_path: Path):
    for at in range(200):
        append_entry(tmp_path, AuditEntry(what="refused", at=at), most_bytes=1000)
    found = [entry.at for entry in last(tmp_path, 500)]
    assert found == list(range(200 - len(found), 200))
    with reading(tmp_path) as lists:
        ((held,),) = lists.execute("SELECT sum(length(entry)) FROM log")
    assert 970 < held < 1030  # the oldest may be there though not all of it fits


def test_what_a_stranger_says_fills_neither_a_line_nor_two(tmp_path: Path):
    long = "\n\x1b[2J😀" * 10_000
    append_entry(
        tmp_path, AuditEntry(what="refused", at=1.0, peer=long, address=long, reason=long, role=long, invitation=long)
    )
    with reading(tmp_path) as lists:
        ((line,),) = lists.execute("SELECT entry FROM log")
    assert line.isprintable()
    assert len(line) < 24 * 1024
    assert last(tmp_path, 1)[0].reason == long[:MOST_FIELD_CHARACTERS]


def test_a_line_that_a_power_cut_left_half_in_an_earlier_versions_file_is_passed_over(tmp_path: Path):
    lines = (AuditEntry(what="refused", at=1.0).line(), '{"what": "adm', "\xff\xfe", "[]", "")
    (tmp_path / LOG).write_text("\n".join(lines), encoding="latin-1")
    append_entry(tmp_path, AuditEntry(what="refused", at=2.0))
    assert [entry.at for entry in last(tmp_path, 50)] == [1.0, 2.0]


def test_it_is_known_which_folders_have_one(tmp_path: Path):
    assert audit_log_files(tmp_path) == []
    (tmp_path / LOG).touch()
    assert audit_log_files(tmp_path) == [tmp_path / LOG]
    last(tmp_path, 1)
    assert audit_log_files(tmp_path) == [tmp_path / DATABASE, tmp_path / LOG]


WRITE = """
import sys
from pathlib import Path
from bootstrap.admission.audit_log import AuditEntry, append_entry
for number in range(200):
    append_entry(Path(sys.argv[1]), AuditEntry(what="noted", at=number, peer=sys.argv[2], reason="x" * number))
"""


def test_two_processes_lose_no_entry(tmp_path: Path):
    processes = [subprocess.Popen([sys.executable, "-c", WRITE, str(tmp_path), name]) for name in "ab"]
    assert [process.wait(120) for process in processes] == [0, 0]
    for name in "ab":
        assert [entry.at for entry in last(tmp_path, 1000) if entry.peer == name] == list(range(200))
