"""What this machine has, and what a process gives back."""

import os
import subprocess
import sys
import threading

import pytest
import torch

from peer.compute import capacity
from peer.compute.capacity import find_device
from protocol.errors import ResourceError


def test_the_cpu_is_always_there():
    assert find_device("cpu") == torch.device("cpu")
    assert find_device("auto").type in ("cpu", "cuda", "mps")


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA")
def test_a_missing_device_is_named_with_those_there_are():
    with pytest.raises(ResourceError, match="no cuda device that PyTorch can use; it has: cpu"):
        find_device("cuda")


@pytest.mark.skipif(sys.platform != "linux", reason="threads have priorities of their own on Linux alone")
def test_a_thread_gives_way_and_the_rest_of_the_process_does_not():
    def of_this_thread() -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    before, within = of_this_thread(), []

    def lowered() -> None:
        capacity.lower_priority(before + 3)
        capacity.lower_priority(before + 1)  # who is nicer already stays so
        within.append(of_this_thread())
        inner = threading.Thread(target=lambda: within.append(of_this_thread()))
        inner.start()
        inner.join()

    thread = threading.Thread(target=lowered)
    thread.start()
    thread.join()
    assert within == [min(before + 3, 19)] * 2
    assert of_this_thread() == before


@pytest.mark.skipif(sys.platform != "linux" or not os.confstr("CS_GNU_LIBC_VERSION"), reason="glibc alone keeps blocks")
def test_large_blocks_are_given_back_when_they_are_freed():
    """In a process of its own, as it is so from then on."""
    program = """
import sys, torch
from peer.compute.capacity import give_large_blocks_back, resident_bytes
if sys.argv[1] == "back":
    give_large_blocks_back()
before = resident_bytes()
for _ in range(3):
    kept = [torch.ones(size * 2**18 + size) for size in range(8, 40)]
    passing = [torch.ones(1000) for _ in range(2000)]
    del kept[::2], passing[::2]
    kept += [torch.ones(size * 2**18 + 7 * size) for size in range(9, 40, 2)]
    del kept
print(resident_bytes() - before)
"""
    grown = {
        what: int(subprocess.run([sys.executable, "-c", program, what], check=True, stdout=subprocess.PIPE).stdout)
        for what in ("back", "kept")
    }
    assert grown["back"] < 16 * 2**20 < grown["kept"]
