"""`hetpeer plan`: what a run would be like, before anybody joins. A few lines, as in `peer/cli/__main__.py`."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from peer.cli.options import terminal


def plan(
    run_toml: Annotated[
        Path | None, typer.Argument(metavar="RUN.toml", help="The run's manifest. Default: a preset's model.")
    ] = None,
    model: Annotated[str, typer.Option(help="Without a manifest: the preset, in 4 stages.")] = "512m",
    up: Annotated[float, typer.Option(metavar="MBIT/S", help="The volunteer's upload, Mb/s.")] = 20.0,
    down: Annotated[float, typer.Option(metavar="MBIT/S", help="Its download, Mb/s.")] = 100.0,
    latency: Annotated[float, typer.Option(metavar="MS", help="To its neighbours, one way, ms.")] = 20.0,
    teraflops: Annotated[
        float, typer.Option(help="What its device really does: some 40 % of what its data sheet says.")
    ] = 30.0,
    overlap: Annotated[bool, typer.Option("--overlap", help="As if the manifest had outer.overlap.")] = False,
    figure2: Annotated[
        Path | None, typer.Option(metavar="FILE.png", help="Draw the paper's Figures 2 and 3 by this model instead.")
    ] = None,
    measured: Annotated[
        Path | None,
        typer.Option(metavar="FILE.json", help="With --figure2: what benchmarks/utilization.py --json printed."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON, one object a line.")] = False,
) -> None:
    """Compute what a round would take on a link and a device, for each k, and what it would wait for."""
    from peer.cli.commands.plan import PlanOptions
    from peer.cli.commands.plan import plan as run

    options = PlanOptions(run_toml, model, up, down, latency, teraflops, overlap, figure2, measured)
    sys.exit(run(options, terminal(json)))
