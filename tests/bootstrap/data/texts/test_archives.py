"""Archives are read, however hostile they are, without a byte written or more memory than the limits."""

import gzip
import io
import random
import re
import tarfile
import zipfile
from pathlib import Path

import pytest

from bootstrap.data.texts import archives
from bootstrap.data.texts.archives import read_members
from protocol.errors import FormatError

TEXTS = re.compile(r"(.*)\.txt")


def write_zip(path: Path, files: list[tuple[str, bytes]]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files:
            archive.writestr(name, data)
    return path


def write_tar(path: Path, files: list[tuple[str, bytes]]) -> Path:
    with tarfile.open(path, "w:gz" if path.suffix == ".gz" else "w") as archive:
        for name, data in files:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


def write(path: Path, files: list[tuple[str, bytes]]) -> Path:
    return (write_zip if path.suffix == ".whl" else write_tar)(path, files)


EVERY_KIND = pytest.mark.parametrize("name", ["a.whl", "a.tar", "a.tar.gz"])


@EVERY_KIND
def test_wanted_files_are_read_by_their_names(tmp_path: Path, name: str) -> None:
    archive = write(tmp_path / name, [("x/one.txt", b"1"), ("x/code.py", b"2"), ("two.txt", b"")])
    assert read_members(archive, TEXTS) == {"x/one": b"1", "two": b""}


def test_the_files_of_a_deb_are_named_without_their_dot(tmp_path: Path) -> None:
    archive = write_tar(tmp_path / "a.tar", [("./usr/one.txt", b"1")])
    assert read_members(archive, re.compile(r"(usr/one)\.txt")) == {"usr/one": b"1"}


@EVERY_KIND
def test_a_path_that_leads_outside_is_only_a_name(tmp_path: Path, name: str) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    outside = str(tmp_path / "outside.txt")
    archive = write(inside / name, [("../../escaped.txt", b"1"), (outside, b"2")])
    assert sorted(read_members(archive, TEXTS).values()) == [b"1", b"2"]
    assert sorted(tmp_path.rglob("*")) == [inside, archive]


def test_links_and_folders_are_no_texts(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as archive:
        for number, kind in enumerate([tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE]):
            member = tarfile.TarInfo(f"{number}.txt")
            member.type, member.linkname = kind, "/etc/passwd"
            archive.addfile(member)
    with pytest.raises(FormatError, match="no file that was looked for"):
        read_members(path, TEXTS)


@EVERY_KIND
def test_a_file_larger_than_the_limit_is_refused(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "MAX_MEMBER", 1000)
    archive = write(tmp_path / name, [("bomb.txt", bytes(1001))])
    with pytest.raises(FormatError, match=r"'bomb\.txt' is larger than 1000"):
        read_members(archive, TEXTS)


@EVERY_KIND
def test_files_larger_together_than_the_limit_are_refused(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "MAX_TOTAL", 100_000)
    archive = write(tmp_path / name, [(f"{number}.txt", bytes(30_000)) for number in range(4)])
    with pytest.raises(FormatError, match="100000 bytes"):
        read_members(archive, TEXTS)


def test_a_file_that_is_all_hole_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """GNU's sparse files: a terabyte in one block."""
    monkeypatch.setattr(archives, "MAX_MEMBER", 1000)
    size = 2**40
    header = bytearray(tarfile.TarInfo("hole.txt").tobuf(tarfile.GNU_FORMAT))
    header[156:157] = tarfile.GNUTYPE_SPARSE
    header[483:495] = b"\x80" + size.to_bytes(11, "big")
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    path = tmp_path / "a.tar"
    path.write_bytes(bytes(header) + bytes(1024))
    with tarfile.open(path) as opened:
        assert opened.getmember("hole.txt").size == size, "the header is one that tarfile follows"
    with pytest.raises(FormatError, match="larger than 1000"):
        read_members(path, TEXTS)


@EVERY_KIND
def test_an_archive_without_what_is_wanted_says_so(tmp_path: Path, name: str) -> None:
    with pytest.raises(FormatError, match="no file that was looked for"):
        read_members(write(tmp_path / name, [("code.py", b"")]), TEXTS)


@pytest.mark.filterwarnings("ignore:Duplicate name")
@EVERY_KIND
def test_two_files_of_one_name_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(FormatError, match="two files"):
        read_members(write(tmp_path / name, [("a.txt", b"1"), ("a.txt", b"2")]), TEXTS)


@EVERY_KIND
@pytest.mark.parametrize("data", [b"", b"no archive", gzip.compress(b"no tar")[:-9]], ids=["empty", "text", "gzip"])
def test_what_is_no_archive_is_a_format_error(tmp_path: Path, name: str, data: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(FormatError):
        read_members(path, TEXTS)


@EVERY_KIND
def test_an_archive_cut_short_is_a_format_error(tmp_path: Path, name: str) -> None:
    archive = write(tmp_path / name, [("one.txt", random.Random(0).randbytes(5000))])
    archive.write_bytes(archive.read_bytes()[:600])
    with pytest.raises(FormatError):
        read_members(archive, TEXTS)
