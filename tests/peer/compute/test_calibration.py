"""A stage tries itself before it trains, and is as it was."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from filelock import FileLock

from peer.compute import calibration
from peer.compute.calibration import rounded_speed, tokens_per_second, warm_up
from peer.compute.trainer import StageTrainer
from tests.peer.compute.test_replica import genesis, manifest
from tests.reference.boundary import orthonormal


@pytest.mark.parametrize("stage", [0, 1])
@pytest.mark.parametrize("wire", ["bf16", "int4"])
def test_a_stage_that_tried_itself_has_a_speed_and_trains_as_if_it_had_not(stage: int, wire: str):
    run = manifest(stages=2, compression=4, wire=wire)
    trainer = StageTrainer(run, stage, "group", orthonormal(32), torch.device("cpu"))
    trainer.load(genesis(run))
    before = [parameter.detach().clone() for parameter in trainer.parameters]
    assert tokens_per_second(trainer) > 0
    assert not trainer.in_flight
    assert all(map(torch.equal, before, trainer.parameters))
    assert not any(parameter.grad.any() for parameter in trainer.parameters)


def test_a_speed_is_told_in_two_digits_and_never_beyond_what_a_record_may_say():
    assert [rounded_speed(speed) for speed in (1234.5, 0.0678, 3e12)] == [1200.0, 0.068, 1e9]


def test_of_processes_that_begin_together_one_compiles(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Each has a lock of its own on one file, as threads have here."""
    monkeypatch.setattr(calibration, "compiled_folder", lambda function: tmp_path / "not there yet")
    both, alone = threading.Barrier(2, timeout=60), threading.Lock()

    def compiles() -> None:
        assert alone.acquire(blocking=False), "two compile at once"
        time.sleep(0.05)
        alone.release()

    def process() -> None:
        both.wait()
        warm_up()

    monkeypatch.setattr(calibration, "compile_kernels", compiles)
    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(process) for _ in range(2)]:
            done.result()


def test_nobody_waits_for_ever_for_another_that_compiles(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    compiled: list[str] = []
    monkeypatch.setattr(calibration, "compiled_folder", lambda function: tmp_path)
    monkeypatch.setattr(calibration, "COMPILING_SECONDS", 0.05)
    monkeypatch.setattr(calibration, "compile_kernels", lambda: compiled.append("here"))
    with FileLock(tmp_path / "compiling.lock"):
        warm_up()
    assert compiled == ["here"]


def test_where_nothing_can_be_kept_each_compiles(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    compiled: list[str] = []
    (tmp_path / "file").touch()
    monkeypatch.setattr(calibration, "compiled_folder", lambda function: tmp_path / "file" / "beneath")
    monkeypatch.setattr(calibration, "compile_kernels", lambda: compiled.append("here"))
    warm_up()
    assert compiled == ["here"]
