"""A crash while writing leaves the old file or the new one."""

from pathlib import Path

import pytest

from protocol.atomic import replacing, write_atomically
from protocol.errors import ResourceError


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
