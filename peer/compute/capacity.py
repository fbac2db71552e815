"""What this machine has, what a place in the run takes of it, and what the process gives back."""

import gc
import os
import sys
import threading
from contextlib import suppress
from typing import Literal

import psutil
import torch

from peer.compute.schedule import least_depth
from peer.planning.holding import PROCESS_BYTES, held_bytes
from protocol.errors import ResourceError, Shortage
from protocol.identity import EMBEDDING, stage_part
from protocol.layout import elements, part_layout
from protocol.manifest import Manifest
from protocol.wording import megabytes_above, size

DeviceName = Literal["auto", "cpu", "cuda", "mps"]

TRAINED_BYTES = 40
"""A trained value: weight, gradient, start and two moments in fp32 (20), grid and error feedback (8), and
the pseudo-gradient's passing int64 copies (12, on one tensor at a time)."""

FOLLOWED_BYTES = 12
"""A value of the token embedding where it is only looked up: its grid, T⊥, and a passing copy."""

LAYER_ACTIVATION_VALUES = 20
"""fp32 values that a layer keeps for its backward pass, for each token and each of d; SwiGLU's count in ffn / d."""


def find_device(name: DeviceName) -> torch.device:
    """The device to compute on.

    Raises:
        ResourceError: this machine has no such device.
    """
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        return torch.device(next(kind for kind, there in available.items() if there))
    if not available[name]:
        there = ", ".join(kind for kind, is_there in available.items() if is_there)
        raise ResourceError(f"this machine has no {name} device that PyTorch can use; it has: {there}")
    return torch.device(name)


def stage_bytes(manifest: Manifest, stage: int) -> int:
    """Memory that training one stage takes, in bytes: an upper estimate."""
    stages = manifest.replicas.stages
    trained = elements(part_layout(manifest, stage_part(stage)))
    embedding = elements(part_layout(manifest, EMBEDDING))
    trained += embedding if stage == 0 else 0
    followed = embedding if stage > 0 and manifest.compressed else 0
    in_flight = min(least_depth(stage, stages), manifest.inner.microbatches)
    return TRAINED_BYTES * trained + FOLLOWED_BYTES * followed + microbatch_bytes(manifest, stage) * in_flight


def microbatch_bytes(manifest: Manifest, stage: int) -> int:
    """Memory that a stage keeps for each microbatch in flight, in bytes: an upper estimate."""
    model, stages = manifest.model, manifest.replicas.stages
    layers = len(manifest.cut[stage])
    kept = layers * (LAYER_ACTIVATION_VALUES * model.d + 4 * model.ffn)
    kept += 4 * model.vocabulary if stage == stages - 1 else 0
    return 4 * manifest.inner.microbatch * model.context * kept


def microbatches_that_fit(manifest: Manifest, stage: int, device: torch.device, most: int | None = None) -> int:
    """How many microbatches in flight half of the memory holds that is free now, or that is left of the `most` bytes
    that this peer may use. Nothing is in flight yet."""
    free = free_bytes(device)
    if most is not None:
        used = torch.cuda.memory_reserved(device) if device.type == "cuda" else resident_bytes()
        free = max(0, min(free, most - used))
    return free // 2 // microbatch_bytes(manifest, stage)


def resident_bytes() -> int:
    """Memory that this process has now, beside what it has on an accelerator."""
    return int(psutil.Process().memory_info().rss)


def family_bytes() -> int:
    """The same of this process and all that it has started."""
    total = resident_bytes()
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            total += process.memory_info().rss
    return total


def give_memory_back() -> None:
    """After a model is not needed any longer."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def lower_priority(niceness: int) -> None:
    """Let the calling thread, and those it starts from now on, give way to whatever else runs here. Where the
    system knows no priority of threads (all but Linux), the whole process does. Who is nicer already stays so."""
    if sys.platform == "win32" or not niceness:
        return
    whom = threading.get_native_id() if sys.platform == "linux" else 0
    os.setpriority(os.PRIO_PROCESS, whom, max(niceness, os.getpriority(os.PRIO_PROCESS, whom)))


def free_bytes(device: torch.device) -> int:
    """Memory that is free where a device computes."""
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else psutil.virtual_memory().available
    return int(free)


def whole_bytes(manifest: Manifest) -> int:
    """Memory that a datacenter replica takes, in bytes."""
    return sum(stage_bytes(manifest, stage) for stage in range(manifest.replicas.stages))


def require_memory(
    manifest: Manifest, stage: int | None, device: torch.device, most: int | None = None, holds: bool = False
) -> None:
    """Check that a stage (None: the whole model) fits before joining, and into the `most` bytes that this peer may use.
    `holds`: the peer only holds the model.

    Raises:
        ResourceError: it does not; the message names what would be needed and what there is.
    """
    if holds:
        needed = held_bytes(manifest)
    else:
        needed = (whole_bytes(manifest) if stage is None else stage_bytes(manifest, stage)) + PROCESS_BYTES
    what = "the whole model" if stage is None else f"stage {stage}"
    free = free_bytes(device)
    if needed > free:
        raise ResourceError(
            f"not enough memory for {what}: it takes about {size(needed)}, {device} has {size(free)} free",
            Shortage(f"{size(needed)} of memory, and {size(free)} are free", "end other programs"),
        )
    if most is not None and needed > most:
        raise ResourceError(
            f"--max-memory {size(most)} is not enough for {what}, which takes about {size(needed)}",
            Shortage(
                f"{size(needed)} of memory, and --max-memory gives {size(most)}",
                f"give --max-memory {megabytes_above(needed)}",
            ),
        )


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
