"""`hetpeer lab sweep`, `report` and `prepare`: experiments."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bootstrap.data.texts.collection import prepare as fetch
from bootstrap.data.texts.sources import Texts
from bootstrap.genesis import create_run
from peer.compute.machine import DeviceName, cores, find_device
from peer.lab import sweep as sweeps
from peer.lab.experiment import Case, Experiment, cases, load
from peer.lab.report import write_report
from peer.lab.sweep import SweepScreen
from peer.lab.worker import Ended, Setting, WorkerMessage, files_folder, run_files
from peer.process import INTERRUPTED, Terminal, told
from peer.telemetry.events import Progress
from protocol.run.run_files import Descriptor


@dataclass(frozen=True, slots=True)
class SweepOptions:
    """What the command line said. 0 jobs are as many as there are cores, or one for each other device."""

    experiment: Path
    scale: str
    out: Path
    data: Path | None
    jobs: int
    threads: int
    device: DeviceName
    save_minutes: float
    list_only: bool


def sweep(options: SweepOptions, terminal: Terminal) -> int:
    """Run what has no result yet, and report; the exit code."""

    def work() -> int:
        experiment = load(options.experiment, options.scale)
        asked = cases(experiment)
        if options.list_only:
            return _list(experiment, asked)
        device = find_device(options.device)
        jobs = options.jobs or (max(1, cores() // max(1, options.threads)) if device.type == "cpu" else 1)
        data = options.data and options.data.resolve()
        with sweeps.taken(options.out, data):
            waiting = sweeps.missing(options.out, asked)
            files = _prepare(waiting, options.out, data, lambda doing: terminal.emit(Progress(doing)))
            setting = Setting(options.out, files, str(device), options.threads, 60 * options.save_minutes)
            try:
                failures = _run(waiting, setting, jobs, terminal)
            except KeyboardInterrupt:
                terminal.emit(Progress(f"stopped; the same command goes on from what is in {options.out}"))
                return INTERRUPTED
        _report(experiment, asked, options.out, _name(options.experiment, options.scale), terminal)
        for failure in failures:
            terminal.emit(Progress(failure))
        return 1 if failures else 0

    return told(terminal.emit, work)


def _prepare(
    waiting: list[Case], folder: Path, data: Path | None, progress: Callable[[str], object]
) -> dict[str, Descriptor]:
    """Make what the runs share, once for each model and seed: tokens, tokenizer, basis, first weights."""
    needed = {manifest.digest: manifest for manifest in (run_files(case.manifest) for case in waiting)}
    return {
        digest: create_run(manifest, files_folder(folder, manifest), data, progress)
        for digest, manifest in needed.items()
    }


def _run(waiting: list[Case], setting: Setting, jobs: int, terminal: Terminal) -> list[str]:
    if terminal.json:
        return sweeps.sweep(waiting, setting, jobs, _print)
    with SweepScreen(waiting) as screen:
        return sweeps.sweep(waiting, setting, jobs, screen.hear)


def _print(message: WorkerMessage) -> None:
    kind = {"event": type(message).__name__}
    if isinstance(message, Ended):
        record = message.record and asdict(message.record)
        print(json.dumps(kind | {"case": message.case, "record": record, "failure": message.failure}), flush=True)
    else:
        print(json.dumps(kind | asdict(message)), flush=True)


def _list(experiment: Experiment, asked: list[Case]) -> int:
    table = Table("run", "replicas", "tokens", "steps", title=f"{experiment.title}: {len(asked)} runs")
    for case in asked:
        manifest = case.manifest
        steps = manifest.inner.steps * manifest.outer.rounds
        tokens = manifest.tokens_per_step * steps * manifest.replicas.total
        table.add_row(case.name, str(manifest.replicas.total), f"{tokens / 1e6:.2f} M", str(steps))
    Console().print(table)
    return 0


def report(experiment: Path, scale: str, out: Path, terminal: Terminal) -> int:
    """Draw tables and figures of what there is; the exit code."""

    def work() -> int:
        loaded = load(experiment, scale)
        _report(loaded, cases(loaded), out, _name(experiment, scale), terminal)
        return 0

    return told(terminal.emit, work)


def _name(experiment: Path, scale: str) -> str:
    """Of the folder, beside the results, with an experiment's report."""
    return f"{experiment.stem}-{scale}"


def _report(experiment: Experiment, asked: list[Case], out: Path, name: str, terminal: Terminal) -> None:
    for path in write_report(experiment, asked, out, out / name):
        terminal.emit(Progress(f"wrote {path}"))


def prepare(folder: Path, texts: Texts, terminal: Terminal) -> int:
    """Fetch real text; the exit code."""

    def work() -> int:
        fetch(folder, texts, lambda doing: terminal.emit(Progress(doing)))
        terminal.emit(Progress(f"the text is in {folder}: give it with --data"))
        return 0

    return told(terminal.emit, work)
