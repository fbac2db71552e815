"""Does a replica on several devices fit this run and this machine?"""

import sys
from collections.abc import Callable

import torch

from peer.compute.capacity import free_memory
from peer.planning.memory import PROCESS_BYTES, TRAINED_DEVICE_BYTES, MemoryName, microbatch_bytes, pass_bytes
from protocol.errors import ResourceError, UserError
from protocol.identity import EMBEDDING
from protocol.layout import elements, layer_layout, model_layout
from protocol.manifest import Manifest
from protocol.wording import size

TOGETHER_BYTES = 8
"""A value of what a worker has together at a time: weight and gradient."""

DAEMON_BYTES = 32
"""A value, at the daemon: grid and error feedback (8), moments of this round and the last one (16), weights (4), and
passing copies (4)."""

WORKER_BASE_BYTES = 400 * 2**20
"""Python and torch; on an accelerator, what its driver keeps for a process."""


def worker_bytes(manifest: Manifest, processes: int, recompute: bool = True) -> int:
    """Memory that one of so many workers takes where it computes, in bytes: an upper estimate.

    Together are at a time two layers, the embedding, the head, and a stage's n-gram tables. `recompute`: activations
    are computed again in the backward pass.
    """
    parts, model = model_layout(manifest), manifest.model
    together = 2 * elements(layer_layout(model, 0)) + 2 * elements(parts[EMBEDDING])
    together += manifest.ngrams.values(model.vocabulary)
    rows = sum(map(elements, parts.values())) // processes
    stages = range(manifest.replicas.stages)
    activations = sum(microbatch_bytes(manifest, stage, recompute) for stage in stages)
    activations += max(pass_bytes(manifest, stage, recompute) for stage in stages)
    share = min(manifest.inner.microbatch, manifest.inner.sequences // processes)
    return TRAINED_DEVICE_BYTES * rows + TOGETHER_BYTES * together + activations * share // manifest.inner.microbatch


def daemon_bytes(manifest: Manifest, process: int = PROCESS_BYTES) -> int:
    """Memory that the daemon of such a replica takes, in bytes: an upper estimate. `process`: without a model."""
    return DAEMON_BYTES * sum(map(elements, model_layout(manifest).values())) + process


def workers_recompute(
    manifest: Manifest,
    processes: int,
    device: torch.device,
    most: int | None = None,
    memory: MemoryName = "auto",
    machines: int = 1,
    process: int = PROCESS_BYTES,
) -> bool:
    """Whether so many workers on each of so many machines compute activations again in the backward pass: of `auto`,
    where they fit here, and into the `most` bytes they may use, only so."""
    if memory != "auto":
        return memory == "recompute"
    return not workers_fit(processes, device, most, False, machines, process)(manifest)


def workers_fit(
    processes: int, device: torch.device, most: int | None, recompute: bool, machines: int, process: int
) -> Callable[[Manifest], bool]:
    """Return the test whether a manifest fits so many workers on each of so many machines, for
    `peer.compute.fitting.manifest_on`."""

    def fits(manifest: Manifest) -> bool:
        try:
            _require_memory(manifest, processes, device, most, recompute, machines, process=process)
        except ResourceError:
            return False
        return True

    return fits


def require_devices(
    manifest: Manifest,
    processes: int,
    device: torch.device,
    most: int | None = None,
    memory: MemoryName = "auto",
    machines: int = 1,
    daemon: bool = True,
    process: int = PROCESS_BYTES,
) -> None:
    """Check before joining that so many processes can train this run here, and with the `most` bytes it may use. As
    many compute on each of so many machines; `daemon`: this one has the daemon, whose `process` takes so many bytes
    without a model.

    Raises:
        UserError: the run's sequences cannot be shared among them.
        ResourceError: there are too few devices, or too little memory.
    """
    option, sequences, ranks = f"--nproc {processes}", manifest.inner.sequences, processes * machines
    if machines > 1:
        option += f" --nnodes {machines}"
    if sequences % ranks:
        divisors = [number for number in range(1, sequences + 1) if sequences % number == 0]
        near = [
            max(divisor for divisor in divisors if divisor < ranks),
            *(divisor for divisor in divisors if divisor > ranks),
        ]
        raise UserError(
            f"{option}: an inner step of this run has {sequences} sequences, which {ranks} processes cannot share "
            f"evenly; take {' or '.join(map(str, near[:2]))}"
        )
    if device.type not in ("cpu", "cuda") or sys.platform == "win32":
        raise ResourceError(f"{option} works with cpu and cuda on Linux and macOS, not with {device} on {sys.platform}")
    if device.type == "cuda" and torch.cuda.device_count() < processes:
        raise ResourceError(
            f"{option}: each process takes a CUDA device, and PyTorch sees {torch.cuda.device_count()} here; take "
            "fewer, or --device cpu"
        )
    _require_memory(manifest, processes, device, most, memory != "keep", machines, daemon, process)


def _require_memory(
    manifest: Manifest,
    processes: int,
    device: torch.device,
    most: int | None,
    recompute: bool,
    machines: int = 1,
    daemon: bool = True,
    process: int = PROCESS_BYTES,
) -> None:
    per_process = worker_bytes(manifest, processes * machines, recompute) + WORKER_BASE_BYTES
    on_host = per_process if device.type == "cpu" else WORKER_BASE_BYTES
    total = daemon_bytes(manifest, process) * daemon + processes * on_host
    what = f"a replica in {processes} processes"
    if total > (free := free_memory(torch.device("cpu"))):
        raise ResourceError(f"not enough memory for {what}: it takes about {size(total)}, cpu has {size(free)} free")
    for number in range(processes if device.type == "cuda" else 0):
        if per_process > (device_memory := torch.cuda.get_device_properties(number).total_memory):
            raise ResourceError(
                f"not enough memory for {what}: each takes about {size(per_process)}, cuda:{number} has "
                f"{size(device_memory)}; take a larger --nproc"
            )
    if most is not None and total > most:
        raise ResourceError(f"--max-memory {size(most)} is not enough for {what}, which takes {size(total)}")
