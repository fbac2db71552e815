"""The text that a peer reads, batch by batch. Prepared text is fetched ahead of training."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from ipaddress import ip_address
from itertools import islice
from pathlib import Path
from typing import Protocol

from peer.data.batches import AHEAD_STEPS, Ahead, Batch, batch, held_out_batch, held_out_positions
from peer.data.text import BlockedTokens, Tokens, open_tokens
from peer.store.blocks import BlockCache, BlockStore
from peer.store.membership import mirrors_of, node_of
from peer.torch_thread import TorchThread
from protocol.addresses import Ip, is_ip, split_address
from protocol.clock import monotonic
from protocol.errors import FormatError, ResourceError
from protocol.events.event import Listener
from protocol.manifest import Manifest
from protocol.net.bandwidth import Bandwidth
from protocol.net.channels import Credentials, Reachable
from protocol.run.dataset import BlockStream, Dataset
from protocol.run.prepared import open_folder
from protocol.run.run_files import HELD_OUT, TRAIN

CACHE = "blocks"
"""The folder in a peer's folder that keeps blocks of the run's text."""


@dataclass(frozen=True, slots=True)
class TextSources:
    """The sources of the blocks of prepared text: the peer's own `folder`, with as many bytes of cache as its owner
    gives, and the mirrors and the node that it was told of, with the credentials and the bandwidth for them."""

    folder: Path | None
    cache_bytes: int
    tokenizer: str
    """SHA-256 of the run's."""
    credentials: Credentials
    bandwidth: Bandwidth
    private_mirrors: bool = False
    """Whether mirrors may be in this machine's own network."""
    other_node_addresses: Callable[[str], Sequence[str]] = lambda address: ()
    """A function from an address of the node to the other addresses at which it may answer."""


class Reader(Protocol):
    """A reader of one replica's batches."""

    async def begin(self, chunks: Iterable[int]) -> None:
        """Get ready: training will begin with these chunks. Raises as `batch` does."""
        ...

    async def batch(self, chunks: Iterable[int]) -> Batch:
        """Return the first of these chunks, as soon as it is here: int64 [inner.sequences, context + 1]. The others
        will be asked for next. Raises HetpeerError: it cannot be had."""
        ...

    async def held_out(self) -> Batch:
        """Return the held-out text: int64 [sequences, context + 1]. Raises as `batch` does."""
        ...


@dataclass(frozen=True, slots=True)
class FileReader:
    """A reader for a run whose tokens are two of its files."""

    manifest: Manifest
    directory: Path
    torch_thread: TorchThread
    opened: dict[str, Tokens] = field(default_factory=dict)

    async def begin(self, chunks: Iterable[int]) -> None:
        await self._open(TRAIN)

    async def batch(self, chunks: Iterable[int]) -> Batch:
        return await self.torch_thread.run(batch, await self._open(TRAIN), self.manifest, next(iter(chunks)))

    async def held_out(self) -> Batch:
        return await self.torch_thread.run(held_out_batch, await self._open(HELD_OUT), self.manifest)

    async def _open(self, name: str) -> Tokens:
        """Every id is checked, once."""
        if name not in self.opened:
            path = self.directory / name
            self.opened[name] = await self.torch_thread.run(open_tokens, path, self.manifest.model.vocabulary)
        return self.opened[name]


@dataclass(slots=True)
class BlockReader:
    """The reader of a run on prepared text. `waited` counts the seconds that batches had to wait for their blocks."""

    manifest: Manifest
    dataset: Dataset
    store: BlockStore
    torch_thread: TorchThread
    waited: float = 0.0
    ahead: Ahead = field(init=False)

    def __post_init__(self) -> None:
        self.ahead = Ahead(_tokens(self.dataset.train, {}), self.manifest)

    async def begin(self, chunks: Iterable[int]) -> None:
        await self._look_ahead(list(islice(chunks, AHEAD_STEPS)))

    async def batch(self, chunks: Iterable[int]) -> Batch:
        coming = list(islice(chunks, AHEAD_STEPS))
        needed = await self._look_ahead(coming)
        begun = monotonic()
        tokens = _tokens(self.dataset.train, await self.store.take(needed))
        self.waited += monotonic() - begun
        return await self.torch_thread.run(batch, tokens, self.manifest, coming[0])

    async def _look_ahead(self, chunks: Sequence[int]) -> list[int]:
        """Have the blocks of the first chunk, which are returned, and of the next ones brought."""
        needed, later = await asyncio.to_thread(self.ahead.plan, chunks)
        self.store.look_ahead((*needed, *later))
        return needed

    async def held_out(self) -> Batch:
        stream = self.dataset.held_out
        layout = _tokens(stream, {})  # no block is read to know which are needed
        block_numbers = layout.needed(held_out_positions(layout, self.manifest))
        return held_out_batch(_tokens(stream, await self.store.take(block_numbers)), self.manifest)


def is_nodes_own(ip: Ip, node: Reachable | None) -> bool:
    """Whether `ip` is the address at which the operator's node has shown its key. A mirror may be there even in a
    private network, as the operator could reach that machine anyway. A host name is not enough: its owner may point it
    at another address later."""
    if node is None:
        return False
    host, _ = split_address(node.address)
    return is_ip(host) and ip_address(host) == ip


def _tokens(stream: BlockStream, blocks: dict[int, Tokens]) -> BlockedTokens:
    return BlockedTokens(stream, blocks.__getitem__)


@asynccontextmanager
async def block_reader(
    sources: TextSources, manifest: Manifest, directory: Path, torch_thread: TorchThread, emit: Listener
) -> AsyncIterator[BlockReader]:
    """A reader of the prepared text that the files in a peer's `directory` name. Fetching stops when the `async with`
    ends.

    Raises:
        FormatError: it is not for this run.
        ResourceError: the cache cannot be made.
    """
    from peer.network.mirrors import BlockSource, HttpMirror, Mirrors, NodeMirror  # late: they import httpcore2
    from peer.network.web import Client

    dataset = await asyncio.to_thread(open_folder, directory)
    _require_fit(dataset, manifest, sources.tokenizer)
    try:
        cache = await asyncio.to_thread(BlockCache, directory / CACHE, sources.cache_bytes)
    except OSError as error:
        raise ResourceError(f"cannot keep blocks in {directory / CACHE}: {error.strerror}") from None

    def allowed(ip: Ip) -> bool:
        return sources.private_mirrors or is_nodes_own(ip, node_of(directory))

    async with await asyncio.to_thread(Client, allowed) as client:

        async def current_sources() -> Sequence[BlockSource]:
            urls = (*await asyncio.to_thread(mirrors_of, directory), *dataset.manifest.mirrors)
            block_sources: list[BlockSource] = [
                HttpMirror(url, client, sources.bandwidth) for url in dict.fromkeys(urls)
            ]
            if (node := await asyncio.to_thread(node_of, directory)) is not None:
                others = tuple(sources.other_node_addresses(node.address))
                block_sources.append(NodeMirror(node, manifest, sources.credentials, sources.bandwidth, others=others))
            return block_sources

        store = BlockStore(dataset, sources.folder, cache, Mirrors(current_sources, emit).fetch, emit)
        try:
            yield BlockReader(manifest, dataset, store, torch_thread)
        finally:
            await store.close()


def _require_fit(dataset: Dataset, manifest: Manifest, tokenizer: str) -> None:
    prepared = dataset.manifest
    if prepared.tokenizer != tokenizer:
        raise FormatError("the run's text was prepared with another tokenizer than the run's")
    prepared.require_blocks(manifest.tokens_per_step)
    if prepared.vocabulary > manifest.model.vocabulary:
        raise FormatError(
            f"the run's text has a vocabulary of {prepared.vocabulary}, its model one of {manifest.model.vocabulary}"
        )
