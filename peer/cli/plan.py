"""`hetpeer plan`: what a run would be like on a link and a device, before anybody joins."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from peer.cli.options import RowsOption, takes, terminal
from protocol.errors import UserError

if TYPE_CHECKING:
    from peer.process import Terminal

PLAN_EXAMPLES = (
    "Examples:\n\n  hetpeer plan run.toml --up 20 --down 100 --teraflops 30\n\n"
    "  hetpeer plan --model 1b --up 100 --down 100\n\n  hetpeer plan --figure2 figures.png"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """The options of `hetpeer plan`."""

    run_toml: Annotated[
        Path | None, typer.Argument(metavar="RUN.toml", help="The run's manifest. Default: a preset's model.")
    ] = None
    model: Annotated[str, typer.Option(help="Without a manifest: the preset, in 4 stages.")] = "512m"
    up: Annotated[float, typer.Option(metavar="MBIT/S", help="The volunteer's upload, Mb/s.")] = 20.0
    down: Annotated[float, typer.Option(metavar="MBIT/S", help="Its download, Mb/s.")] = 100.0
    latency: Annotated[float, typer.Option(metavar="MS", help="To its neighbours, one way, ms.")] = 20.0
    teraflops: Annotated[
        float, typer.Option(help="What its device really does: some 40 % of what its data sheet says.")
    ] = 30.0
    overlap: Annotated[bool, typer.Option("--overlap", help="As if the manifest had outer.overlap.")] = False
    figure2: Annotated[
        Path | None, typer.Option(metavar="FILE.png", help="Draw the paper's Figures 2 and 3 by this model instead.")
    ] = None
    measured: Annotated[
        Path | None,
        typer.Option(metavar="FILE.json", help="With --figure2: what benchmarks/utilization.py --json printed."),
    ] = None
    json: RowsOption = False


@takes(PlanOptions)
def plan(options: PlanOptions) -> None:
    """Compute what a round would take on a link and a device, for each k, and what it would wait for."""
    sys.exit(show_plan(options, terminal(options.json)))


def show_plan(options: PlanOptions, terminal: "Terminal") -> int:
    """Show the plan of a run, or draw the paper's figures; the exit code."""
    from peer.cli.plan_table import SHOWN, compression_of, drawn, rows
    from peer.cli.tables import show
    from peer.planning.model import HEADERS, Volunteer, round_of, work_of
    from peer.process import told
    from peer.telemetry.events import Progress
    from protocol import manifest as manifests

    def work() -> int:
        if options.figure2 is not None:
            from peer.planning.paper_figures import draw, read_measured

            draw(options.figure2, read_measured(options.measured) if options.measured else ())
            terminal.emit(Progress(f"wrote {options.figure2}"))
            return 0
        if min(options.up, options.down, options.teraflops) <= 0 or options.latency < 0:
            raise UserError("--up, --down and --teraflops must be more than 0, and --latency not less")
        if options.run_toml is not None:
            manifest = manifests.load_manifest(options.run_toml)
        else:
            manifest = manifests.check_manifest({"model": {"preset": options.model}, "replicas": {"stages": 4}})
        up, down = options.up * 1e6, options.down * 1e6
        on = Volunteer(options.teraflops * 1e12, up, down, options.latency / 1e3, HEADERS)
        overlap = options.overlap or manifest.outer.overlap
        planned = {
            compression: round_of(work_of(manifest, compression), on, overlap)
            for compression in sorted({*SHOWN, compression_of(manifest, on)})
            if manifest.model.d % compression == 0
        }
        show(terminal, rows(planned), drawn(manifest, on, planned, overlap))
        return 0

    return told(terminal.emit, work)
