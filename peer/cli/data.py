"""`hetpeer data`: text of anybody's, made ready for a run. A few lines a command, as in `peer/cli/__main__.py`."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from peer.cli.options import JsonOption, terminal

data_commands = typer.Typer(
    help="Your own text: prepare it for a run, look at it, check it.",
    no_args_is_help=True,
    epilog="Examples:\n\n  hetpeer data prepare ~/texts --out ~/prepared --train-tokenizer 32000\n\n"
    "  hetpeer data verify ~/prepared",
)

RowsOption = Annotated[bool, typer.Option("--json", help="Print JSON, one object a line.")]


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
    from peer.cli.commands.data import PrepareRequest
    from peer.cli.commands.data import prepare as run

    wanted = PrepareRequest(sources, tokenizer, train_tokenizer, field, held_out, seed, end_of_text, mirror or ())
    sys.exit(run(wanted, out, terminal(json)))


@data_commands.command(epilog="Examples:\n\n  hetpeer data show ~/prepared\n\n  hetpeer data show ~/prepared --json")
def show(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A prepared folder.")], json: RowsOption = False
) -> None:
    """Tell what a prepared folder holds."""
    from peer.cli.commands.data import show as run

    sys.exit(run(folder, terminal(json)))


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
    from peer.cli.commands.data import verify as run

    sys.exit(run(place, blocks, terminal(json)))
