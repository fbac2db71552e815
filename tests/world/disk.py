"""What a loss of power leaves of a folder: what was synced for certain, and of the rest what chance leaves.

A file's bytes are safe once the file was synced; its name, once the folder was. Until then a new file may be there or
not, a renamed one under its old name or the new, a removed one again; what was written may be there up to any byte.
"""

import errno
import os
import random
import shutil
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

Entry = tuple[int, bool]
"""What a name stands for: an inode, and whether it is a folder."""


WRITE = os.write


@dataclass(slots=True)
class Disk:
    """What is safe, by inode: the bytes of files, and the entries of folders. In folders that are `full` nothing can be
    written, and in `slow` ones each sync takes so many seconds, which `spend` is told."""

    chance: random.Random
    spend: Callable[[float], None] = lambda seconds: None
    files: dict[int, bytes] = field(default_factory=dict)
    folders: dict[int, dict[str, Entry]] = field(default_factory=dict)
    full: set[Path] = field(default_factory=set)
    slow: dict[Path, float] = field(default_factory=dict)

    def write(self, descriptor: int, data: bytes) -> int:
        """`os.write`, by which lines of logs are added."""
        self._require_room(descriptor)
        return WRITE(descriptor, data)

    def _require_room(self, descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}")) if self.full else Path()
        if any(path.is_relative_to(folder) for folder in self.full):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def sync(self, descriptor: int) -> None:
        """`os.fsync`."""
        path, what = Path(os.readlink(f"/proc/self/fd/{descriptor}")), os.fstat(descriptor)
        self.spend(sum(seconds for folder, seconds in self.slow.items() if path.is_relative_to(folder)))
        if stat.S_ISDIR(what.st_mode):
            self.folders[what.st_ino] = _entries(path)
        else:
            self._require_room(descriptor)
            self.files[what.st_ino] = path.read_bytes()

    def lose_power(self, folder: Path) -> None:
        """Leave in a folder what is there after the machine's next start; all of that is safe then."""
        now = {folder.stat().st_ino: folder} | {each.stat().st_ino: each for each in folder.rglob("*")}
        left = folder.with_name(f"{folder.name}.after")
        self._leave(folder.stat().st_ino, now, left)
        shutil.rmtree(folder)
        left.rename(folder)
        self.keep(folder)

    def keep(self, folder: Path) -> None:
        """Make all of a folder safe."""
        for path in (folder, *folder.rglob("*")):
            if path.is_dir():
                self.folders[path.stat().st_ino] = _entries(path)
            else:
                self.files[path.stat().st_ino] = path.read_bytes()

    def _leave(self, inode: int, now: dict[int, Path], to: Path) -> None:
        to.mkdir()
        safe = self.folders.get(inode, {})
        here = _entries(now[inode]) if inode in now else safe
        for name in sorted(safe.keys() | here.keys()):
            entry = self.chance.choice((safe.get(name), here.get(name)))
            if entry is None:
                continue
            other, is_folder = entry
            if is_folder:
                self._leave(other, now, to / name)
            elif other in now or other in self.files:
                (to / name).write_bytes(self._bytes(other, now))
                (to / name).chmod(0o600)  # a key that others may read is refused

    def _bytes(self, inode: int, now: dict[int, Path]) -> bytes:
        """A file's bytes after the loss: the safe ones, and some more of what was written behind them."""
        safe = self.files.get(inode, b"")
        written = now[inode].read_bytes() if inode in now else safe
        if inode in self.files and not written.startswith(safe):
            return safe
        return written[: self.chance.randint(min(len(safe), len(written)), len(written))]


def _entries(folder: Path) -> dict[str, Entry]:
    return {each.name: (each.inode(), each.is_dir(follow_symlinks=False)) for each in os.scandir(folder)}
