"""One run of a sweep, in a process of its own."""

import signal
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from examples.experiments.experiment import Case
from examples.experiments.results import Point, Record
from examples.experiments.saved import load_lab, save_lab
from examples.experiments.stacked import hasten
from peer.lab.reference_run import Lab
from protocol.codec.frames import Payload
from protocol.errors import HetpeerError
from protocol.events.activity import Evaluated, RoundDone, StepDone
from protocol.events.event import Event
from protocol.layout import operations_per_token
from protocol.manifest import Manifest, check_manifest
from protocol.run.run_files import Descriptor

STATE = "state.safetensors"

PEAK_SIZE = {"cpu": 1024, "cuda": 8192, "mps": 2048}
PEAK_TRIES = 8


@dataclass(frozen=True, slots=True)
class Started:
    """A run goes on after this many rounds."""

    case: str
    done: int


@dataclass(frozen=True, slots=True)
class Advanced:
    """A run has ended a round; `loss` is the mean over its inner steps."""

    case: str
    done: int
    loss: float
    tokens_per_second: float


@dataclass(frozen=True, slots=True)
class Ended:
    """A run is over: its record, or why there is none."""

    case: str
    record: Record | None
    failure: str = ""


WorkerMessage = Started | Advanced | Ended


@dataclass(frozen=True, slots=True)
class Setting:
    """What is the same for all runs of a sweep on this machine. `files` are by the digest of what `run_files` says."""

    folder: Path
    files: Mapping[str, Descriptor]
    device: str
    threads: int
    save_seconds: float


def run_files(manifest: Manifest) -> Manifest:
    """The manifest of the files that a run needs: equal for all runs of one model, seed and share of held-out text.

    The width of the basis is the model's; the layers of the stages say how the weights are cut into files, and these
    have the n-gram tables.
    """
    replicas = manifest.replicas
    cut = {"layers": replicas.layers, "ngrams": replicas.ngrams, "ngram_width": replicas.ngram_width}
    return check_manifest(
        {
            "run": manifest.run.model_dump(),
            "model": manifest.model.model_dump(),
            "replicas": cut | {"compression": 1},
            "evaluation": {"held_out": manifest.evaluation.held_out},
        }
    )


def files_folder(folder: Path, manifest: Manifest) -> Path:
    """The folder of the files that `run_files` says."""
    return folder / "files" / run_files(manifest).digest[:16]


def state_folder(folder: Path, case: Case) -> Path:
    """Where a run that has not ended keeps what it goes on from."""
    return folder / "runs" / case.id


def work(case: Case, setting: Setting, messages: Connection) -> None:
    """Run a case from where it was left to its end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the sweep itself ends its processes
    try:
        messages.send(Ended(case.id, _run(case, setting, messages)))
    except HetpeerError as error:
        messages.send(Ended(case.id, None, str(error)))


def _run(case: Case, setting: Setting, messages: Connection) -> Record:
    torch.set_num_threads(setting.threads)
    manifest, device = case.manifest, torch.device(setting.device)
    descriptor = replace(setting.files[run_files(manifest).digest], manifest=manifest)
    files = files_folder(setting.folder, manifest)
    lab = Lab.open(descriptor, files, device, case.switches)
    if device.type == "cuda":
        hasten(lab)
    path = state_folder(setting.folder, case) / STATE
    saved: dict[str, Any] = load_lab(lab, path) if path.exists() else {"curve": [], "seconds": 0.0}
    curve = [Point(**point) for point in saved["curve"]]
    messages.send(Started(case.id, lab.done))
    started = last_saved = time.monotonic()
    losses: list[float] = []

    def seconds() -> float:
        return float(saved["seconds"]) + time.monotonic() - started

    def hear(event: Event) -> None:
        match event:
            case StepDone(loss=float() as loss):
                losses.append(loss)
            case RoundDone():
                messages.send(Advanced(case.id, event.round, sum(losses) / len(losses), event.tokens / event.seconds))
                losses.clear()
            case Evaluated():
                tokens = event.round * manifest.tokens_per_step * manifest.inner.steps * manifest.replicas.total
                curve.append(Point(tokens, event.loss, event.loss_plain))
            case _:
                pass

    for round in range(lab.done + 1, manifest.outer.rounds + 1):
        lab.round(round, hear, round % case.evaluate_every == 0 or round == manifest.outer.rounds)
        if time.monotonic() - last_saved >= setting.save_seconds and round < manifest.outer.rounds:
            path.parent.mkdir(parents=True, exist_ok=True)
            save_lab(lab, path, {"curve": [asdict(point) for point in curve], "seconds": seconds()})
            last_saved = time.monotonic()
    speed = curve[-1].tokens / seconds()
    return Record(
        id=case.id,
        axes=case.axes,
        seed=case.seed,
        replicas=manifest.replicas.total,
        groups=manifest.replicas.groups,
        curve=curve,
        boundary_bytes=boundary_bytes(lab),
        outer_bytes=lab.method.sent_bytes / manifest.outer.rounds / manifest.replicas.total,
        seconds=seconds(),
        tokens_per_second=speed,
        peak=speed * operations_per_token(manifest) / peak_operations(device, dtype_of(case)),
        manifest=manifest.model_dump(mode="json"),
        switches=case.switches.model_dump(mode="json"),
    )


def dtype_of(case: Case) -> torch.dtype:
    """The number format in which a case's matrices are multiplied."""
    return torch.bfloat16 if case.switches.precision == "bf16" else torch.float32


def boundary_bytes(lab: Lab) -> float:
    """Bytes that a compressed group's boundary takes for a token in one direction; 0 without groups."""
    replicas = lab.swarm.manifest.replicas
    if not replicas.groups:
        return 0.0
    return float(Payload(replicas.wire, 1, 1, lab.swarm.manifest.k).token_bytes)


def peak_operations(device: torch.device, dtype: torch.dtype) -> float:
    """Operations a second of a large square matrix product: the best of a few."""
    side = PEAK_SIZE.get(device.type, 1024)
    left, right = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
    best = float("inf")
    for _ in range(PEAK_TRIES):
        _wait(device)
        started = time.perf_counter()
        torch.mm(left, right)
        _wait(device)
        best = min(best, time.perf_counter() - started)
    return 2.0 * side**3 / best


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
