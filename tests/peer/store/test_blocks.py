"""Blocks are here before they are read, whatever befalls the disk."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np
import pytest

from peer.store import blocks
from peer.store.blocks import BlockCache, BlockStore
from protocol.errors import ResourceError, UnreachableError
from protocol.events.event import Event
from protocol.run.dataset import Block, Dataset
from protocol.run.prepared import open_folder, read_block
from tests.reference.prepared import small_prepared


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_prepared(tmp_path_factory.mktemp("text"))


@pytest.fixture(scope="module")
def dataset(folder: Path) -> Dataset:
    return open_folder(folder)


class Elsewhere:
    """Somebody who has all blocks, and counts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.given: list[int] = []
        self.at_once = self.most = 0

    async def fetch(self, block: Block) -> bytes:
        self.given.append(block.number)
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        await asyncio.sleep(0)
        self.at_once -= 1
        return read_block(self.folder, block)


async def nobody(block: Block) -> bytes:
    raise UnreachableError(f"nobody gives {block}")


Use = Callable[[BlockStore], Awaitable[object]]


def use(store: Callable[[], BlockStore], work: Use) -> object:
    async def run() -> object:
        opened = store()
        try:
            return await work(opened)
        finally:
            await opened.close()

    return asyncio.run(run())


def silent(event: Event) -> None:
    """Nobody listens."""


def test_blocks_are_fetched_once_and_are_those_that_were_asked_for(folder: Path, dataset: Dataset) -> None:
    elsewhere = Elsewhere(folder)

    async def work(store: BlockStore) -> None:
        for _ in range(2):
            taken = await store.take([3, 1, 2])
            assert list(taken) == [3, 1, 2]
            for number, tokens in taken.items():
                np.testing.assert_array_equal(tokens, np.frombuffer(read_block(folder, dataset.block(number)), "<u2"))

    use(lambda: BlockStore(dataset, None, None, elsewhere.fetch, silent), work)
    assert sorted(elsewhere.given) == [1, 2, 3]


def test_what_is_looked_ahead_for_is_here_when_it_is_taken(folder: Path, dataset: Dataset) -> None:
    elsewhere = Elsewhere(folder)

    async def work(store: BlockStore) -> None:
        store.look_ahead(range(12))
        await store.take(range(12))
        given = len(elsewhere.given)
        await store.take(range(12))
        assert len(elsewhere.given) == given == 12

    use(lambda: BlockStore(dataset, None, None, elsewhere.fetch, silent), work)
    assert elsewhere.most <= blocks.BLOCK_FETCHES


def test_memory_holds_the_blocks_used_last(folder: Path, dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "BLOCKS_IN_MEMORY", 4)
    elsewhere = Elsewhere(folder)

    async def work(store: BlockStore) -> None:
        for number in range(10):
            await store.take([number])
        await store.take([7, 8, 9])
        assert elsewhere.given == list(range(10))
        await store.take([0])
        assert elsewhere.given[10:] == [0]

    use(lambda: BlockStore(dataset, None, None, elsewhere.fetch, silent), work)


def test_what_was_looked_ahead_for_stays_until_it_is_taken_however_much_it_is(
    folder: Path, dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "BLOCKS_IN_MEMORY", 2)
    elsewhere = Elsewhere(folder)

    async def work(store: BlockStore) -> None:
        store.look_ahead(range(8))
        await store.take(range(8))
        await store.take(range(8))
        assert sorted(elsewhere.given) == list(range(8))

    use(lambda: BlockStore(dataset, None, None, elsewhere.fetch, silent), work)


def test_what_is_no_longer_looked_ahead_for_keeps_nobody_waiting(folder: Path, dataset: Dataset) -> None:
    """A replica that skipped steps: blocks that nobody gives, and nobody needs any more, would take all turns."""
    elsewhere, waiting, taken = Elsewhere(folder), [], asyncio.Event()

    async def fetch(block: Block) -> bytes:
        if block.number < 8:
            waiting.append(block.number)
            if len(waiting) == blocks.BLOCK_FETCHES:
                taken.set()
            await asyncio.Event().wait()
        return await elsewhere.fetch(block)

    async def work(store: BlockStore) -> None:
        store.look_ahead(range(8))
        await taken.wait()
        store.look_ahead([9, 10])
        assert list(await store.take([9, 10])) == [9, 10]

    use(lambda: BlockStore(dataset, None, None, fetch, silent), work)


def test_an_own_copy_is_read_and_nobody_asked(folder: Path, dataset: Dataset) -> None:
    use(lambda: BlockStore(dataset, folder, None, nobody, silent), lambda store: store.take(range(dataset.blocks)))


def test_a_damaged_copy_is_said_once_and_mended_from_elsewhere(folder: Path, dataset: Dataset, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in folder.iterdir():
        data = bytearray(path.read_bytes())
        data[100::40] = bytes(byte ^ 1 for byte in data[100::40]) if path.name == "train-00000.bin" else data[100::40]
        (copy / path.name).write_bytes(data)
    elsewhere, said = Elsewhere(folder), []

    async def work(store: BlockStore) -> None:
        for number, tokens in (await store.take(range(5))).items():
            np.testing.assert_array_equal(tokens, np.frombuffer(read_block(folder, dataset.block(number)), "<u2"))

    use(lambda: BlockStore(dataset, copy, None, elsewhere.fetch, said.append), work)
    assert len(elsewhere.given) == 5
    assert len(said) == 1
    assert "train-00000.bin" in said[0].doing
    with pytest.raises(UnreachableError, match="nobody gives block 0"):
        use(lambda: BlockStore(dataset, copy, None, nobody, silent), lambda store: store.take([0]))


def test_an_error_is_for_who_takes_the_block_and_the_next_one_tries_again(folder: Path, dataset: Dataset) -> None:
    elsewhere, fails = Elsewhere(folder), [True]

    async def fetch(block: Block) -> bytes:
        if fails.pop() if fails else False:
            raise UnreachableError("not now")
        return await elsewhere.fetch(block)

    async def work(store: BlockStore) -> None:
        with pytest.raises(UnreachableError, match="not now"):
            await store.take([0])
        assert (await store.take([0]))[0].size

    use(lambda: BlockStore(dataset, None, None, fetch, silent), work)


def test_tokens_that_are_not_in_the_vocabulary_are_never_given(folder: Path, dataset: Dataset) -> None:
    """Their digest is right: whoever prepared them did wrong."""
    narrow = Dataset(
        dataset.manifest.model_copy(update={"vocabulary": 3}), dataset.digests, dataset.train, dataset.held_out
    )
    with pytest.raises(ResourceError, match=r"train-00000\.bin: token \d+ at place \d+ is not in the vocabulary of 3"):
        use(lambda: BlockStore(narrow, folder, None, nobody, silent), lambda store: store.take([0]))


def test_a_cache_outlives_its_peer(folder: Path, dataset: Dataset, tmp_path: Path) -> None:
    for fetch in (Elsewhere(folder).fetch, nobody):
        cache = BlockCache(tmp_path / "blocks", 10**6)
        use(lambda: BlockStore(dataset, None, cache, fetch, silent), lambda store: store.take(range(8)))  # noqa: B023


def test_a_cache_keeps_to_its_bytes_and_drops_what_was_used_longest_ago(
    folder: Path, dataset: Dataset, tmp_path: Path
) -> None:
    blocks = [dataset.block(number) for number in range(5)]
    cache = BlockCache(tmp_path / "blocks", 4 * blocks[0].size)
    for block in blocks[:4]:
        cache.put(block, read_block(folder, block))
    assert cache.get(blocks[0]) is not None
    cache.put(blocks[4], read_block(folder, blocks[4]))
    there = [cache.get(block) is not None for block in blocks]
    assert there == [True, False, True, True, True]
    assert sum(path.stat().st_size for path in (tmp_path / "blocks").iterdir()) <= cache.most_bytes
    assert BlockCache(tmp_path / "blocks", 2 * blocks[0].size).size <= 2 * blocks[0].size
    none = BlockCache(tmp_path / "none", blocks[0].size - 1)
    none.put(blocks[0], read_block(folder, blocks[0]))
    assert not any((tmp_path / "none").iterdir())


@pytest.mark.parametrize("harm", [b"", b"short", None])
def test_what_is_damaged_in_a_cache_is_not_there(
    folder: Path, dataset: Dataset, tmp_path: Path, harm: bytes | None
) -> None:
    cache, block = BlockCache(tmp_path / "blocks", 10**6), dataset.block(0)
    cache.put(block, read_block(folder, block))
    path = next((tmp_path / "blocks").iterdir())
    path.write_bytes(os.urandom(block.size) if harm is None else harm)
    assert cache.get(block) is None
    assert not path.exists()


def test_what_was_cut_short_while_it_was_written_is_cleared(tmp_path: Path) -> None:
    (tmp_path / "blocks").mkdir()
    (tmp_path / "blocks" / ".abc.partial").write_bytes(b"half")
    assert BlockCache(tmp_path / "blocks", 10**6).size == 0
    assert not any((tmp_path / "blocks").iterdir())


def test_a_full_disk_costs_the_cache_and_not_the_text(
    folder: Path, dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, said = BlockCache(tmp_path / "blocks", 10**6), []

    def full(block: Block, data: bytes) -> None:
        raise ResourceError("cannot write: No space left on device")

    monkeypatch.setattr(cache, "put", full)
    elsewhere = Elsewhere(folder)
    use(lambda: BlockStore(dataset, None, cache, elsewhere.fetch, said.append), lambda store: store.take(range(3)))
    assert "going on without a cache" in said[0].doing
