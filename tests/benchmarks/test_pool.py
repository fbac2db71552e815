"""The benchmark of unequal volunteers, where what it must come to can be told beforehand."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from benchmarks import pool
from benchmarks.shaped.hosts import missing
from benchmarks.shaped.waiting import waiting
from bootstrap.genesis import basis
from peer.compute.calibration import tokens_per_second
from peer.compute.trainer import StageTrainer
from tests.reference import forks
from tests.reference.own_loop import in_own_loops
from tests.reference.small_manifest import small_manifest
from tests.world.conftest import drop
from tests.world.runs import get_ready


def test_one_chain_of_equals_loses_what_filling_and_draining_takes_and_its_links(monkeypatch: pytest.MonkeyPatch):
    for name, value in {"SPEEDS": (8, 8), "STAGES": 2}.items():
        monkeypatch.setattr(pool, name, value)
    get_ready()
    row = pool.train(pool.ARRANGEMENTS[0], seed=1, rounds=3, kills=0.0)
    fill = pool.MICROBATCHES / (pool.MICROBATCHES + pool.STAGES - 1)
    assert row.bound == pytest.approx(8 * 2 * 64 / pool.PASS_SECONDS)
    assert 0.6 * fill < row.share < fill
    assert (row.steps, row.digests_equal) == ([pool.STEPS], True)


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Of the simulated world."""
    yield
    drop()


@pytest.fixture
def forking(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Processes are forks of one that ends with the test."""
    connection, process = forks.open_parent()
    monkeypatch.setattr(forks, "parent", lambda: connection)
    yield
    connection.close()
    process.wait()


@pytest.mark.usefixtures("forking")
@pytest.mark.skipif(missing() is not None, reason=str(missing()))
def test_a_chain_of_real_processes_on_shaped_links_is_below_its_bound_as_well(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    for name, value in {"SPEEDS": (8, 8), "STAGES": 2, "STEPS": 2, "WARM_ROUNDS": 1}.items():
        monkeypatch.setattr(pool, name, value)
    with in_own_loops():
        row = pool.train_shaped(pool.ARRANGEMENTS[0], seed=1, rounds=2, kills=0.0, time=0.05, folder=tmp_path)
    assert row.bound == pytest.approx(8 * 4096 / 1.76, rel=0.01)
    assert 0 < row.share < pool.MICROBATCHES / (pool.MICROBATCHES + 1)
    assert (row.steps, row.digests_equal) == ([2], True)


@pytest.mark.parametrize("stage", range(2))
def test_a_stage_that_waits_takes_the_time_that_it_is_given(stage: int):
    manifest = small_manifest()
    with waiting(0.02):
        trainer = StageTrainer(manifest, stage, "group", torch.from_numpy(basis(manifest)), torch.device("cpu"))
        speed = tokens_per_second(trainer)
    most = manifest.inner.microbatch * manifest.model.context / 0.02
    assert 0.3 * most < speed <= most
    assert not trainer.in_flight
