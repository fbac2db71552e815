"""A folder for the sockets of one process, which only its user may enter; nothing in it outlives the process.

A process that is killed leaves its folder. The next one to start removes it: each folder has a file that its process
holds locked, so whoever gets that lock knows that the process is gone.
"""

import atexit
import os
import shutil
import tempfile
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from protocol.errors import ResourceError
from protocol.files import try_lock

FOLDER_PREFIX = "hetpeer-sockets-"
LOCK_FILE = "lock"

FOLDER_ATTEMPTS = 8
"""The number of folders that are tried."""

FOLDER_CHARACTERS = 60
"""The length of a folder's path: a socket's path has 103 characters at most (macOS)."""


def socket_folder() -> Path:
    """The folder of this process, which is made at the first call.

    Raises:
        ResourceError: it cannot be made.
    """
    return _folder_of(os.getpid())


@lru_cache(maxsize=1)
def _folder_of(pid: int) -> Path:
    parent = Path(tempfile.gettempdir())
    if len(str(parent)) > FOLDER_CHARACTERS - len(FOLDER_PREFIX) - 8:
        parent = Path("/tmp")
    try:
        remove_abandoned(parent)
        for _ in range(FOLDER_ATTEMPTS):  # another process that starts now may take it for abandoned
            folder = Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX, dir=parent))
            descriptor = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            if try_lock(descriptor) and (folder / LOCK_FILE).exists():
                break  # held until the process ends
            os.close(descriptor)
        else:
            raise ResourceError(f"cannot lock a folder for sockets in {parent}: set TMPDIR to a folder on a local disk")
    except OSError as error:
        raise ResourceError(f"cannot make a folder for sockets in {parent}: {error.strerror}") from None
    atexit.register(_remove, folder, pid)
    return folder


def _remove(folder: Path, pid: int) -> None:
    if os.getpid() == pid:
        shutil.rmtree(folder, ignore_errors=True)


def remove_abandoned(parent: Path) -> None:
    """Remove the folders of this user's processes that have ended without removing them. A folder without a lock is
    being made."""
    for folder in parent.glob(f"{FOLDER_PREFIX}*"):
        with suppress(OSError):
            if folder.is_symlink() or folder.stat().st_uid != os.getuid():
                continue
            descriptor = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                if try_lock(descriptor):
                    shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(descriptor)
