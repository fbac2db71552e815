"""Do so many processes fit the run and the machine?"""

import pytest
import torch

from peer.devices.fit import WORKER_BASE_BYTES, require_devices, worker_bytes
from peer.planning.memory import Duty, memory_of
from protocol.errors import ResourceError, UserError
from protocol.manifest import Manifest, check_manifest

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def preset(name: str, sequences: int = 32) -> Manifest:
    return check_manifest({"model": {"preset": name}, "inner": {"sequences": sequences, "microbatch": 4}})


@pytest.mark.parametrize(("asked", "near"), [(3, "2 or 4"), (24, "16 or 32"), (33, "32")])
def test_sequences_that_cannot_be_shared_evenly_name_the_nearest_numbers_that_can(asked: int, near: str):
    with pytest.raises(UserError, match=rf"--nproc {asked}: .* 32 sequences, which .* evenly; take {near}$"):
        require_devices(preset("nano"), asked, CPU)


def test_sequences_are_shared_among_the_processes_of_all_machines():
    require_devices(preset("nano"), 2, CPU, machines=4)
    words = r"^--nproc 2 --nnodes 3: .* 32 sequences, which 6 processes cannot share evenly; take 4 or 8$"
    with pytest.raises(UserError, match=words):
        require_devices(preset("nano"), 2, CPU, machines=3)


def test_a_machine_of_several_needs_memory_for_its_own_processes_and_the_first_one_for_the_daemon(
    monkeypatch: pytest.MonkeyPatch,
):
    run = preset("178m")
    alone = 2 * (worker_bytes(run, 8) + WORKER_BASE_BYTES)
    monkeypatch.setattr("peer.devices.fit.free_memory", lambda device: alone)
    require_devices(run, 2, CPU, machines=4, daemon=False)
    for machines, daemon in ((4, True), (2, False)):
        with pytest.raises(ResourceError, match="not enough memory"):
            require_devices(run, 2, CPU, machines=machines, daemon=daemon)


def test_each_process_takes_a_cuda_device(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(ResourceError, match="--nproc 4: each process takes a CUDA device, and PyTorch sees 2 here"):
        require_devices(preset("nano"), 4, CUDA)


def test_a_cuda_device_too_small_for_its_share_is_named(monkeypatch: pytest.MonkeyPatch):
    class Small:
        total_memory = 10**9

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda number: Small)
    monkeypatch.setattr("peer.devices.fit.free_memory", lambda device: 10**12)
    require_devices(preset("nano"), 2, CUDA)
    with pytest.raises(ResourceError, match=r"each takes about .* cuda:0 has 1\.0 GB; take a larger --nproc"):
        require_devices(preset("1b"), 2, CUDA)


def test_other_devices_cannot_be_several():
    with pytest.raises(ResourceError, match="works with cpu and cuda"):
        require_devices(preset("nano"), 2, torch.device("mps"))


def test_too_little_memory_is_said_before_joining():
    with pytest.raises(ResourceError, match=r"--max-memory 1\.0 GB is not enough for a replica in 2 processes"):
        require_devices(preset("nano"), 2, CPU, 10**9)
    with pytest.raises(ResourceError, match=r"not enough memory for a replica in 16 processes: it takes about .*, cpu"):
        require_devices(check_manifest({"model": {"preset": "1b", "layers": 1024}}), 16, CPU)


def test_a_process_takes_less_the_more_there_are():
    run = check_manifest({"model": {"preset": "1b"}, "inner": {"sequences": 32, "microbatch": 1}})
    sizes = [worker_bytes(run, processes) for processes in (1, 2, 4, 8, 16)]
    assert sizes == sorted(sizes, reverse=True)
    assert worker_bytes(run, 8) < memory_of(run, Duty("datacenter")).total / 4
