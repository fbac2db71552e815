"""A peer reads the same batches from mirrors, its own copy and files, ahead of training."""

import asyncio
import json
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import numpy as np
import pytest

from peer.data.batches import batch, held_out_batch
from peer.data.text import BlockedTokens, local_blocks
from peer.store.membership import MEMBERSHIP, KeptMembership
from peer.swarm.text_reader import BlockReader, FileReader, TextSources, block_reader
from peer.torch_thread import TorchThread
from protocol.errors import FormatError, HetpeerError, UnreachableError
from protocol.events.event import Event
from protocol.identity import Endpoint, PeerId
from protocol.manifest import Manifest
from protocol.net.bandwidth import Bandwidth
from protocol.run.dataset import BLOCKS, DATA, STEP_BLOCKS
from protocol.run.prepared import open_folder
from tests.reference.mirror import mirror
from tests.reference.prepared import small_prepared
from tests.reference.small_manifest import small_manifest

MANIFEST = small_manifest()
CHUNKS = range(5, 5 + 3 * MANIFEST.inner.steps)
"""What is read in three rounds."""
NO_CREDENTIALS: Any = SimpleNamespace(calling=grpc.ssl_channel_credentials)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_prepared(tmp_path_factory.mktemp("text"))


@pytest.fixture
def directory(folder: Path, tmp_path: Path) -> Path:
    """A peer's, with what it has fetched of the run."""
    for name in (DATA, BLOCKS):
        shutil.copy(folder / name, tmp_path)
    return tmp_path


def tell(directory: Path, mirror: str, node: str | None = None) -> None:
    """What the operator's node, at the address `node`, told the peer of this folder last."""
    endpoint = Endpoint(PeerId("QmNode"), node) if node is not None else None
    membership = KeptMembership(mirrors=(mirror,), node=endpoint)
    (directory / MEMBERSHIP).write_text(membership.model_dump_json())


def sources(
    folder: Path, own: Path | None = None, tokenizer: str | None = None, private_mirrors: bool = True
) -> TextSources:
    run = tokenizer or open_folder(folder).manifest.tokenizer
    return TextSources(own, 10**6, run, NO_CREDENTIALS, Bandwidth(), private_mirrors)


def read(
    asked: TextSources,
    directory: Path,
    work: Callable[[BlockReader], Awaitable[object]],
    manifest: Manifest = MANIFEST,
    heard: Callable[[Event], None] = lambda event: None,
) -> list[Event]:
    said: list[Event] = []

    def hear(event: Event) -> None:
        said.append(event)
        heard(event)

    async def run() -> None:
        torch_thread = TorchThread(1)
        try:
            async with block_reader(asked, manifest, directory, torch_thread, hear) as reader:
                await work(reader)
        finally:
            torch_thread.stop()

    asyncio.run(run())
    return said


async def all_batches(reader: BlockReader, folder: Path) -> None:
    """Those of three rounds, and the held-out ones, beside the folder's own."""
    dataset = open_folder(folder)
    train, held_out = (
        BlockedTokens(stream, local_blocks(dataset, folder)) for stream in (dataset.train, dataset.held_out)
    )
    await reader.begin(CHUNKS)
    for place, chunk in enumerate(CHUNKS):
        np.testing.assert_array_equal(await reader.batch(CHUNKS[place:]), batch(train, MANIFEST, chunk))
    np.testing.assert_array_equal(await reader.held_out(), held_out_batch(held_out, MANIFEST))


def test_from_an_own_copy(folder: Path, directory: Path) -> None:
    assert read(sources(folder, folder), directory, lambda reader: all_batches(reader, folder)) == []


def test_from_a_mirror_once_and_then_from_the_cache(folder: Path, directory: Path) -> None:
    with mirror(folder) as served:
        tell(directory, served.url)
        assert read(sources(folder), directory, lambda reader: all_batches(reader, folder)) == []
        fetched = len(served.asked)
        assert fetched == len(set(served.asked)) > 0, "no block twice"
    read(sources(folder), directory, lambda reader: all_batches(reader, folder))  # nobody serves any more


def test_from_a_mirror_that_the_text_itself_names(folder: Path, directory: Path) -> None:
    with mirror(folder) as served:
        named = json.loads((folder / DATA).read_text()) | {"mirrors": [served.url]}
        (directory / DATA).write_text(json.dumps(named))
        read(sources(folder), directory, lambda reader: all_batches(reader, folder))
        assert served.asked


def test_from_a_mirror_that_the_operator_named_later(folder: Path, directory: Path) -> None:
    with mirror(folder, "error") as first, mirror(folder) as later:
        tell(directory, first.url)

        async def work(reader: BlockReader) -> None:
            waiting = asyncio.create_task(reader.batch(CHUNKS))
            while not first.asked:
                await asyncio.wait((waiting,), timeout=0.01)
            tell(directory, later.url)
            await waiting

        said = read(sources(folder), directory, work)
    assert later.asked
    assert "503" in said[0].doing  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("node", "asked"), [("127.0.0.1:9", True), ("127.0.0.2:9", False), ("localhost:9", False), (None, False)]
)
def test_a_mirror_in_ones_own_network_is_asked_only_where_the_operators_node_has_shown_its_key(
    folder: Path, directory: Path, node: str | None, asked: bool
) -> None:
    """At that very address: a name may stand for another one by now."""
    with mirror(folder) as served:
        tell(directory, served.url, node)
        told = asyncio.Event()

        async def work(reader: BlockReader) -> None:
            reading = asyncio.create_task(reader.batch(CHUNKS))
            telling = asyncio.create_task(told.wait())
            await asyncio.wait((reading, telling), return_when=asyncio.FIRST_COMPLETED)
            assert reading.done() == asked
            for task in (reading, telling):
                task.cancel()

        said = read(sources(folder, private_mirrors=False), directory, work, heard=lambda event: told.set())
        assert bool(served.paths) == asked
        assert asked or "127.0.0.1, which is no public address" in said[0].doing  # type: ignore[union-attr]


def test_blocks_come_before_they_are_needed(folder: Path, directory: Path) -> None:
    """Once the first batch is here, those of the next steps are on their way: a mirror that dies harms none of them."""
    with mirror(folder) as served:
        tell(directory, served.url)

        async def work(reader: BlockReader) -> None:
            await reader.batch(CHUNKS)
            _, later = reader.ahead.plan(CHUNKS)
            await reader.store.take(later)
            served.fault = "gone"
            for place in range(1, MANIFEST.inner.steps):
                await reader.batch(CHUNKS[place:])

        read(sources(folder), directory, work)


def test_text_in_blocks_so_small_that_a_step_takes_thousands_is_an_error(folder: Path, directory: Path) -> None:
    """Each would be a task and a fetch of its own."""
    tokens = STEP_BLOCKS * open_folder(folder).manifest.block_tokens
    large = small_manifest(inner={"sequences": tokens // 8 + 1, "microbatch": 1})
    with pytest.raises(FormatError, match="more than 4096 of them"):
        read(sources(folder), directory, lambda reader: reader.batch(CHUNKS), large)


def test_another_tokenizer_is_an_error(folder: Path, directory: Path) -> None:
    with pytest.raises(FormatError, match="another tokenizer than the run's"):
        read(sources(folder, tokenizer="ab" * 32), directory, lambda reader: reader.batch(CHUNKS))


def test_a_vocabulary_larger_than_the_models_is_an_error(folder: Path, directory: Path) -> None:
    narrow = small_manifest(model={"vocabulary": 260})
    with pytest.raises(FormatError, match="vocabulary of 300, its model one of 260"):
        read(sources(folder), directory, lambda reader: reader.batch(CHUNKS), narrow)


def test_without_anybody_to_ask_the_error_says_so(folder: Path, directory: Path) -> None:
    with pytest.raises(UnreachableError, match="not on this machine, and the run has no mirrors"):
        read(sources(folder), directory, lambda reader: reader.batch(CHUNKS))


@pytest.mark.parametrize("name", [DATA, BLOCKS])
def test_damaged_files_of_the_run_are_errors(folder: Path, directory: Path, name: str) -> None:
    (directory / name).write_bytes(b"{}")
    with pytest.raises(HetpeerError, match=r"not prepared text|is not the one"):
        read(sources(folder, folder), directory, lambda reader: reader.batch(CHUNKS))


def test_a_run_with_files_reads_them(tmp_path: Path) -> None:
    tokens = np.arange(500, dtype="<u2") % 300
    for name in ("train.bin", "heldout.bin"):
        tokens.tofile(tmp_path / name)

    async def run() -> None:
        torch_thread = TorchThread(1)
        reader = FileReader(MANIFEST, tmp_path, torch_thread)
        await reader.begin(CHUNKS)
        np.testing.assert_array_equal(await reader.batch(CHUNKS[4:]), batch(tokens, MANIFEST, CHUNKS[4]))
        np.testing.assert_array_equal(await reader.held_out(), held_out_batch(tokens, MANIFEST))
        torch_thread.stop()

    asyncio.run(run())
