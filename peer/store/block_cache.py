"""Blocks that were fetched, on this machine's disk: as many bytes as its owner gives, less those used longest ago."""

import os
import threading
from pathlib import Path

from protocol.errors import FormatError
from protocol.files import write_atomically
from protocol.run.dataset import Block, check_block


class BlockCache:
    """A folder of blocks, each under its digest. Nothing there is believed: it is checked when it is read."""

    def __init__(self, folder: Path, most_bytes: int) -> None:
        """Takes up what an earlier process left. Raises OSError if that cannot be read."""
        self.folder, self.most_bytes = folder, most_bytes
        self._lock = threading.Lock()  # a few blocks come at once, each with a thread of its own
        folder.mkdir(parents=True, exist_ok=True)
        found = []
        for path in folder.iterdir():
            if path.name.startswith("."):  # cut short while it was written
                path.unlink()
            else:
                found.append((path.stat().st_mtime_ns, path.name, path.stat().st_size))
        self._sizes = {name: size for _, name, size in sorted(found)}
        self._make_room(0)

    @property
    def size(self) -> int:
        """In bytes."""
        return sum(self._sizes.values())

    def get(self, block: Block) -> bytes | None:
        """The block's bytes, if they are here and whole."""
        name = block.sha256.hex()
        with self._lock:
            if name not in self._sizes:
                return None
            try:
                data = (self.folder / name).read_bytes()
                check_block(block, data)
                os.utime(self.folder / name)
            except (OSError, FormatError):
                self._drop(name)
                return None
            self._sizes[name] = self._sizes.pop(name)
            return data

    def put(self, block: Block, data: bytes) -> None:
        """Keep a block, and drop the least lately used beyond the limit; none that is larger than that.

        Raises:
            ResourceError: the disk is full.
        """
        name = block.sha256.hex()
        with self._lock:
            if len(data) > self.most_bytes:
                return
            self._make_room(len(data))
            write_atomically(self.folder / name, data)
            self._sizes[name] = len(data)

    def _make_room(self, size: int) -> None:
        while self._sizes and self.size + size > self.most_bytes:
            self._drop(next(iter(self._sizes)))

    def _drop(self, name: str) -> None:
        self._sizes.pop(name, None)
        (self.folder / name).unlink(missing_ok=True)
