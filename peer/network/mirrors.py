"""Mirrors: blocks of prepared text come from HTTP mirrors, and from the operator's node where none gives them.

Nobody is trusted: a block is what its digest says, or nothing. A mirror that errs, stalls or lies is passed over while
another gives the bytes; the quickest is asked first.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import httpcore2

from peer.network.web import Client, header
from protocol.errors import FormatError, HetpeerError, RefusedError, UnreachableError
from protocol.events.activity import Progress
from protocol.events.event import Listener
from protocol.identity import Endpoint
from protocol.limits import TLS_SECONDS
from protocol.manifest import Manifest
from protocol.net.allowances import pause_after
from protocol.net.bandwidth import Bandwidth
from protocol.net.blobs import fetch, take_turns
from protocol.net.channels import Credentials, Reachable, connect
from protocol.net.tls_probe import first_answering
from protocol.run.dataset import Block, check_block

BLOCK_SECONDS = 60.0
"""The time for a whole block: at 512 KiB, less than a home link's tenth part. Only a mirror that drips, or a hopeless
link, is slower."""

NO_BLOCK_SECONDS = 3600.0
"""The time without a single block from anybody after which waiting is no use."""

FIRST_PAUSE_SECONDS, MOST_PAUSE_SECONDS = 1.0, 30.0
"""The pauses between two rounds of asking everybody."""

AVOIDED_SECONDS, MOST_AVOIDED_SECONDS = 5.0, 300.0
"""The times for which a source that has failed is avoided, twice as long each time; it is asked sooner only if nobody
else gives a block."""

FORGETS = 0.8
"""The share of a mirror's known speed that is kept after each block."""


class BlockSource(Protocol):
    """A source of blocks. One that is `last` is asked when all others have failed."""

    @property
    def name(self) -> str: ...
    @property
    def last(self) -> bool: ...

    async def fetch(self, block: Block) -> bytes:
        """Fetch a block: at most `block.size` bytes, not checked. Raises HetpeerError if the source gives none."""
        ...


@dataclass(frozen=True, slots=True)
class HttpMirror:
    """A folder with the shards, behind an HTTP server that knows ranges."""

    name: str
    client: Client
    bandwidth: Bandwidth
    last: bool = False

    async def fetch(self, block: Block) -> bytes:
        end = block.offset + block.size - 1
        headers = {"Range": f"bytes={block.offset}-{end}", "Accept-Encoding": "identity"}
        await take_turns(self.bandwidth, block.size)
        with _translated_errors():
            async with (
                asyncio.timeout(BLOCK_SECONDS),
                self.client.get(f"{self.name}/{block.shard}", headers) as response,
            ):
                _require_range(response, block)
                return await _body(response, block.size)


@contextmanager
def _translated_errors() -> Iterator[None]:
    """Raise the library's errors as ours."""
    try:
        yield
    except (TimeoutError, httpcore2.TimeoutException):
        raise UnreachableError("stalls") from None
    except (httpcore2.NetworkError, httpcore2.ProtocolError) as error:
        raise UnreachableError(f"{type(error).__name__}: {error}"[:200]) from None


async def _body(response: httpcore2.Response, most: int) -> bytes:
    """Read the body of a response as it came, and no more of it than `most` bytes."""
    data = bytearray()
    async for some in response.aiter_stream():
        data += some
        if len(data) > most:
            raise FormatError(f"gives more than the {most} bytes that are due")
    return bytes(data)


async def fetch_whole(client: Client, url: str, most: int) -> bytes:
    """Fetch a small file, of `most` bytes at most.

    Raises:
        FormatError: it is larger.
        RefusedError: it is not there.
        UnreachableError: nobody answers.
    """
    try:
        with _translated_errors():
            async with client.get(url, {"Accept-Encoding": "identity"}) as response:
                if response.status != 200:
                    raise RefusedError(f"answers {response.status}")
                return await _body(response, most)
    except HetpeerError as error:
        raise type(error)(f"{url}: {error}") from None


def _require_range(response: httpcore2.Response, block: Block) -> None:
    """Check that the body will be the bytes that were asked for.

    Raises:
        RefusedError, FormatError: it will not.
    """
    if response.status == 200:
        raise RefusedError("answers with the whole file: its server knows no ranges (nginx, Caddy and S3 do)")
    if response.status != 206:
        raise RefusedError(f"answers {response.status} to {block.shard}")
    content_range = header(response, b"content-range")
    if not content_range.startswith(f"bytes {block.offset}-{block.offset + block.size - 1}/"):
        raise FormatError(f"answers with another range, {content_range[:80]!r}")


@dataclass(frozen=True, slots=True)
class NodeMirror:
    """The operator's node, which serves the blocks of text that lies on its machine by their digests. It may be at one
    of `others` if it does not answer at its own address."""

    node: Reachable
    manifest: Manifest
    credentials: Credentials
    bandwidth: Bandwidth
    last: bool = True
    others: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"the operator's node at {self.node.address}"

    async def fetch(self, block: Block) -> bytes:
        node = self.node
        if self.others:
            addresses = node.address, *self.others
            node = Endpoint(node.peer_id, await first_answering(node.peer_id, addresses, TLS_SECONDS))
        async with connect(node, self.manifest, self.credentials, self.bandwidth.window) as channel:
            return await fetch(channel, self.manifest, block.sha256.hex(), block.size, self.bandwidth)


@dataclass(slots=True)
class SourceRecord:
    """The record of a source: the seconds a block takes (0: never asked), and why it failed last (empty: it did
    not)."""

    source: BlockSource
    seconds: float = 0.0
    failures: int = 0
    reason: str = ""
    avoided_until: float = 0.0
    chance: float = field(default_factory=random.random)

    def promise(self, now: float) -> tuple[bool, float, bool, float, float]:
        """The key by which sources are sorted to be asked. Avoided ones go last; of the others the quickest mirror goes
        first, but before it one that was never asked."""
        avoided = now < self.avoided_until
        return avoided, avoided * self.avoided_until, self.source.last, self.seconds, self.chance

    def came(self, taken: float) -> None:
        self.failures, self.reason = 0, ""
        self.seconds = FORGETS * self.seconds + (1 - FORGETS) * taken if self.seconds else taken

    def failed(self, reason: str, now: float) -> None:
        self.reason = reason[:200]
        self.failures += 1
        self.avoided_until = now + pause_after(self.failures, AVOIDED_SECONDS, MOST_AVOIDED_SECONDS)


class Mirrors:
    """The mirrors of a run, from which blocks come. There may be other sources later: `sources` is asked each time."""

    def __init__(
        self,
        sources: Callable[[], Awaitable[Sequence[BlockSource]]],
        emit: Listener,
        patience: float = NO_BLOCK_SECONDS,
    ) -> None:
        self.sources, self.emit, self.patience = sources, emit, patience
        self._standings: dict[str, SourceRecord] = {}
        self._came = self._said = 0.0

    async def fetch(self, block: Block) -> bytes:
        """Fetch a block. Returns its bytes, checked.

        Raises:
            UnreachableError: for `patience` seconds nobody has given any block, and the message has all reasons; or
                there is nobody to ask.
        """
        clock = asyncio.get_running_loop().time
        started, turns = clock(), 0
        while True:
            sources = {source.name: source for source in await self.sources()}
            records, now = self._standings, clock()
            self._standings = {name: records.get(name) or SourceRecord(source) for name, source in sources.items()}
            for standing in sorted(self._standings.values(), key=lambda record: record.promise(now)):
                asked_at = clock()
                try:
                    data = await standing.source.fetch(block)
                    check_block(block, data)
                except HetpeerError as error:
                    if not standing.failures:
                        self.emit(Progress(f"mirror {standing.source.name}: {block}: {error}; asking another"))
                    standing.failed(str(error), clock())
                else:
                    self._came = clock()
                    standing.came(self._came - asked_at)
                    return data
            if not self._standings:
                raise UnreachableError(f"{block} of the run's text is not on this machine, and the run has no mirrors")
            reasons = "; ".join(f"{name}: {record.reason}" for name, record in self._standings.items())
            turns += 1
            pause = pause_after(turns, FIRST_PAUSE_SECONDS, MOST_PAUSE_SECONDS)
            if clock() + pause > max(started, self._came) + self.patience:
                raise UnreachableError(f"no mirror gives {block} of the run's text: {reasons}")
            if clock() >= self._said:  # once for all blocks that wait
                self._said = clock() + MOST_PAUSE_SECONDS
                what = f"no mirror gives {block} of the run's text; trying again in {pause:.0f} s ({reasons})"
                self.emit(Progress(what))
            await asyncio.sleep(pause)
