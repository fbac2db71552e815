"""`hetpeer data`: prepare text, show it, check it."""

import asyncio
import random
from collections.abc import Coroutine, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from bootstrap.data.prepare import PrepareRequest
from bootstrap.data.prepare import prepare as prepare_text
from bootstrap.data.shards import measure
from peer.cli.tables import TableRow
from peer.cli.tables import show as tell
from peer.network.mirrors import HttpMirror, fetch_whole
from peer.network.web import Client
from peer.process import Terminal, run, told
from peer.store.blocks import FETCHES
from peer.telemetry.events import Progress
from peer.telemetry.sentences import size
from protocol.errors import FormatError, ResourceError, UserError
from protocol.net.bandwidth import Bandwidth
from protocol.run.dataset import BLOCKS, DATA, DIGEST_BYTES, MANIFEST_BYTES, Dataset, check_block, checked_mirror, parse
from protocol.run.prepared import check_tokenizer, open_folder, read_block

__all__ = ["PrepareRequest", "prepare", "show", "verify"]

DIGESTS_BYTES = 2**28
"""Of blocks of two million million tokens."""


def prepare(wanted: PrepareRequest, out: Path, terminal: Terminal) -> int:
    """Make the folder, and show what is in it; the exit code."""

    def work() -> int:
        prepare_text(wanted, out, lambda doing, done, total: terminal.emit(Progress(doing, done, total)))
        terminal.emit(Progress(f"the prepared text is in {out}: give it with --data"))
        if not terminal.json:
            _show(open_folder(out), terminal)
        return 0

    return told(terminal.emit, work)


def show(folder: Path, terminal: Terminal) -> int:
    """What a prepared folder holds; the exit code."""

    def work() -> int:
        with _ours():
            _show(open_folder(folder), terminal)
        return 0

    return told(terminal.emit, work)


@contextmanager
def _ours() -> Iterator[None]:
    """What is wrong with a folder on this machine is no other peer's fault."""
    try:
        yield
    except FormatError as error:
        raise ResourceError(str(error)) from None


def _show(dataset: Dataset, terminal: Terminal) -> None:
    tell(terminal, _rows(dataset), _drawn(dataset))


def _rows(dataset: Dataset) -> Iterable[TableRow]:
    """One for the whole, one for each shard."""
    shards = {"shards", "held_out"}
    whole = dataset.manifest.model_dump(mode="json", exclude=shards)
    yield whole | {"train_tokens": dataset.train.tokens, "held_out_tokens": dataset.held_out.tokens}
    for stream, name in ((dataset.train, "train"), (dataset.held_out, "held_out")):
        for shard in stream.shards:
            yield {"shard": shard.name, "of": name, "tokens": shard.tokens, "sha256": shard.sha256}


def _drawn(dataset: Dataset) -> RenderableType:
    manifest, item = dataset.manifest, dataset.manifest.token_dtype.itemsize
    lines = (
        f"{dataset.train.tokens:,} tokens of {manifest.documents:,} documents to train on, "
        f"{dataset.held_out.tokens:,} of {manifest.held_out_documents:,} held out",
        f"a vocabulary of {manifest.vocabulary:,} (tokenizer {manifest.tokenizer[:12]}), {manifest.dtype}; "
        f"token {manifest.end_of_text} ends a text",
        f"{dataset.blocks:,} blocks of {manifest.block_tokens:,} tokens ({size(manifest.block_tokens * item)})",
        *(f"mirror {url}" for url in manifest.mirrors),
    )
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("shard", "tokens", "size", "sha256"):
        table.add_column(name, justify="left" if name in ("shard", "sha256") else "right")
    for shard in (*manifest.shards, manifest.held_out):
        bytes_ = size(manifest.header_bytes + shard.tokens * item)
        table.add_row(shard.name, f"{shard.tokens:,}", bytes_, shard.sha256[:16])
    return Group(*map(Text, lines), "", table)


def verify(place: str, blocks: int, terminal: Terminal) -> int:
    """Check a folder, or a mirror; the exit code. `blocks` of a mirror (0: all)."""

    def work() -> int:
        if not place.startswith(("http://", "https://")):
            with _ours():
                checked = _verify_folder(Path(place), terminal)
            _tell_good(place, checked, checked, terminal)
            return 0
        try:
            url = checked_mirror(place)
        except ValueError as error:
            raise UserError(str(error)) from None
        return run(lambda stop: _unless_stopped(stop, _verify_mirror(url, blocks, terminal)), terminal)

    return told(terminal.emit, work)


def _tell_good(place: str, checked: int, blocks: int, terminal: Terminal) -> None:
    words = f"{place}: {'all' if checked == blocks else f'{checked} of'} {blocks} blocks are as they were prepared"
    tell(terminal, [{"place": place, "blocks": blocks, "checked": checked}], words)


def _verify_folder(folder: Path, terminal: Terminal) -> int:
    """Every file by its hash, every block by its digest, every token. Returns how many blocks there are.

    Raises:
        FormatError, ResourceError: something is not as it was prepared; the message names it.
    """
    dataset = open_folder(folder)
    manifest, digests, wrong = dataset.manifest, b"", ""
    check_tokenizer(folder, dataset)
    for shard in (*manifest.shards, manifest.held_out):
        terminal.emit(Progress(f"checking {shard.name}"))
        path = folder / shard.name
        found = measure(path, manifest.token_dtype, manifest.header_bytes, manifest.block_tokens)
        if found.shard.tokens != shard.tokens:
            raise FormatError(f"{path} has {found.shard.tokens:,} tokens, where {shard.tokens:,} were prepared")
        digests += found.digests
        wrong = wrong or ("" if found.shard == shard else f"{path} has another SHA-256 than was prepared")
    for number in range(dataset.blocks):
        block = dataset.block(number)
        if digests[DIGEST_BYTES * number : DIGEST_BYTES * (number + 1)] != block.sha256:
            raise FormatError(f"{folder / block.shard}: {block} has other bytes than were prepared (SHA-256)")
        dataset.tokens_of(block, read_block(folder, block))
    if wrong:  # outside the blocks
        raise FormatError(wrong)
    return dataset.blocks


async def _unless_stopped(stop: asyncio.Event, work: Coroutine[Any, Any, None]) -> None:
    """Carry out `work`; Ctrl-C ends it."""
    working, stopping = asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            await working
    finally:
        working.cancel()
        stopping.cancel()


async def _verify_mirror(url: str, blocks: int, terminal: Terminal) -> None:
    """Fetch blocks and check them, as peers do it.

    Raises:
        FormatError, RefusedError, UnreachableError: this is no mirror of prepared text; the message says why.
    """
    async with Client(allowed=lambda ip: True) as client:  # who runs this has named the mirror
        manifest = parse(await fetch_whole(client, f"{url}/{DATA}", MANIFEST_BYTES))
        dataset = Dataset.of(manifest, await fetch_whole(client, f"{url}/{BLOCKS}", DIGESTS_BYTES))
        numbers = list(range(dataset.blocks))
        if blocks:
            numbers = random.sample(numbers, min(blocks, len(numbers)))
        mirror, waiting, done = HttpMirror(url, client, Bandwidth()), iter(numbers), 0

        async def check() -> None:
            nonlocal done
            for number in waiting:
                block = dataset.block(number)
                data = await mirror.fetch(block)
                check_block(block, data)
                await asyncio.to_thread(dataset.tokens_of, block, data)
                done += 1
                terminal.emit(Progress("checking blocks", done * block.size, len(numbers) * block.size))

        async with asyncio.TaskGroup() as tasks:
            for _ in range(FETCHES):
                tasks.create_task(check())
    _tell_good(url, len(numbers), dataset.blocks, terminal)
