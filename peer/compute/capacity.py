"""The capacity of this machine, and the memory that the process gives back."""

import ctypes
import gc
import os
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Literal

import psutil
import torch

from protocol.errors import ResourceError

DeviceName = Literal["auto", "cpu", "cuda", "mps"]

M_MMAP_THRESHOLD = -3
"""glibc's name for the size from which a block is the system's own; setting it keeps glibc from raising it."""

LARGE_BLOCK_BYTES = 4 * 2**20
"""Smaller ones are asked for and freed too often to be the system's."""


def find_device(name: DeviceName) -> torch.device:
    """The device to compute on.

    Raises:
        ResourceError: this machine has no such device.
    """
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        return torch.device(next(kind for kind, is_there in available.items() if is_there))
    if not available[name]:
        kinds = ", ".join(kind for kind, is_there in available.items() if is_there)
        raise ResourceError(f"this machine has no {name} device that PyTorch can use; it has: {kinds}")
    return torch.device(name)


def resident_bytes() -> int:
    """Memory that this process has now, beside what it has on an accelerator."""
    return int(psutil.Process().memory_info().rss)


def peak_bytes(process: int) -> int:
    """The most memory that a process has had, by the kernel's count.

    Raises:
        OSError: it has ended, or this system does not say.
    """
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM")), 0)


def family_bytes() -> int:
    """The same of this process and all that it has started."""
    total = resident_bytes()
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            total += process.memory_info().rss
    return total


def give_memory_back() -> None:
    """Give memory back to the system, after a model is not needed any longer."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def give_large_blocks_back() -> None:
    """Let the C library give each large block of memory back to the system when it is freed, for as long as this
    process lives. By itself glibc keeps more and more of them for later, whose gaps then fit nothing: half as much
    again as the activations of a step take. Elsewhere than on Linux with glibc this does nothing."""
    with suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, LARGE_BLOCK_BYTES)


def give_heap_back(changed: int) -> None:
    """Give the gaps in the C library's heap back to the system, after so many bytes of tensors have been replaced.

    Blocks below `LARGE_BLOCK_BYTES` leave gaps that later ones do not fill: with a model of 32 million values a process
    grew by 86 MB within two rounds. Elsewhere than on Linux with glibc this does nothing."""
    if changed < LARGE_BLOCK_BYTES:
        return
    with suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


def lower_priority(niceness: int) -> None:
    """Let the calling thread, and those it starts from now on, give way to whatever else runs here. Where the
    system knows no priority of threads (all but Linux), the whole process does. Who is nicer already stays so."""
    if sys.platform == "win32" or not niceness:
        return
    whom = threading.get_native_id() if sys.platform == "linux" else 0
    os.setpriority(os.PRIO_PROCESS, whom, max(niceness, os.getpriority(os.PRIO_PROCESS, whom)))


def free_memory(device: torch.device) -> int:
    """Memory that is free where a device computes."""
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else psutil.virtual_memory().available
    return int(free)


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
