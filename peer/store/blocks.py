"""The blocks of a run's text, here before this peer reads them: from its own folder, its cache, or a mirror."""

import asyncio
import os
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path

from peer.data.text import Tokens
from protocol.errors import FormatError, HetpeerError, ResourceError
from protocol.events.activity import Warned
from protocol.events.event import Listener
from protocol.files import write_atomically
from protocol.net.tasks import Children
from protocol.run.dataset import Block, Dataset, check_block
from protocol.run.prepared import read_block

BLOCK_FETCHES = 4
"""The number of fetches at once: over 100 ms there and back, blocks of 512 KiB come at 10 MB/s and more, twenty million
tokens a second where links carry them."""

BLOCKS_IN_MEMORY = 64
"""Blocks in memory, 32 or 64 MiB; more where those that are looked ahead for are more."""

Fetch = Callable[[Block], Awaitable[bytes]]
"""The bytes of a block from elsewhere, checked."""


class BlockCache:
    """A folder of blocks, each under its digest. Nothing there is believed: it is checked when it is read."""

    def __init__(self, folder: Path, most_bytes: int) -> None:
        """Takes up what an earlier process left. Raises OSError if that cannot be read."""
        self.folder, self.most_bytes = folder, most_bytes
        self._lock = threading.Lock()  # a few blocks come at once, each with a thread of its own
        folder.mkdir(parents=True, exist_ok=True)
        ranges = []
        for path in folder.iterdir():
            if path.name.startswith("."):  # cut short while it was written
                path.unlink()
            else:
                ranges.append((path.stat().st_mtime_ns, path.name, path.stat().st_size))
        self._sizes = {name: size for _, name, size in sorted(ranges)}
        self._make_room(0)

    @property
    def size(self) -> int:
        """The bytes of all blocks that are kept."""
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


class BlockStore:
    """Brings blocks. `folder` is None where this machine has no copy, and `cache` where nothing is kept."""

    def __init__(
        self, dataset: Dataset, folder: Path | None, cache: BlockCache | None, fetch: Fetch, emit: Listener
    ) -> None:
        self.dataset, self.folder, self.cache, self.fetch, self.emit = dataset, folder, cache, fetch, emit
        self._brought: OrderedDict[int, asyncio.Task[Tokens]] = OrderedDict()
        self._tasks = Children()
        self._soon: set[int] = set()
        self._turns = asyncio.Semaphore(BLOCK_FETCHES)
        self._damaged = False

    async def take(self, numbers: Iterable[int]) -> dict[int, Tokens]:
        """The tokens of these blocks, as soon as all are here.

        Raises:
            HetpeerError: one cannot be had, or is no text of this run; the message says why.
        """
        waited = {number: self._wanted(number) for number in numbers}
        for task in waited.values():
            await asyncio.shield(task)
        return {number: task.result() for number, task in waited.items()}

    def look_ahead(self, numbers: Sequence[int]) -> None:
        """Begin to bring blocks that will be taken soon, the first first. Others that are under way are given up, since
        nobody waits for them."""
        self._soon = set(numbers)
        for number, task in self._brought.items():
            if number not in self._soon:
                task.cancel()  # no matter where it is done
        for number in numbers:
            self._wanted(number)

    async def close(self) -> None:
        """Give up what is under way."""
        await self._tasks.end()

    def _wanted(self, number: int) -> "asyncio.Task[Tokens]":
        """The task that brings a block, begun if there is none; done if the block is here."""
        if number in self._brought and not self._brought[number].cancelling():
            self._brought.move_to_end(number)
        else:
            task = self._brought[number] = self._tasks.spawn(self._bring(self.dataset.block(number)))
            task.add_done_callback(lambda done: self._note(number, done))
        return self._brought[number]

    def _note(self, number: int, done: "asyncio.Task[Tokens]") -> None:
        """Forget a block that could not be brought, so that who takes it begins anew, and those that are too many."""
        failed = done.cancelled() or done.exception() is not None
        if failed and self._brought.get(number) is done:
            del self._brought[number]
        here = [block for block, task in self._brought.items() if task.done()]
        past = [block for block in here if block not in self._soon]
        for block in past[: max(0, len(here) - BLOCKS_IN_MEMORY)]:
            del self._brought[block]

    async def _bring(self, block: Block) -> Tokens:
        data = await self._from_folder(block)
        if data is None and self.cache is not None:
            data = await asyncio.to_thread(self.cache.get, block)
        if data is None:
            async with self._turns:
                data = await self.fetch(block)
            await self._to_cache(block, data)
        try:
            return await asyncio.to_thread(self.dataset.tokens_of, block, data)
        except FormatError as error:  # the bytes are right, so no peer and no mirror is at fault
            raise ResourceError(str(error)) from None

    async def _from_folder(self, block: Block) -> bytes | None:
        """The bytes of a block in this machine's own copy; None where the block is missing there or damaged."""
        if self.folder is None:
            return None
        try:
            return await asyncio.to_thread(read_block, self.folder, block)
        except HetpeerError as error:
            if not self._damaged:
                self.emit(Warned(f"WARNING: {error}; taking what is damaged from mirrors"))
            self._damaged = True
            return None

    async def _to_cache(self, block: Block, data: bytes) -> None:
        """Put a block into the cache. A full disk costs the cache, not the training."""
        if self.cache is None:
            return
        try:
            await asyncio.to_thread(self.cache.put, block, data)
        except ResourceError as error:
            self.emit(Warned(f"WARNING: {error}; going on without a cache of the run's text"))
            self.cache = None
