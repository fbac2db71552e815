"""Reading an archive's files into memory: bounded, and no path in it is ever a path on this machine."""

import gzip
import io
import lzma
import re
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
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
    with archive.open("rb") as file, tarfile.open(fileobj=_unpacked(file), mode="r:") as opened:
        for member in opened:
            name = member.name.removeprefix("./")
            if (match := wanted.fullmatch(name)) and member.isreg() and (content := opened.extractfile(member)):
                yield match[1], _bounded(content, name)


def _unpacked(file: IO[bytes]) -> IO[bytes]:
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
