"""A log that never fills a disk. Two processes at once: tests/bootstrap/admission/test_audit_log.py."""

from pathlib import Path

import pytest

from protocol.errors import ResourceError
from protocol.rotating import append, lines, old


def test_the_old_file_has_its_name_beside_the_new_one(tmp_path: Path):
    assert old(tmp_path / "events.jsonl").name == "events.old.jsonl"


def test_lines_are_read_from_both_files_the_oldest_first(tmp_path: Path):
    path = tmp_path / "events.jsonl"
    for number in range(25):
        append(path, b"%03d\n" % number, most_bytes=40)
    assert lines(path) == [b"%03d" % number for number in range(10, 25)]
    assert old(path).stat().st_size == 40


def test_nothing_was_ever_written(tmp_path: Path):
    assert lines(tmp_path / "events.jsonl") == []


def test_what_cannot_be_written_or_read_is_named(tmp_path: Path):
    with pytest.raises(ResourceError, match="cannot write"):
        append(tmp_path / "missing" / "events.jsonl", b"x\n")
    (tmp_path / "events.jsonl").mkdir()
    with pytest.raises(ResourceError, match="cannot read"):
        lines(tmp_path / "events.jsonl")
