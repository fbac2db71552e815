"""The blocks of a run's text, here before this peer reads them: from its own folder, its cache, or a mirror."""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path

from peer.data.text import Tokens
from peer.store.block_cache import BlockCache
from peer.telemetry.events import Listener, Progress
from protocol.errors import FormatError, HetpeerError, ResourceError
from protocol.run.dataset import Block, Dataset
from protocol.run.prepared import read_block

FETCHES = 4
"""At once: on a way of 100 ms there and back, blocks of 512 KiB come at 10 MB/s and more, twenty million tokens a
second where links carry them."""

KEPT = 64
"""Blocks in memory, 32 or 64 MiB; more where those that are looked ahead for are more."""

Fetch = Callable[[Block], Awaitable[bytes]]
"""The bytes of a block from elsewhere, checked."""


class BlockStore:
    """Brings blocks. `folder` is None where this machine has no copy, and `cache` where nothing is kept."""

    def __init__(
        self, dataset: Dataset, folder: Path | None, cache: BlockCache | None, fetch: Fetch, emit: Listener
    ) -> None:
        self.dataset, self.folder, self.cache, self.fetch, self.emit = dataset, folder, cache, fetch, emit
        self._brought: OrderedDict[int, asyncio.Task[Tokens]] = OrderedDict()
        self._soon: set[int] = set()
        self._turns = asyncio.Semaphore(FETCHES)
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
        """These will be taken soon, the first first. Others that are under way are given up: nobody waits for them."""
        self._soon = set(numbers)
        for number, task in self._brought.items():
            if number not in self._soon:
                task.cancel()  # which what is here does not heed
        for number in numbers:
            self._wanted(number)

    async def close(self) -> None:
        """Give up what is under way."""
        tasks = list(self._brought.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _wanted(self, number: int) -> "asyncio.Task[Tokens]":
        """Under way, or here."""
        if number in self._brought and not self._brought[number].cancelling():
            self._brought.move_to_end(number)
        else:
            task = self._brought[number] = asyncio.create_task(self._bring(self.dataset.block(number)))
            task.add_done_callback(lambda done: self._note(number, done))
        return self._brought[number]

    def _note(self, number: int, done: "asyncio.Task[Tokens]") -> None:
        """What failed is forgotten: who takes the block begins anew."""
        failed = done.cancelled() or done.exception() is not None
        if failed and self._brought.get(number) is done:
            del self._brought[number]
        here = [each for each, task in self._brought.items() if task.done()]
        past = [each for each in here if each not in self._soon]
        for each in past[: max(0, len(here) - KEPT)]:
            del self._brought[each]

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
        """None where it has not the block, or not as it was prepared."""
        if self.folder is None:
            return None
        try:
            return await asyncio.to_thread(read_block, self.folder, block)
        except HetpeerError as error:
            if not self._damaged:
                self.emit(Progress(f"WARNING: {error}; taking what is damaged from mirrors"))
            self._damaged = True
            return None

    async def _to_cache(self, block: Block, data: bytes) -> None:
        """A full disk costs the cache, not the training."""
        if self.cache is None:
            return
        try:
            await asyncio.to_thread(self.cache.put, block, data)
        except ResourceError as error:
            self.emit(Progress(f"WARNING: {error}; going on without a cache of the run's text"))
            self.cache = None
