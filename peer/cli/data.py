"""`hetpeer data`: text of anybody's, prepared for a run, shown and checked."""

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from peer.cli.options import JsonOption, RowsOption, terminal
from protocol.errors import FormatError, ResourceError, UserError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from peer.cli.tables import TableRow
    from peer.process import Terminal
    from protocol.run.dataset import Dataset

data_commands = typer.Typer(
    help="Your own text: prepare it for a run, look at it, check it.",
    no_args_is_help=True,
    epilog="Examples:\n\n  hetpeer data prepare ~/texts --out ~/prepared --train-tokenizer 32000\n\n"
    "  hetpeer data verify ~/prepared",
)

DIGESTS_BYTES = 2**28
"""The largest size of the file of digests: those of the blocks of two million million tokens."""


@data_commands.command(
    epilog="Examples:\n\n  hetpeer data prepare ~/texts --out ~/prepared --train-tokenizer 32000\n\n"
    "  hetpeer data prepare a.jsonl b.jsonl.gz --field content --tokenizer tokenizer.json --out ~/prepared\n\n"
    "  hetpeer data prepare hf:HuggingFaceFW/fineweb-edu:sample-10BT --tokenizer tokenizer.json --out ~/prepared\n\n"
    "The folder is there when all is done, or not at all. docs/guide.md goes through it word by word."
)
def prepare(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE...",
            help="Files or folders of text (.txt, .md), JSON lines (.jsonl) or Parquet, .gz too; or a dataset of the "
            "Hugging Face hub, hf:NAME[:CONFIG[:SPLIT]].",
        ),
    ],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where it goes: a new or empty folder.")],
    tokenizer: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A tokenizer.json, as Hugging Face's models have one.")
    ] = None,
    train_tokenizer: Annotated[
        int | None, typer.Option(metavar="VOCAB", help="Train one on this text instead, of so many tokens.")
    ] = None,
    field: Annotated[
        str, typer.Option(help="The field or column with the text, of JSON lines, Parquet and hf:.")
    ] = "text",
    held_out: Annotated[
        float, typer.Option(min=0.0001, max=0.5, help="Share of the documents that is never trained on.")
    ] = 0.02,
    skip_bad: Annotated[
        str,
        typer.Option(
            metavar="SHARE%",
            help="Leave out at most this share of records that cannot be used (no text, no UTF-8, no JSON), and list "
            "them in skipped.txt.",
        ),
    ] = "0.1%",
    seed: Annotated[int, typer.Option(min=0, help="Of the order in which the documents come.")] = 1,
    end_of_text: Annotated[
        str | None, typer.Option(metavar="TOKEN", help="The tokenizer's token that ends a text. Default: a usual one.")
    ] = None,
    mirror: Annotated[
        list[str] | None, typer.Option(metavar="URL", help="Where a copy of DIR will be; once for each mirror.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Tokenize and shuffle text into a folder of shards that a run trains on, and mirrors serve."""
    from bootstrap.data.prepare import PrepareRequest, prepare_text
    from peer.process import exit_code_of
    from protocol.events.activity import Progress
    from protocol.run.prepared import open_folder

    shown = terminal(json)

    def work() -> int:
        wanted = PrepareRequest(
            sources=sources,
            tokenizer=tokenizer,
            train_tokenizer=train_tokenizer,
            field=field,
            held_out=held_out,
            most_bad=_share("--skip-bad", skip_bad),
            seed=seed,
            end_of_text=end_of_text,
            mirrors=mirror or (),
        )
        prepare_text(wanted, out, lambda doing, done, total: shown.emit(Progress(doing, done, total)))
        shown.emit(Progress(f"the prepared text is in {out}: give it with --data"))
        if not shown.json:
            _show(open_folder(out), shown)
        return 0

    sys.exit(exit_code_of(shown.emit, work))


def _share(option: str, text: str) -> float:
    """The share that a user gives as a percentage.

    Raises:
        UserError: it is none.
    """
    try:
        share = float(text.removesuffix("%")) / 100
    except ValueError:
        share = -1.0
    if not (text.endswith("%") and 0 <= share <= 1):
        raise UserError(f"{option} {text}: give a share of 0% to 100%, such as 0.1%")
    return share


@data_commands.command(epilog="Examples:\n\n  hetpeer data show ~/prepared\n\n  hetpeer data show ~/prepared --json")
def show(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A prepared folder.")], json: RowsOption = False
) -> None:
    """Tell what a prepared folder holds."""
    from peer.process import exit_code_of
    from protocol.run.prepared import open_folder

    shown = terminal(json)

    def work() -> int:
        with _ours():
            _show(open_folder(folder), shown)
        return 0

    sys.exit(exit_code_of(shown.emit, work))


@data_commands.command(
    epilog="Examples:\n\n  hetpeer data verify ~/prepared\n\n  hetpeer data verify https://data.example.org/prepared\n\n"
    "  hetpeer data verify https://data.example.org/prepared --blocks 20"
)
def verify(
    place: Annotated[str, typer.Argument(metavar="DIR|URL", help="A prepared folder, or a mirror of one.")],
    blocks: Annotated[
        int, typer.Option(min=0, help="Of a mirror: fetch so many blocks, drawn at random; 0 fetches all.")
    ] = 0,
    json: RowsOption = False,
) -> None:
    """Check every hash and every token of a prepared folder, or that a mirror serves it as peers will ask for it."""
    from peer.process import exit_code_of, run_query
    from protocol.run.dataset import checked_mirror

    shown = terminal(json)

    def work() -> int:
        if not place.startswith(("http://", "https://")):
            with _ours():
                checked = _verify_folder(Path(place), shown)
            _tell_good(place, checked, checked, shown)
            return 0
        try:
            url = checked_mirror(place)
        except ValueError as error:
            raise UserError(str(error)) from None
        run_query(lambda: _verify_mirror(url, blocks, shown), shown)
        return 0

    sys.exit(exit_code_of(shown.emit, work))


@contextmanager
def _ours() -> Iterator[None]:
    """Raise as ResourceError what is wrong with a folder on this machine: it is no other peer's fault."""
    try:
        yield
    except FormatError as error:
        raise ResourceError(str(error)) from None


def _show(dataset: "Dataset", terminal: "Terminal") -> None:
    from peer.cli.tables import print_table as tell

    tell(terminal, _rows(dataset), _drawn(dataset))


def _rows(dataset: "Dataset") -> Iterable["TableRow"]:
    """The folder for a program: a row for the whole, one for each shard."""
    shards = {"shards", "held_out"}
    whole = dataset.manifest.model_dump(mode="json", exclude=shards)
    yield whole | {"train_tokens": dataset.train.tokens, "held_out_tokens": dataset.held_out.tokens}
    for stream, name in ((dataset.train, "train"), (dataset.held_out, "held_out")):
        for shard in stream.shards:
            yield {"shard": shard.name, "of": name, "tokens": shard.tokens, "sha256": shard.sha256}


def _drawn(dataset: "Dataset") -> "RenderableType":
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from protocol.wording import size

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


def _tell_good(place: str, checked: int, blocks: int, terminal: "Terminal") -> None:
    from peer.cli.tables import print_table as tell

    words = f"{place}: {'all' if checked == blocks else f'{checked} of'} {blocks} blocks are as they were prepared"
    tell(terminal, [{"place": place, "blocks": blocks, "checked": checked}], words)


def _verify_folder(folder: Path, terminal: "Terminal") -> int:
    """Every file by its hash, every block by its digest, every token. Returns how many blocks there are.

    Raises:
        FormatError, ResourceError: something is not as it was prepared; the message names it.
    """
    from bootstrap.data.shards import measure
    from protocol.events.activity import Progress
    from protocol.run.dataset import DIGEST_BYTES
    from protocol.run.prepared import check_tokenizer, open_folder, read_block

    dataset = open_folder(folder)
    manifest, digests, wrong = dataset.manifest, b"", ""
    check_tokenizer(folder, dataset)
    for shard in (*manifest.shards, manifest.held_out):
        terminal.emit(Progress(f"checking {shard.name}"))
        path = folder / shard.name
        measured = measure(path, manifest.token_dtype, manifest.header_bytes, manifest.block_tokens)
        if measured.shard.tokens != shard.tokens:
            raise FormatError(f"{path} has {measured.shard.tokens:,} tokens, where {shard.tokens:,} were prepared")
        digests += measured.digests
        wrong = wrong or ("" if measured.shard == shard else f"{path} has another SHA-256 than was prepared")
    for number in range(dataset.blocks):
        block = dataset.block(number)
        if digests[DIGEST_BYTES * number : DIGEST_BYTES * (number + 1)] != block.sha256:
            raise FormatError(f"{folder / block.shard}: {block} has other bytes than were prepared (SHA-256)")
        dataset.tokens_of(block, read_block(folder, block))
    if wrong:  # outside the blocks
        raise FormatError(wrong)
    return dataset.blocks


async def _verify_mirror(url: str, blocks: int, terminal: "Terminal") -> None:
    """Fetch blocks and check them, as peers do it.

    Raises:
        FormatError, RefusedError, UnreachableError: this is no mirror of prepared text; the message says why.
    """
    import asyncio
    import random

    from peer.network.mirrors import HttpMirror, fetch_whole
    from peer.network.web import Client
    from peer.store.blocks import BLOCK_FETCHES
    from protocol.events.activity import Progress
    from protocol.net.bandwidth import Bandwidth
    from protocol.run.dataset import BLOCKS, DATA, MANIFEST_BYTES, Dataset, check_block, parse_data_manifest

    async with Client(allowed=lambda ip: True) as client:  # who runs this has named the mirror
        manifest = parse_data_manifest(await fetch_whole(client, f"{url}/{DATA}", MANIFEST_BYTES))
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
            for _ in range(BLOCK_FETCHES):
                tasks.create_task(check())
    _tell_good(url, len(numbers), dataset.blocks, terminal)
