"""`hetpeer lab`: a run in one process."""

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from peer.cli.options import DeviceOption, JsonOption, TextOption, ThreadsOption, TrackOption, WeightsOption, terminal


class RunByDefault(TyperGroup):
    """`hetpeer lab run.toml` is `hetpeer lab run run.toml`."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        named = bool(args) and args[0] in self.commands
        return super().resolve_command(ctx, args if named else ["run", *args])


lab = typer.Typer(
    cls=RunByDefault,
    help="The same run in one process, with no network: the reference for the swarm.",
    no_args_is_help=True,
    epilog="Examples:\n\n  hetpeer lab run.toml\n\n  hetpeer lab run run.toml --report lab.json\n\n"
    "Without a command's name, `run` is meant.",
)


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
    track: TrackOption = None,
    json: JsonOption = False,
) -> None:
    """One run, bit for bit as a swarm would train it."""
    import tempfile

    import torch

    from bootstrap.genesis import create_run
    from peer.compute.capacity import cores, find_device
    from peer.lab.reference_run import Lab
    from peer.process import exit_code_of
    from peer.telemetry.run_report import Report
    from peer.telemetry.trackers import RoundsOfOne, TrackedRun, library_of, tracked_by
    from protocol import manifest as manifests
    from protocol.events.activity import Progress

    shown = terminal(json)

    def work() -> int:
        torch.set_num_threads(threads or cores())
        if track:
            library_of(track)
        manifest = manifests.load_manifest(run_toml)
        noted = Report(manifest)
        shown.emit.status.rounds, shown.emit.status.inner_steps = manifest.outer.rounds, manifest.inner.steps
        with tempfile.TemporaryDirectory(prefix="hetpeer-lab-") as temporary:
            folder = directory or Path(temporary)
            folder.mkdir(parents=True, exist_ok=True)
            descriptor = create_run(manifest, folder, data, lambda doing: shown.emit(Progress(doing)), weights)
            swarm = Lab.open(descriptor, folder, find_device(device))
            with shown.emit.also(noted.listener("lab")), ExitStack() as tracked:
                if track:
                    files = report.parent if report is not None else Path()
                    run = TrackedRun(manifest.run.name, f"lab-{descriptor.run_id[:12]}", manifest.model_dump(), files)
                    tracker = tracked.enter_context(tracked_by(track, run))
                    tracked.enter_context(shown.emit.also(RoundsOfOne(tracker).take))
                swarm.run(shown.emit)
        if report is not None:
            where = noted.write(report)
            if not json:  # a program named the file itself, and reads Finished as the last event
                shown.emit(Progress(where))
        return 0

    sys.exit(exit_code_of(shown.emit, work))
