"""Locks between the processes of one machine. Closing the file, or dying, gives a lock back."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from protocol.errors import ResourceError


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Wait for the right to read and replace `path`, and hold it for the block: nobody who asks so has it too.

    It is kept on a neighbour of `path`, since `path` itself becomes another file when it is replaced. The wait blocks,
    for as long as others take for their blocks; threads of one process exclude each other as processes do.

    Raises:
        ResourceError: the neighbour cannot be made.
    """
    import fcntl

    try:
        descriptor = os.open(path.with_name(f".{path.name}.lock"), os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise ResourceError(f"cannot lock {path}: {error.strerror}") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
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
