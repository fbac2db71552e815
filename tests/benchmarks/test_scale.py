"""A round of ten replicas in virtual time: what must hold whatever the policy is."""

import pytest

from benchmarks.virtual.measure import Conditions, Measured, measure
from protocol.identity import stage_part
from tests.reference.small_manifest import small_manifest

REPLICAS = 10


@pytest.fixture(scope="module", params=[0.0, 0.2, 1.0], ids=["volunteers", "mixed", "datacenters"])
def measured(request: pytest.FixtureRequest) -> Measured:
    conditions = Conditions(2e5, 1e6, 1e7, datacenters=request.param, latency=0.05, inner=60.0)
    return measure(small_manifest(), stage_part(0), REPLICAS, conditions, real=REPLICAS, seed=7)


def test_everybody_fetches_every_contribution_of_the_others_once(measured: Measured):
    assert measured.blobs_down.mean == measured.blobs_down.max == (REPLICAS - 1) * measured.blob


def test_what_comes_in_somewhere_went_out_elsewhere(measured: Measured):
    assert measured.blobs_up.mean == measured.blobs_down.mean
    assert measured.control_up.mean == measured.control_down.mean


def test_no_round_is_quicker_than_its_links(measured: Measured):
    assert measured.seconds >= measured.seconds_99 > 0
    assert measured.seconds >= measured.bound


def test_real_ledgers_answer_as_the_model_does(measured: Measured):
    assert measured.real_ledgers == REPLICAS
    assert measured.real_comparisons > 0


def test_no_uplink_carries_everything(measured: Measured):
    assert measured.blobs_up.max < REPLICAS * (REPLICAS - 1) * measured.blob / 2


def test_the_same_seed_plays_the_same_round():
    conditions = Conditions(2e5, 1e6, 1e7, datacenters=0.1, latency=0.05, inner=60.0)
    one, other = (measure(small_manifest(), stage_part(0), 20, conditions, real=2, seed=3) for _ in range(2))
    assert one == other
    assert one.real_ledgers == 2
