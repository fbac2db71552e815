"""From a package's archive to documents: its files, read into memory (bounded, and no path in it is ever a path on this
machine), and the names and plain texts of the documents in them."""

import gzip
import html
import io
import lzma
import re
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO

from protocol.errors import FormatError

MAX_MEMBER = 2**25
"""Bytes of one file in an archive. The largest that is read has five million."""

PIECE = 2**20

MAX_TOTAL = 2**27
"""Bytes of all files that are read from one archive, and of a .tar.gz unpacked."""


DAMAGED = (zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError, struct.error, ValueError)
"""The last: a name in a zip that is no UTF-8."""


def read_members(archive: Path, wanted: re.Pattern[str]) -> dict[str, bytes]:
    """The regular files whose path in a wheel, .tar or .tar.gz matches `wanted`, by its first group.

    Raises:
        FormatError: it is no such archive, is damaged, has nothing wanted, or more than the limits.
    """
    read = _zip if archive.suffix == ".whl" else _tar
    found: dict[str, bytes] = {}
    left = MAX_TOTAL
    try:
        for name, data in read(archive, wanted):
            left -= len(data)
            if left < 0:
                raise FormatError(f"its files are larger than {MAX_TOTAL} bytes together")
            if name in found:
                raise FormatError(f"it has two files {name!r}")
            found[name] = data
    except (*DAMAGED, EOFError, OSError, RuntimeError) as error:
        raise FormatError(f"the archive cannot be read: {error}") from None
    if not found:
        raise FormatError("the archive has no file that was looked for")
    return found


def _zip(archive: Path, wanted: re.Pattern[str]) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(archive) as opened:
        for member in opened.infolist():
            if (match := wanted.fullmatch(member.filename)) and not member.is_dir():
                with opened.open(member) as file:
                    yield match[1], _bounded(file, member.filename)


def _tar(archive: Path, wanted: re.Pattern[str]) -> Iterator[tuple[str, bytes]]:
    with archive.open("rb") as file, tarfile.open(fileobj=_gunzipped(file), mode="r:") as opened:
        for member in opened:
            name = member.name.removeprefix("./")
            if (match := wanted.fullmatch(name)) and member.isreg() and (content := opened.extractfile(member)):
                yield match[1], _bounded(content, name)


def _gunzipped(file: IO[bytes]) -> IO[bytes]:
    """Bounded before the tar is parsed, whose headers could ask for as much memory as there are bytes."""
    packed = file.read(2) == b"\x1f\x8b"
    file.seek(0)
    if not packed:
        return file
    unpacked, data = gzip.GzipFile(fileobj=file), io.BytesIO()
    while piece := unpacked.read(PIECE):  # which sets aside as much as it is asked for
        data.write(piece)
        if data.tell() > MAX_TOTAL:
            raise FormatError(f"the archive unpacks to more than {MAX_TOTAL} bytes")
    data.seek(0)
    return data


def _bounded(file: IO[bytes], name: str) -> bytes:
    data = file.read(MAX_MEMBER + 1)
    if len(data) > MAX_MEMBER:
        raise FormatError(f"{name!r} is larger than {MAX_MEMBER} bytes")
    return data


# Documents

DocumentDecoder = Callable[[Mapping[str, bytes]], Iterator[tuple[str, str]]]
"""Files by name → (name, text) of each document, in order of the names. Raises FormatError."""

GZIP = 16 + zlib.MAX_WBITS
ZLIB = zlib.MAX_WBITS


def plain(files: Mapping[str, bytes]) -> Iterator[tuple[str, str]]:
    """Text, Markdown and reStructuredText as they are, each file a document; those called .gz unpacked."""
    for name, data in sorted(files.items()):
        yield name, _text(_inflate(data, GZIP, MAX_MEMBER)[0] if name.endswith(".gz") else data, name)


def sword(files: Mapping[str, bytes]) -> Iterator[tuple[str, str]]:
    """The SWORD project's zCom modules: each block, a chapter or a book of the Bible, is a document.

    `ot.czs` (or .bzs) is an index of little-endian u32 triples (offset, size, unpacked size) into `ot.czz`
    (.bzz), which is zlib streams of OSIS. https://wiki.crosswire.org/File_Formats
    """
    for name, index in sorted(files.items()):
        if not name.endswith("zs"):
            continue
        if (blocks := files.get(f"{name[:-1]}z")) is None or len(index) % 12:
            raise FormatError(f"the index {name!r} has no blocks, or half an entry")
        for number, (offset, size, unpacked) in enumerate(struct.iter_unpack("<III", index)):
            if unpacked > MAX_MEMBER:
                raise FormatError(f"block {number} of {name!r} is larger than {MAX_MEMBER} bytes")
            data, _ = _inflate(blocks[offset : offset + size], ZLIB, unpacked)
            yield f"{name.split('.')[0]}-{number:03}", osis_text(_text(data, name))


PARAGRAPH_TAGS = re.compile(r"\s*</?(?:div|title|chapter|row|list|item|lg|l)\b[^>]*>\s*")
OTHER_TAGS = re.compile(r"<[^>]*>")


def osis_text(osis: str) -> str:
    """OSIS without its tags, a blank line between paragraphs."""
    marked = PARAGRAPH_TAGS.sub("\n\n", osis.replace("</cell>", " "))
    paragraphs = (" ".join(part.split()) for part in OTHER_TAGS.sub("", marked).split("\n\n"))
    try:
        return html.unescape("\n\n".join(filter(None, paragraphs)))
    except ValueError:  # Python reads numbers of 4300 digits at most
        raise FormatError("a character's number has too many digits") from None


def r_lines(files: Mapping[str, bytes]) -> Iterator[tuple[str, str]]:
    """The vectors of strings in an R package's `Rdata.rdb`: each a document, a string a line, the first its name.

    The file is, one after another, a big-endian u32 unpacked size and a zlib stream of R's serialization.
    """
    for _, data in sorted(files.items()):
        while data:
            (unpacked,) = struct.unpack(">I", _take(data, 0, 4))
            if unpacked > MAX_MEMBER:
                raise FormatError(f"an object of R is larger than {MAX_MEMBER} bytes")
            serialized, data = _inflate(data[4:], ZLIB, unpacked)
            lines = r_strings(serialized)
            yield next(filter(None, lines), ""), "\n".join(lines)


STRINGS = 16
STRING = 9
NO_STRING = -1


def r_strings(data: bytes) -> list[str]:
    """The strings of a serialized R character vector without attributes (R Internals, section 1.8, XDR).

    Raises:
        FormatError: it is anything else.
    """
    if data[:2] != b"X\n":
        raise FormatError("an object of R is not serialized in XDR")
    (version,) = struct.unpack(">i", _take(data, 2, 4))
    at = 14
    if version == 3:  # it also says its encoding
        (length,) = struct.unpack(">i", _take(data, at, 4))
        at += 4 + max(0, length)
    kind, count = struct.unpack(">ii", _take(data, at, 8))
    at += 8
    if kind != STRINGS or not 0 <= count <= len(data) // 8:
        raise FormatError("an object of R is not a vector of strings")
    strings = []
    for _ in range(count):
        flags, length = struct.unpack(">ii", _take(data, at, 8))
        if flags & 0xFF != STRING or length < NO_STRING:
            raise FormatError("a vector of strings in R has something else in it")
        length = max(0, length)
        strings.append(_text(_take(data, at + 8, length), "a string of R"))
        at += 8 + length
    return strings


def _inflate(data: bytes, format_bits: int, limit: int) -> tuple[bytes, bytes]:
    """The unpacked stream at the beginning of `data`, and what follows it. Raises FormatError beyond `limit` bytes."""
    stream = zlib.decompressobj(format_bits)
    try:
        unpacked = stream.decompress(data, limit + 1)
    except zlib.error as error:
        raise FormatError(f"a packed part is damaged: {error}") from None
    if len(unpacked) > limit or not stream.eof:
        raise FormatError(f"a packed part is cut short, or larger than {limit} bytes")
    return unpacked, stream.unused_data


def _take(data: bytes, start: int, length: int) -> bytes:
    part = data[start : start + length]
    if len(part) != length:
        raise FormatError("an object of R ends too early")
    return part


def _text(data: bytes, name: str) -> str:
    try:
        return data.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise FormatError(f"{name!r} is not text in UTF-8: {error.reason}") from None
