"""Does what a peer would do fit this machine?"""

from dataclasses import replace

import pytest
import torch

from peer.compute import fitting
from peer.compute.capacity import resident_bytes
from peer.compute.fitting import (
    MOST_PASS_TOKENS,
    best_way,
    fits_device,
    manifest_on,
    microbatches_that_fit,
    require_memory,
    shortage,
    where_computed,
)
from peer.planning.memory import PROCESS_BYTES, Duty, MemoryNeeds, memory_of, microbatch_bytes
from protocol.errors import ResourceError
from protocol.manifest import Manifest, check_manifest
from protocol.wording import size

CPU, CUDA = torch.device("cpu"), torch.device("cuda:0")
STAGE = Duty("volunteer", 1)


def preset(name: str, stages: int, **inner: int) -> Manifest:
    return check_manifest({"model": {"preset": name}, "replicas": {"stages": stages}, "inner": inner})


def free(monkeypatch: pytest.MonkeyPatch, host: int, device: int = 0) -> None:
    monkeypatch.setattr(fitting, "free_memory", lambda where: device if where.type == "cuda" else host)


def test_activations_are_kept_where_they_fit_and_computed_again_where_only_that_fits(monkeypatch: pytest.MonkeyPatch):
    run = preset("tiny", 4)
    kept, again = (memory_of(run, replace(STAGE, recompute=each)).total for each in (False, True))
    for there, recompute in ((kept, False), (kept - 1, True), (again, True)):
        free(monkeypatch, there)
        assert require_memory(run, STAGE, CPU) == replace(STAGE, recompute=recompute)
    free(monkeypatch, kept)
    assert require_memory(run, STAGE, CPU, memory="recompute").recompute
    free(monkeypatch, again - 1)
    with pytest.raises(ResourceError, match=f"not enough memory for stage 1: it needs {size(again)} of memory, and "):
        require_memory(run, STAGE, CPU)


def test_who_keeps_activations_is_told_what_computing_them_again_would_take(monkeypatch: pytest.MonkeyPatch):
    run = preset("tiny", 4)
    less = memory_of(run, replace(STAGE, recompute=True)).total
    free(monkeypatch, less)
    with pytest.raises(ResourceError, match=f"; give --memory auto, which takes {size(less)}$"):
        require_memory(run, STAGE, CPU, memory="keep")


def test_what_this_peer_may_use_is_less_than_what_there_is(monkeypatch: pytest.MonkeyPatch):
    free(monkeypatch, 10**12)
    run = preset("nano", 2)
    least = memory_of(run, replace(STAGE, recompute=True)).total
    assert require_memory(run, STAGE, CPU, least).recompute
    with pytest.raises(ResourceError, match=r"and --max-memory gives 300\.0 MB; give --max-memory \d+MB"):
        require_memory(run, Duty("datacenter"), CPU, 3 * 10**8)


def test_on_a_card_of_its_own_the_device_and_the_host_are_looked_at_apart(monkeypatch: pytest.MonkeyPatch):
    needed = MemoryNeeds(device_held=6, device_passing=2, host_held=1, host_passing=2)
    for device, host, words in (
        (8, 3, None),
        (7, 99, "8 B of cuda:0's memory, and 7"),
        (99, 2, "3 B of memory, and 2"),
    ):
        free(monkeypatch, host, device)
        lacking = shortage(needed, CUDA)
        assert (lacking is None) if words is None else (lacking is not None and lacking.words.startswith(words))
    assert [where_computed(needed, each) for each in (CUDA, CPU, torch.device("mps"))] == [8, 9, 9]
    free(monkeypatch, 8)
    assert shortage(needed, CPU) is not None  # a CPU has both in one
    assert shortage(needed, torch.device("mps")) is not None
    free(monkeypatch, 9)
    assert shortage(needed, CPU) is None
    free(monkeypatch, 99, 99)
    assert shortage(needed, CUDA, most=8) is None  # a limit is of where it computes
    assert shortage(needed, CPU, most=8) is not None


def test_an_observer_is_no_trainer(monkeypatch: pytest.MonkeyPatch):
    run = preset("178m", 4)
    free(monkeypatch, memory_of(run, Duty("observer")).total)
    assert best_way(run, Duty("observer"), CPU)[1] is None
    assert best_way(run, Duty("observer", holds=True), CPU)[1] is None
    assert best_way(run, Duty("datacenter"), CPU)[1] is not None


def test_half_of_what_is_free_holds_the_microbatches_in_flight(monkeypatch: pytest.MonkeyPatch):
    run = preset("512m", 4)
    each = microbatch_bytes(run, 1, recompute=False)
    free(monkeypatch, 20 * each + 3)
    assert microbatches_that_fit(run, 1, CPU, None, recompute=False) == 10
    assert microbatches_that_fit(run, 1, CPU, None, recompute=True) > 100
    used = resident_bytes()
    small = preset("nano", 2)
    each = microbatch_bytes(small, 0, recompute=False)
    assert microbatches_that_fit(small, 0, CPU, used + 20 * each, recompute=False) in range(
        5, 11
    )  # of what is left now
    assert microbatches_that_fit(small, 0, CPU, used // 2, recompute=False) == 0


def test_a_card_gets_the_largest_microbatch_that_it_holds_and_a_cpu_the_runs(monkeypatch: pytest.MonkeyPatch):
    run, duty = preset("micro", 2, sequences=48, microbatch=2), Duty("datacenter")

    def device_bytes(sequences: int) -> int:
        return memory_of(run.with_microbatch(sequences), duty).device

    fits = fits_device(CUDA, duty, None, PROCESS_BYTES)
    for room, sequences in ((10**13, 48), (device_bytes(16), 16), (device_bytes(16) - 1, 12), (device_bytes(2), 2)):
        free(monkeypatch, 10**13, room)
        assert manifest_on(CUDA, run, fits).inner.microbatch == sequences
    free(monkeypatch, 10**13, 10**13)
    assert manifest_on(CUDA, run, fits, processes=3).inner.microbatch == 16
    assert manifest_on(CPU, run, fits) is run
    longer = check_manifest(
        {"model": {"preset": "micro", "context": 2**13}, "inner": {"sequences": 48, "microbatch": 2}}
    )
    assert manifest_on(CUDA, longer, fits).inner.microbatch == MOST_PASS_TOKENS // 2**13
