"""The benchmark of payloads that are computed again, where what it must come to can be told beforehand."""

import pytest

from benchmarks import recompute
from bootstrap.genesis import load_run
from protocol.manifest import Manifest
from tests.reference.small_manifest import small_manifest
from tests.world.runs import files_of


def manifest() -> Manifest:
    return small_manifest(
        model={"layers": 3},
        replicas={"groups": 2, "datacenters": 0, "stages": 3, "compression": 4},
        inner={"steps": 3, "learning_rate": 0.05, "warmup": 1},
        outer={"rounds": 2},
    )


def test_payloads_are_those_of_the_rounds_first_weights_until_these_change():
    run = manifest()
    rows = recompute.train(load_run(files_of(run)), files_of(run))
    assert {(row.round, row.direction) for row in rows} == {(r, d) for r in (1, 2) for d in ("forward", "backward")}
    for row in rows:
        first, *later = row.honest_in_step
        assert first == pytest.approx(1.0, abs=1e-5)
        assert max(later) < 0.9999
        assert len(later) == run.inner.steps - 1
        assert row.honest == -row.flipped == min(row.honest_in_step)
        assert row.made_up < 0.9
