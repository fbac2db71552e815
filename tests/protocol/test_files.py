"""What a crash leaves of files that are replaced whole, who holds a lock, and logs that rotate."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from protocol.errors import ResourceError
from protocol.files import (
    GIVEN_BYTES,
    append_line,
    logged_lines,
    old_log,
    read_given,
    replacing,
    try_lock,
    write_atomically,
)

HOLD = """
import os, sys
from protocol.files import try_lock
assert try_lock(os.open(sys.argv[1], os.O_RDWR))
print("held", flush=True)
sys.stdin.read()
"""


def test_a_file_is_replaced_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old")
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_failure_half_way_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old")
    with pytest.raises(TypeError), replacing(path) as file:
        file.writelines([b"ne", None])  # type: ignore[list-item]
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_the_old_file_is_there_until_the_end(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old")
    with replacing(path) as file:
        file.write(b"new")
        assert path.read_bytes() == b"old"


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(ResourceError, match="missing"):
        write_atomically(tmp_path / "missing" / "file", b"")


def test_what_its_owner_alone_may_read_is_never_open_to_others(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    (tmp_path / ".secret.partial").write_bytes(b"a crash left it, open to all")
    with replacing(path, 0o600) as file:
        assert (tmp_path / ".secret.partial").stat().st_mode & 0o777 == 0o600
        file.write(b"new")
    assert path.stat().st_mode & 0o777 == 0o600
    write_atomically(path, b"newer", 0o600)
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_lock_is_held_by_one_process_and_given_back_by_its_death(tmp_path: Path):
    path = tmp_path / "lock"
    path.touch()
    command = [sys.executable, "-c", HOLD, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with path.open() as file:
            assert not try_lock(file.fileno())
            holder.kill()
            holder.wait()
            assert try_lock(file.fileno())


def test_the_old_file_has_its_name_beside_the_new_one(tmp_path: Path):
    assert old_log(tmp_path / "events.jsonl").name == "events.old.jsonl"


def test_lines_are_read_from_both_files_the_oldest_first(tmp_path: Path):
    path = tmp_path / "events.jsonl"
    for number in range(25):
        append_line(path, b"%03d\n" % number, most_bytes=40)
    assert logged_lines(path) == [b"%03d" % number for number in range(10, 25)]
    assert old_log(path).stat().st_size == 40


def test_nothing_was_ever_written(tmp_path: Path):
    assert logged_lines(tmp_path / "events.jsonl") == []


def test_what_cannot_be_written_or_read_is_named(tmp_path: Path):
    with pytest.raises(ResourceError, match="cannot write"):
        append_line(tmp_path / "missing" / "events.jsonl", b"x\n")
    (tmp_path / "events.jsonl").mkdir()
    with pytest.raises(ResourceError, match="cannot read"):
        logged_lines(tmp_path / "events.jsonl")


def test_a_log_is_not_written_through_a_symbolic_link_nor_to_a_fifo(tmp_path: Path) -> None:
    other, path = tmp_path / "other", tmp_path / "log.jsonl"
    other.write_bytes(b"mine\n")
    path.symlink_to(other)
    with pytest.raises(ResourceError, match=r"cannot write .*log.jsonl: it is a symbolic link, .* remove it"):
        append_line(path, b"line\n")
    assert other.read_bytes() == b"mine\n"
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(ResourceError, match="it is no regular file"):
        append_line(path, b"line\n")


def test_a_file_is_not_replaced_through_a_link_that_somebody_laid_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, path = tmp_path / "other", tmp_path / "file"
    other.write_bytes(b"mine")
    monkeypatch.setattr(Path, "unlink", lambda file, missing_ok=False: file.is_symlink() or file.symlink_to(other))
    with pytest.raises(ResourceError):
        write_atomically(path, b"data")
    assert other.read_bytes() == b"mine"


def test_too_many_open_files_are_said_with_the_cure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "open", full)
    with pytest.raises(ResourceError, match="Too many open files: allow this process more with `ulimit -n`"):
        append_line(tmp_path / "log.jsonl", b"line\n")


# What a person names


def test_a_file_and_what_a_shell_gives_as_a_pipe_are_read_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run.toml").write_bytes(b"x" * 200_000)
    assert read_given(tmp_path / "run.toml") == b"x" * 200_000
    (tmp_path / "empty").touch()
    assert read_given(tmp_path / "empty") == b""
    reading, writing = os.pipe()  # what <(…) is

    def write_late(descriptors: list[int], *others: object) -> tuple[list[int]]:
        os.write(writing, b"[run]\n")
        os.close(writing)
        return (descriptors,)

    monkeypatch.setattr("protocol.files.select.select", write_late)
    try:
        assert read_given(Path(f"/dev/fd/{reading}")) == b"[run]\n"
    finally:
        os.close(reading)


def test_nobody_waits_for_a_pipe_to_which_nobody_writes(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(OSError, match="nobody writes to it"):
        read_given(tmp_path / "fifo")
    reading, writing = os.pipe()
    try:
        with pytest.raises(OSError, match=r"nothing came from it in 0\.01 s"):
            read_given(Path(f"/dev/fd/{reading}"), silent_seconds=0.01)
    finally:
        os.close(reading)
        os.close(writing)


def test_a_folder_a_device_and_what_has_no_end_are_refused(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        read_given(tmp_path)
    with pytest.raises(OSError, match="it is a device or a socket"):
        read_given(Path("/dev/zero"))
    with (tmp_path / "long").open("wb") as file:
        file.truncate(GIVEN_BYTES + 1)
    with pytest.raises(OSError, match="more than 4,194,304 bytes"):
        read_given(tmp_path / "long")
