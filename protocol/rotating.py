"""A log that never fills a disk: whole lines are added to a file, which becomes the old one when it is full.

Any number of processes may write it: each line is one write, and a file is only rotated under its lock.
"""

import os
from itertools import chain
from pathlib import Path

from protocol.errors import ResourceError
from protocol.file_lock import exclusive

MOST_BYTES = 8 * 1024 * 1024
"""Of one file, some 40,000 lines; with the one before it, 16 MiB at most."""


def old(path: Path) -> Path:
    """Where the file before this one lies: `log.old.jsonl` beside `log.jsonl`."""
    return path.with_suffix(f".old{path.suffix}")


def append(path: Path, line: bytes, most_bytes: int = MOST_BYTES) -> None:
    """Add a line, which ends with a line feed. A file of `most_bytes` becomes the old one, which is forgotten.

    Raises:
        ResourceError: it cannot be written, as on a full disk.
    """
    try:
        _rotate(path, most_bytes)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            if os.write(descriptor, line) < len(line):
                raise ResourceError(f"cannot write {path}: the disk is full")
        finally:
            os.close(descriptor)
    except OSError as error:
        raise ResourceError(f"cannot write {path}: {error.strerror}") from None


def _rotate(path: Path, most_bytes: int) -> None:
    def is_full() -> bool:
        return path.exists() and path.stat().st_size >= most_bytes

    if is_full():
        with exclusive(path):
            if is_full():  # another process may have been first
                os.replace(path, old(path))


def lines(path: Path) -> list[bytes]:
    """All lines there are, the oldest first. A power cut may have left one half.

    Raises:
        ResourceError: the log cannot be read.
    """
    try:
        files = [each.read_bytes() for each in (old(path), path) if each.exists()]
    except OSError as error:
        raise ResourceError(f"cannot read {path}: {error.strerror}") from None
    return list(chain.from_iterable(data.splitlines() for data in files))
