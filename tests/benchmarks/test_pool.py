"""The benchmark of unequal volunteers, where what it must come to can be told beforehand."""

import pytest

from benchmarks import pool
from tests.world.runs import get_ready


def test_one_chain_of_equals_loses_what_filling_and_draining_takes_and_its_links(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pool, "SPEEDS", (8, 8, 8, 8))
    get_ready()
    row = pool.train(pool.ARRANGEMENTS[0], seed=1, rounds=3, kills=0.0)
    fill = pool.MICROBATCHES / (pool.MICROBATCHES + pool.STAGES - 1)
    assert row.bound == pytest.approx(8 * 2 * 64 / pool.PASS_SECONDS)
    assert 0.6 * fill < row.share < fill
    assert (row.steps, row.digests_equal) == ([pool.STEPS], True)
