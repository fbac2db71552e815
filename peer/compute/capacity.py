"""What this machine has, what a place in the run takes of it, and what the process gives back."""

import ctypes
import gc
import os
import sys
import threading
from contextlib import suppress
from typing import Literal

import psutil
import torch

from peer.compute.schedule import least_depth
from peer.model.head import SLICE_TOKENS
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

HEAD_VALUES = 3
"""Values that the head has for each token of a slice and each of the vocabulary: logits and what becomes of them."""


M_MMAP_THRESHOLD = -3
"""glibc's name for the size from which a block is the system's own; setting it keeps glibc from raising it."""

LARGE_BLOCK_BYTES = 2**20


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


def stage_bytes(manifest: Manifest, stage: int, recompute: bool = True) -> int:
    """Memory that training one stage takes, in bytes: an upper estimate. `recompute`: its layers' activations are
    computed again in the backward pass, which is the least that it takes."""
    stages = manifest.replicas.stages
    trained = elements(part_layout(manifest, stage_part(stage)))
    embedding = elements(part_layout(manifest, EMBEDDING))
    trained += embedding if stage == 0 else 0
    followed = embedding if stage > 0 and manifest.compressed else 0
    in_flight = min(least_depth(stage, stages), manifest.inner.microbatches)
    slice_tokens = min(SLICE_TOKENS, manifest.inner.microbatch * manifest.model.context)
    once = 4 * HEAD_VALUES * slice_tokens * manifest.model.vocabulary if stage == stages - 1 else 0
    if recompute:
        once += layer_bytes(manifest)
    kept = microbatch_bytes(manifest, stage, recompute) * in_flight
    return TRAINED_BYTES * trained + FOLLOWED_BYTES * followed + kept + once


def layer_bytes(manifest: Manifest) -> int:
    """Memory that a layer's activations take for one microbatch, in bytes: an upper estimate."""
    model = manifest.model
    return 4 * manifest.inner.microbatch * model.context * (LAYER_ACTIVATION_VALUES * model.d + 4 * model.ffn)


def microbatch_bytes(manifest: Manifest, stage: int, recompute: bool) -> int:
    """Memory that a stage keeps for each microbatch in flight, in bytes: an upper estimate. `recompute`: of each layer
    its input, and what enters and leaves the stage."""
    model = manifest.model
    layers = len(manifest.cut[stage])
    if recompute:
        return 4 * manifest.inner.microbatch * model.context * (layers + 2) * model.d
    return layers * layer_bytes(manifest)


def recomputes(manifest: Manifest, stage: int | None, device: torch.device, most: int | None = None) -> bool:
    """Whether a stage (None: all) fits only if it computes its activations again: into the memory that is free, and
    into the `most` bytes that this peer may use. Nothing of it is there yet."""
    room = min(free_bytes(device), most or sys.maxsize)
    return needed_bytes(manifest, stage, recompute=False) > room


def needed_bytes(manifest: Manifest, stage: int | None, recompute: bool = True) -> int:
    """Memory that a process takes that trains a stage (None: all), in bytes: an upper estimate."""
    stages = range(manifest.replicas.stages) if stage is None else (stage,)
    return sum(stage_bytes(manifest, each, recompute) for each in stages) + PROCESS_BYTES


def microbatches_that_fit(
    manifest: Manifest, stage: int, device: torch.device, most: int | None = None, recompute: bool = False
) -> int:
    """How many microbatches in flight half of the memory holds that is free now, or that is left of the `most` bytes
    that this peer may use. Nothing is in flight yet."""
    free = free_bytes(device)
    if most is not None:
        used = torch.cuda.memory_reserved(device) if device.type == "cuda" else resident_bytes()
        free = max(0, min(free, most - used))
    return free // 2 // microbatch_bytes(manifest, stage, recompute)


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


def give_large_blocks_back() -> None:
    """Let the C library give each large block of memory back to the system when it is freed, for as long as this process
    lives. By itself glibc keeps more and more of them for later, whose gaps then fit nothing: as much again as the
    activations of a step take. Elsewhere than on Linux with glibc this does nothing."""
    with suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, LARGE_BLOCK_BYTES)


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
    manifest: Manifest,
    stage: int | None,
    device: torch.device,
    most: int | None = None,
    holds: bool = False,
    recompute: bool = True,
) -> None:
    """Check that a stage (None: the whole model) fits before joining, and into the `most` bytes that this peer may use.
    `holds`: the peer only holds the model. `recompute`: it may compute activations again.

    Raises:
        ResourceError: it does not; the message names what would be needed and what there is.
    """
    needed = held_bytes(manifest) if holds else needed_bytes(manifest, stage, recompute)
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
