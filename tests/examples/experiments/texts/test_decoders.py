"""Each format decoded from small packages made by hand, and refused when it is damaged."""

import gzip
import io
import random
import re
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from examples.experiments.texts import decoders
from examples.experiments.texts.decoders import (
    DocumentDecoder,
    osis_text,
    plain,
    r_lines,
    r_strings,
    read_members,
    sword,
)
from protocol.errors import FormatError


def zcom(*blocks: str) -> dict[str, bytes]:
    """A SWORD module: its index and its blocks."""
    index, data = b"", b""
    for block in blocks:
        packed = zlib.compress(block.encode())
        index += struct.pack("<III", len(data), len(packed), len(block.encode()))
        data += packed
    return {"ot.czs": index, "ot.czz": data}


def r_vector(*strings: str, version: int = 3) -> bytes:
    """A character vector as R serializes it in XDR."""
    header = b"X\n" + struct.pack(">iii", version, 0x40201, 0x30500)
    if version == 3:
        header += struct.pack(">i", 5) + b"UTF-8"
    body = struct.pack(">ii", 16, len(strings))
    for string in strings:
        body += struct.pack(">ii", 0x40009, len(string.encode())) + string.encode()
    return header + body


def rdb(*objects: bytes) -> dict[str, bytes]:
    return {"Rdata.rdb": b"".join(struct.pack(">I", len(data)) + zlib.compress(data) for data in objects)}


def test_plain_files_are_documents_in_order_and_gz_is_unpacked() -> None:
    files = {"b.md.gz": gzip.compress("café".encode()), "a": b"\xef\xbb\xbfone\r\ntwo"}
    assert list(plain(files)) == [("a", "one\ntwo"), ("b.md.gz", "café")]


def test_each_block_of_a_sword_module_is_a_document() -> None:
    blocks = ("", '<title type="x">Psalm 1</title>Blessed &amp; happy', "— the second")
    expected = [("ot-000", ""), ("ot-001", "Psalm 1\n\nBlessed & happy"), ("ot-002", "— the second")]
    assert list(sword(zcom(*blocks))) == expected


def test_osis_keeps_words_in_a_paragraph_and_paragraphs_apart() -> None:
    osis = (
        '<div sID="g1" type="x-p"/> Mark was <hi type="italic">a sister\'s\n son</hi> to Barnabas, '
        '<reference osisRef="Col.4.10">Col 4:10</reference>. <div eID="g1" type="x-p"/>'
        "<table><row><cell>The office.</cell><cell>(1-8)</cell></row></table>"
    )
    assert osis_text(osis) == "Mark was a sister's son to Barnabas, Col 4:10.\n\nThe office. (1-8)"


@pytest.mark.parametrize("version", [2, 3])
def test_each_vector_of_an_r_package_is_a_document_named_by_its_first_line(version: int) -> None:
    files = rdb(r_vector("", "EMMA", "", "Émma Woodhouse", version=version), r_vector("Persuasion", version=version))
    assert list(r_lines(files)) == [("EMMA", "\nEMMA\n\nÉmma Woodhouse"), ("Persuasion", "Persuasion")]


def test_a_missing_string_of_r_is_empty() -> None:
    assert r_strings(r_vector("a", "b").replace(struct.pack(">i", 1) + b"b", struct.pack(">i", -1))) == ["a", ""]


def cut_short(files: dict[str, bytes], name: str, length: int) -> dict[str, bytes]:
    return files | {name: files[name][:length]}


DAMAGED = {
    "text that is not UTF-8": (plain, {"a": b"\xff"}),
    "gzip that is something else": (plain, {"a.gz": b"no gzip"}),
    "gzip cut short": (plain, {"a.gz": gzip.compress(b"text")[:-10]}),
    "an index without blocks": (sword, {"ot.czs": bytes(12)}),
    "half an entry": (sword, cut_short(zcom("one"), "ot.czs", 11)),
    "a block cut short": (sword, cut_short(zcom("one"), "ot.czz", 5)),
    "a block beyond the end": (sword, {"ot.czs": struct.pack("<III", 2**31, 9, 9), "ot.czz": b""}),
    "a block that says it is huge": (sword, {"ot.czs": struct.pack("<III", 0, 9, 2**31), "ot.czz": b""}),
    "half a length": (r_lines, {"Rdata.rdb": b"\0\0"}),
    "an object that says it is huge": (r_lines, {"Rdata.rdb": struct.pack(">I", 2**31)}),
    "an object that is not serialized": (r_lines, rdb(b"A\n")),
    "an empty object": (r_lines, rdb(b"")),
    "a list": (r_lines, rdb(r_vector("one").replace(struct.pack(">i", 16), struct.pack(">i", 19)))),
    "a vector with a number in it": (r_lines, rdb(r_vector("one").replace(b"\0\x04\0\x09", b"\0\x04\0\x0d"))),
    "a string cut short": (r_lines, rdb(r_vector("one")[:-1])),
    "more strings than bytes": (r_lines, rdb(r_vector()[:-4] + b"\x7f\xff\xff\xff")),
}


@pytest.mark.parametrize(("decode", "files"), DAMAGED.values(), ids=DAMAGED.keys())
def test_what_is_damaged_is_a_format_error(decode: DocumentDecoder, files: dict[str, bytes]) -> None:
    with pytest.raises(FormatError):
        list(decode(files))


BOMB = "a" * 100_000

BOMBS: dict[str, Callable[[], tuple[DocumentDecoder, dict[str, bytes]]]] = {
    "gzip": lambda: (plain, {"a.gz": gzip.compress(BOMB.encode())}),
    "a block larger than it says": lambda: (
        sword,
        {"ot.czs": struct.pack("<III", 0, 10_000, 10), "ot.czz": zlib.compress(BOMB.encode())},
    ),
    "an object larger than it says": lambda: (
        r_lines,
        {"Rdata.rdb": struct.pack(">I", 10) + zlib.compress(r_vector(BOMB))},
    ),
}


@pytest.mark.parametrize("made", BOMBS.values(), ids=BOMBS.keys())
def test_what_unpacks_to_more_than_the_limit_is_refused(
    made: Callable[[], tuple[DocumentDecoder, dict[str, bytes]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    decode, files = made()
    monkeypatch.setattr(decoders, "MAX_MEMBER", 1000)
    with pytest.raises(FormatError, match="larger than"):
        list(decode(files))


# Archives


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
    monkeypatch.setattr(decoders, "MAX_MEMBER", 1000)
    archive = write(tmp_path / name, [("bomb.txt", bytes(1001))])
    with pytest.raises(FormatError, match=r"'bomb\.txt' is larger than 1000"):
        read_members(archive, TEXTS)


@EVERY_KIND
def test_files_larger_together_than_the_limit_are_refused(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoders, "MAX_TOTAL", 100_000)
    archive = write(tmp_path / name, [(f"{number}.txt", bytes(30_000)) for number in range(4)])
    with pytest.raises(FormatError, match="100000 bytes"):
        read_members(archive, TEXTS)


def test_a_file_that_is_all_hole_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """GNU's sparse files: a terabyte in one block."""
    monkeypatch.setattr(decoders, "MAX_MEMBER", 1000)
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
