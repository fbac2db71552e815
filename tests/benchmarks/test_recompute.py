"""The benchmark of payloads that are computed again, where what it must come to can be told beforehand."""

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


def test_while_weights_hardly_move_true_payloads_are_told_from_made_up_ones():
    run = manifest(2e-3)
    rows = recompute.train(load_run(files_of(run)), files_of(run))
    assert [(row.round, row.direction) for row in rows] == [(r, d) for r in (1, 2) for d in ("forward", "backward")]
    microbatches = run.inner.steps * run.inner.microbatches * (recompute.STAGES - 1)
    for row in rows:
        assert row.wrong_by_a_tenth < likenesses.EXACT < likenesses.EXACT_DOUBTED < row.bf16 < 1.0
        assert 0.9 < row.last_step < 0.9999
        assert row.judged == microbatches * (run.inner.steps - 1) / run.inner.steps
        assert 0.9 < row.least_share <= 1.0
        assert (row.accused, row.found) == (0, 1.0)


def test_where_weights_have_moved_far_nobody_is_judged_but_in_a_first_step():
    run = manifest(1.0)
    rows = recompute.train(load_run(files_of(run)), files_of(run))
    for row in rows:
        assert row.wrong_by_a_tenth < likenesses.EXACT < likenesses.EXACT_DOUBTED < row.bf16 < 1.0
        assert row.last_step < 0.4
        assert row.accused == 0
        assert row.found < 0.9
