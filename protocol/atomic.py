"""Writing a file so that a crash leaves the old one or the new one, never half of one."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from protocol.errors import ResourceError


@contextmanager
def replacing(path: Path, mode: int = 0o666) -> Iterator[BinaryIO]:
    """A file to write, which becomes `path` at the end of the block, or nothing at all if the block fails.

    Until then it is a neighbour of `path` under one fixed name, so a path has one writer at a time. `mode` is what the
    file is created with, less the process's umask: 0o600 for what its owner alone may read.

    Raises:
        ResourceError: the file cannot be written, as on a full disk.
    """
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.unlink(missing_ok=True)  # one that a crash left has that file's mode
        with open(partial, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
        sync_folder(path.parent)
    except OSError as error:
        raise ResourceError(f"cannot write {path}: {error.strerror or error}") from error
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
