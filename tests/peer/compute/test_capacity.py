"""Does a place in the run fit this machine?"""

import os
import sys
import threading

import psutil
import pytest
import torch

from peer.compute import capacity
from peer.compute.capacity import find_device, require_memory, stage_bytes, whole_bytes
from protocol.errors import ResourceError
from protocol.manifest import check_manifest


def preset(name: str, stages: int):
    return check_manifest({"model": {"preset": name}, "replicas": {"stages": stages}})


def test_the_cpu_is_always_there():
    assert find_device("cpu") == torch.device("cpu")
    assert find_device("auto").type in ("cpu", "cuda", "mps")


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA")
def test_a_missing_device_is_named_with_those_there_are():
    with pytest.raises(ResourceError, match="no cuda device that PyTorch can use; it has: cpu"):
        find_device("cuda")


def test_more_stages_take_less_memory_each():
    whole, halves = preset("512m", 1), preset("512m", 4)
    assert max(stage_bytes(halves, stage) for stage in range(4)) < stage_bytes(whole, 0)
    assert whole_bytes(whole) > 512_398_848 * 16


def test_too_little_memory_is_said_before_joining(monkeypatch: pytest.MonkeyPatch):
    class Free:
        available = 2 * 10**9

    monkeypatch.setattr(psutil, "virtual_memory", lambda: Free)
    require_memory(preset("nano", 2), None, torch.device("cpu"))
    with pytest.raises(ResourceError, match=r"not enough memory for stage 1: it takes about .* cpu has 2\.0 GB free"):
        require_memory(preset("1b", 2), 1, torch.device("cpu"))


def test_what_this_peer_may_use_is_less_than_what_there_is():
    run, cpu = preset("nano", 2), torch.device("cpu")
    require_memory(run, 1, cpu, 10**9)
    with pytest.raises(ResourceError, match=r"--max-memory 300\.0 MB is not enough for stage 1, which takes about 5"):
        require_memory(run, 1, cpu, 3 * 10**8)
    used, each = capacity.resident_bytes(), capacity.microbatch_bytes(run, 0, recompute=False)
    assert capacity.microbatches_that_fit(run, 0, cpu, used + 20 * each) in range(5, 11)  # half of it, as it is now
    assert capacity.microbatches_that_fit(run, 0, cpu, used // 2) == 0


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


@pytest.mark.parametrize("recompute", [False, True])
def test_the_estimate_bounds_what_training_a_stage_really_takes(recompute: bool):
    """Measured in a process of its own: peak memory above that of an empty one."""
    import subprocess
    import sys

    program = """
import resource, sys, torch
from peer.compute.arithmetic import Arithmetic
from peer.compute.trainer import StageTrainer
from peer.optim.outer import OuterState
from protocol.identity import EMBEDDING, ReplicaId, RunId, stage_part
from protocol.layout import part_layout
from protocol.manifest import check_manifest
torch.set_num_threads(1)
replicas = {"stages": 1, "compression": 8}
run = check_manifest({"model": {"preset": "tiny"}, "replicas": replicas, "inner": {"microbatch": 1}})
base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
if len(sys.argv) > 1:
    parts = (EMBEDDING, stage_part(0))
    states = {p: OuterState.begin(run, p, {n: torch.zeros(s, dtype=torch.int32) + 2**20
              for n, s in part_layout(run, p).items()}, True) for p in parts}
    trainer = StageTrainer(run, 0, "group", torch.eye(run.model.d), torch.device("cpu"),
                           arithmetic=Arithmetic(recompute=sys.argv[1] == "again"))
    trainer.load({p: s.grid for p, s in states.items()})
    tokens = torch.zeros(1, run.model.context + 1, dtype=torch.int64)
    trainer.forward(0, tokens, None); trainer.backward(0, None); trainer.update(1.0, 0)
    for part, moved in trainer.moved().items():
        states[part].contribute(RunId("ab" * 32), 1, ReplicaId("Qm"), 1, moved)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - base)
"""
    output = subprocess.run(
        [sys.executable, "-c", program, "again" if recompute else "keep"], check=True, capture_output=True, text=True
    )
    used = int(output.stdout)
    manifest = check_manifest(
        {"model": {"preset": "tiny"}, "replicas": {"stages": 1, "compression": 8}, "inner": {"microbatch": 1}}
    )
    estimate = stage_bytes(manifest, 0, recompute)
    assert 0.3 * estimate < used < estimate


def test_half_of_what_is_free_holds_the_microbatches_in_flight(monkeypatch: pytest.MonkeyPatch):
    manifest = check_manifest({"model": {"preset": "512m"}, "replicas": {"stages": 4}})
    each = capacity.microbatch_bytes(manifest, 1, recompute=False)
    monkeypatch.setattr(capacity, "free_bytes", lambda device: 20 * each + 3)
    assert capacity.microbatches_that_fit(manifest, 1, torch.device("cpu")) == 10
    first, second = (capacity.stage_bytes(manifest, stage, recompute=False) for stage in (1, 2))
    assert first - second >= each  # one stage fewer is behind it
