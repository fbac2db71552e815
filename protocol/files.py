"""Files that outlive a crash: replaced whole, locked, and logs that rotate."""

import errno
import os
import select
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import BinaryIO

from protocol.errors import ResourceError

LOG_BYTES = 8 * 1024 * 1024
"""The size at which a log is rotated: some 40,000 lines. With the file before it a log takes 16 MiB at most."""


GIT_LFS = b"version https://git-lfs.github.com/spec/"
"""The beginning of what Git LFS has in the place of a large file, where that was not fetched."""

_EXACTLY = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
"""Flags with which a symbolic link is not followed, and nobody is waited for at a FIFO."""


def open_regular(path: str | Path, flags: int, mode: int = 0o666) -> int:
    """Open a regular file, and not what a symbolic link of that name leads to, a device or a FIFO. Returns the
    descriptor. An `opener` for `open`.

    Raises:
        OSError: it is something else, or cannot be opened.
    """
    try:
        descriptor = os.open(path, flags | _EXACTLY, mode)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "it is a symbolic link, and might lead anywhere: remove it") from None
        if error.errno == errno.ENXIO:
            raise OSError(errno.ENXIO, "it is no regular file: remove it") from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no regular file: remove it")
    return descriptor


READ_BYTES = 65536
"""The bytes that are read at a time."""

GIVEN_BYTES = 4 * 1024 * 1024
"""The bytes of the longest file of settings that is read."""

PIPE_SECONDS = 30.0
"""The seconds for which a pipe whose writer has it open may stay silent: a download at the other end of `<(…)`."""


def read_given(path: Path, silent_seconds: float = PIPE_SECONDS) -> bytes:
    """Read a file of settings that a person named, or what comes from a pipe (`<(…)` of a shell), without ever waiting
    for somebody to open its other end.

    Raises:
        OSError: it cannot be read, is too long, or is a pipe to which nobody writes; the reason says so.
    """
    data = bytearray()
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode)):
            raise OSError(errno.EINVAL, "it is a device or a socket")
        while piece := _read_piece(descriptor, silent_seconds):
            data += piece
            if len(data) > GIVEN_BYTES:
                raise OSError(errno.EFBIG, f"it has more than {GIVEN_BYTES:,} bytes")
    finally:
        os.close(descriptor)
    if stat.S_ISFIFO(mode) and not data:
        raise OSError(errno.EPIPE, "it is a pipe, and nobody writes to it")
    return bytes(data)


def _read_piece(descriptor: int, silent_seconds: float) -> bytes:
    """Read the next bytes; none: the end. Raises OSError if a pipe's writer says nothing for so long."""
    try:
        return os.read(descriptor, READ_BYTES)
    except BlockingIOError:
        if not select.select([descriptor], [], [], silent_seconds)[0]:
            silent = f"it is a pipe, and nothing came from it in {silent_seconds:g} s"
            raise OSError(errno.ETIMEDOUT, silent) from None
    return os.read(descriptor, READ_BYTES)


def reason_of(error: OSError) -> str:
    """The reason of an error in words, with the cure where it has one that is not plain."""
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return f"{error.strerror}: allow this process more with `ulimit -n`"
    return error.strerror or str(error)


@contextmanager
def replacing(path: Path, mode: int = 0o666) -> Iterator[BinaryIO]:
    """Open a file to write, which becomes `path` at the end of the block, or nothing at all if the block fails.

    Until then it is a neighbour of `path` under one fixed name, so a path has one writer at a time. `mode` is what the
    file is created with, less the process's umask: 0o600 for what its owner alone may read.

    Raises:
        ResourceError: the file cannot be written, as on a full disk.
    """
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.unlink(missing_ok=True)  # one that a crash left has that file's mode
        with open(partial, "xb", opener=lambda name, flags: open_regular(name, flags, mode)) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
        sync_folder(path.parent)
    except OSError as error:
        raise ResourceError(f"cannot write {path}: {reason_of(error)}") from error
    finally:
        partial.unlink(missing_ok=True)


def write_atomically(path: Path, data: bytes, mode: int = 0o666) -> None:
    """Replace the contents of `path` by `data`; `mode` as for `replacing`.

    Raises:
        ResourceError: the file cannot be written, as on a full disk.
    """
    with replacing(path, mode) as file:
        file.write(data)


def sync_folder(folder: Path) -> None:
    """Make a rename in `folder` outlive a power cut. Windows has no way to ask, and does it by itself."""
    if sys.platform == "win32":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def try_lock(descriptor: int) -> bool:
    """Take the lock of an open file, unless another holds it."""
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def old_log(path: Path) -> Path:
    """The path of a log's older file: `log.old.jsonl` beside `log.jsonl`."""
    return path.with_suffix(f".old{path.suffix}")


def append_line(path: Path, line: bytes, most_bytes: int = LOG_BYTES) -> None:
    """Add a line, which ends with a line feed, to a log that never fills the disk: a file of `most_bytes` becomes the
    old one, and the old one is forgotten. One process writes it, whose lines are one write each.

    Raises:
        ResourceError: it cannot be written, as on a full disk.
    """
    try:
        if path.exists() and path.stat().st_size >= most_bytes:
            os.replace(path, old_log(path))
        descriptor = open_regular(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            if os.write(descriptor, line) < len(line):
                raise ResourceError(f"cannot write {path}: the disk is full")
        finally:
            os.close(descriptor)
    except OSError as error:
        raise ResourceError(f"cannot write {path}: {reason_of(error)}") from None


def logged_lines(path: Path) -> list[bytes]:
    """All lines of a log and of its old file, the oldest first. A power cut may have left one half.

    Raises:
        ResourceError: the log cannot be read.
    """
    try:
        files = [log.read_bytes() for log in (old_log(path), path) if log.exists()]
    except OSError as error:
        raise ResourceError(f"cannot read {path}: {error.strerror}") from None
    return list(chain.from_iterable(data.splitlines() for data in files))
