"""Does what a peer would do fit into this machine's memory: by the memory model (`peer.planning.memory`), by what is
free, and by what the peer's owner allows."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import torch
from pydantic import ValidationError

from peer.compute.capacity import free_memory, resident_bytes
from peer.planning.memory import PROCESS_BYTES, Duty, MemoryName, MemoryNeeds, memory_of, microbatch_bytes
from protocol.errors import ResourceError, Shortage
from protocol.manifest import Manifest
from protocol.wording import megabytes_above, size

CPU = torch.device("cpu")


def require_memory(
    manifest: Manifest,
    duty: Duty,
    device: torch.device,
    most: int | None = None,
    memory: MemoryName = "auto",
    process: int = PROCESS_BYTES,
) -> Duty:
    """The duty as it fits here: into the memory that is free, and into the `most` bytes that this peer may use where it
    computes. `auto` keeps activations where they fit. `process`: the bytes of a process without a model.

    Raises:
        ResourceError: it does not fit; the message names what would be needed, what there is, and what would help.
    """
    way, lacking = best_way(manifest, duty, device, most, memory, process)
    if lacking is None:
        return way
    remedy = lacking.remedy
    if memory == "keep" and best_way(manifest, duty, device, most, process=process)[1] is None:
        least = memory_of(manifest, replace(duty, recompute=True), process).total
        remedy = f"give --memory auto, which takes {size(least)}"
    what = f"stage {duty.stage}" if duty.role == "volunteer" else "the whole model"
    raise ResourceError(
        f"not enough memory for {what}: it needs {lacking.words}; {remedy}", Shortage(lacking.words, remedy)
    )


def best_way(
    manifest: Manifest,
    duty: Duty,
    device: torch.device,
    most: int | None = None,
    memory: MemoryName = "auto",
    process: int = PROCESS_BYTES,
) -> tuple[Duty, Shortage | None]:
    """Return how a duty is done here, keeping activations where they fit, and what is missing even so."""
    for recompute in (False, True) if memory == "auto" else (memory == "recompute",):
        way = replace(duty, recompute=recompute)
        if (lacking := shortage(memory_of(manifest, way, process), device, most)) is None:
            break
    return way, lacking


def where_computed(needed: MemoryNeeds, device: torch.device) -> int:
    """The bytes that are needed where a device computes: a CPU and Apple's GPUs do in the host's memory."""
    return needed.device if device.type == "cuda" else needed.total


def shortage(needed: MemoryNeeds, device: torch.device, most: int | None = None) -> Shortage | None:
    """Return what is missing of the memory that is `needed`, and what would help; None: it fits."""
    takes, name = where_computed(needed, device), f"{device}'s memory" if device.type == "cuda" else "memory"
    beside = [(needed.host, CPU, "memory")] if device.type == "cuda" else []
    for bytes, label, where in [(takes, device, name), *beside]:
        if bytes > (free := free_memory(label)):
            return Shortage(f"{size(bytes)} of {where}, and {size(free)} are free", "end other programs")
    if most is not None and takes > most:
        return Shortage(
            f"{size(takes)} of {name}, and --max-memory gives {size(most)}",
            f"give --max-memory {megabytes_above(takes)}",
        )
    return None


MOST_PASS_TOKENS = 2**15
"""The most tokens of a microbatch that a replica chooses by itself: more do not make a card quicker."""


def manifest_on(
    device: torch.device, manifest: Manifest, fits: Callable[[Manifest], bool], processes: int = 1
) -> Manifest:
    """Return the manifest by which a whole replica computes on a device. A CUDA device gets the largest microbatch, of
    `MOST_PASS_TOKENS` at most, with which the manifest `fits`: its gradients are the same up to the order of sums. On a
    CPU it is the run's own, so that losses are the same bits. Each of several `processes` has its share of sequences.
    """
    if device.type != "cuda":
        return manifest
    share = manifest.inner.sequences // processes
    most = min(share, MOST_PASS_TOKENS // manifest.model.context)
    for sequences in range(most, manifest.inner.microbatch, -1):
        if share % sequences == 0:
            with suppress(ValidationError):  # its frames would be too large for a group
                if fits(larger := manifest.with_microbatch(sequences)):
                    return larger
    return manifest


def fits_device(device: torch.device, duty: Duty, most: int | None, process: int) -> Callable[[Manifest], bool]:
    """Return the test whether a manifest fits this machine, for `manifest_on`."""
    return lambda manifest: shortage(memory_of(manifest, duty, process), device, most) is None


def microbatches_that_fit(
    manifest: Manifest, stage: int, device: torch.device, most: int | None, recompute: bool
) -> int:
    """Return how many microbatches in flight half of the memory holds that is free now, or that is left of the `most`
    bytes that this peer may use. Nothing is in flight yet."""
    free = free_memory(device)
    if most is not None:
        used = torch.cuda.memory_reserved(device) if device.type == "cuda" else resident_bytes()
        free = max(0, min(free, most - used))
    return free // 2 // microbatch_bytes(manifest, stage, recompute)
