"""`hetpeer lab`: a run in one process."""

import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch

from bootstrap.genesis import create_run
from peer.compute.machine import DeviceName, cores, find_device
from peer.lab.run import Lab
from peer.process import Listeners, Terminal, told
from peer.telemetry.events import Progress
from peer.telemetry.report import Report
from protocol import manifest as manifests


@dataclass(frozen=True, slots=True)
class LabOptions:
    """What the command line said. 0 threads are all cores."""

    run_toml: Path
    report: Path | None
    data: Path | None
    directory: Path | None
    device: DeviceName
    threads: int
    weights: Path | None = None


def lab(options: LabOptions, terminal: Terminal) -> int:
    """All rounds, and the report; the exit code."""

    def work() -> int:
        torch.set_num_threads(options.threads or cores())
        manifest = manifests.load(options.run_toml)
        report = Report(manifest)
        with tempfile.TemporaryDirectory(prefix="hetpeer-lab-") as temporary:
            folder = options.directory or Path(temporary)
            folder.mkdir(parents=True, exist_ok=True)
            descriptor = create_run(
                manifest, folder, options.data, lambda doing: terminal.emit(Progress(doing)), options.weights
            )
            swarm = Lab.open(descriptor, folder, find_device(options.device))
            swarm.run(Listeners([terminal.emit, report.listener("lab")]))
        if options.report is not None:
            report.write(options.report)
        return 0

    return told(terminal.emit, work)
