"""The benchmark of payloads that are computed again, where what it must come to can be told beforehand."""

import pytest

from benchmarks import recompute
from bootstrap.genesis import load_run
from peer.swarm.group import likenesses
from protocol.manifest import Manifest
from tests.reference.small_manifest import small_manifest
from tests.world.runs import files_of


def manifest(rate: float) -> Manifest:
    return small_manifest(
        model={"layers": 4, "d": 32, "context": 64},
        replicas={"groups": 2, "datacenters": 0, "stages": recompute.STAGES, "compression": 2},
        inner={"steps": 3, "sequences": 8, "optimizer": "muon", "learning_rate": rate, "warmup": 1},
        outer={"rounds": 2},
    )


@pytest.mark.parametrize("rate", [2e-3, 1.0])
def test_however_far_weights_move_a_first_step_tells_what_is_wrong_by_a_tenth(rate: float):
    run = manifest(rate)
    rows = recompute.train(load_run(files_of(run)), files_of(run))
    assert [(row.round, row.direction) for row in rows] == [(r, d) for r in (1, 2) for d in ("forward", "backward")]
    for row in rows:
        assert row.wrong_by_a_tenth < likenesses.EXACT < row.bf16 < 1.0
