"""`hetpeer export`, `sample` and `import`: models out of runs, and into them. A few lines a command, as in
`peer/cli.py`."""

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from peer.cli_lab import JsonOption, terminal

ThreadsOption = Annotated[int, typer.Option(min=0, help="CPU cores for one operation; 0 takes all.")]


def export(
    source: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE…",
            help="The run's ticket, to take the model from the swarm; or the folder of a datacenter, an observer or a "
            "bootstrap node that evaluates; or of volunteers, of every stage one, and of the bootstrap node.",
        ),
    ],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where the model goes; made if it is missing.")],
    format: Annotated[Literal["hf"], typer.Option(help="hf: what transformers loads, in safetensors.")] = "hf",
    round: Annotated[
        int | None, typer.Option(min=0, help="The model after this round, if it is kept. Default: the last one.")
    ] = None,
    evaluate: Annotated[
        bool, typer.Option("--evaluate", help="Measure the held-out loss, on the CPU, and note it in the model card.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace the model in DIR.")] = False,
    threads: ThreadsOption = 0,
    json: JsonOption = False,
) -> None:
    """Write a run's model, all its stages after one round, as a folder that transformers loads."""
    from peer.commands.export import ExportOptions
    from peer.commands.export import export as run

    sys.exit(run(ExportOptions(source, out, round, evaluate, force, threads), terminal(json)))
