"""Random faults are a function of their seed, and a partition cuts no group in two."""

from itertools import islice, takewhile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer.testnet.chaos import parse_chaos
from peer.testnet.faults import After, Kill, Scheduled, Target
from peer.testnet.swarm import Swarm
from protocol.events.activity import GroupFormed
from tests.chaos.faults import Partition, Random
from tests.chaos.injection import draw, sides
from tests.chaos.notation import ALL_NOTATIONS

seeds = st.integers(0, 10**6)


def first(plan: Random, count: int = 30) -> list[Scheduled]:
    return list(islice(draw(plan, groups=3, stages=2), count))


@given(seeds)
def test_the_same_seed_draws_the_same_faults(seed: int):
    plan = Random(seed, 6.0, ("kill", "pause", "slow", "partition"))
    assert first(plan) == first(plan)


def test_another_seed_draws_others():
    assert first(Random(1, 6.0)) != first(Random(2, 6.0))


@given(seeds)
def test_they_come_in_order_and_hit_volunteers_that_there_are(seed: int):
    faults = first(Random(seed, 6.0))
    times = [fault.when.seconds for fault in faults if isinstance(fault.when, After)]
    assert len(times) == len(faults)
    assert times == sorted(times)
    for fault in faults:
        assert isinstance(fault, Kill)
        assert fault.back is not None
        assert fault.target.kind == "volunteer"
        assert fault.target.number in range(3)
        assert fault.target.stage in range(2)


def test_they_are_as_many_as_asked_on_average():
    hour = takewhile(lambda fault: fault.when.seconds < 3600, draw(Random(3, 6.0), 2, 2))
    assert 300 < len(list(hour)) < 420


def test_all_kinds_that_were_asked_for_come():
    kinds = {type(fault).__name__.lower() for fault in first(Random(5, 6.0, ("kill", "pause", "slow", "partition")))}
    assert kinds == {"kill", "pause", "slow", "partition"}


def formed(crossed: bool) -> Swarm:
    """Two groups, where wanted each with the stage 1 that is named after the other, and a datacenter."""
    made = Swarm.of(2, stages=2, datacenters=1)
    for process, replica in {
        "volunteer 1, stage 0": "A",
        "volunteer 2, stage 0": "B",
        "volunteer 1, stage 1": "B" if crossed else "A",
        "volunteer 2, stage 1": "A" if crossed else "B",
    }.items():
        made.take(process, GroupFormed(replica, 0, []))
    return made


@pytest.mark.parametrize("crossed", [False, True])
@pytest.mark.parametrize("spec", ["partition:half@rounds=1", "partition:group=0|group=1+datacenter=0@rounds=1"])
def test_no_group_is_cut_in_two(spec: str, crossed: bool):
    made = formed(crossed)
    (partition,) = parse_chaos(spec, ALL_NOTATIONS)
    assert isinstance(partition, Partition)
    one, other = sides(made, partition)
    assert not set(one) & set(other)
    for number in (0, 1):
        group = set(made.processes(Target("group", number)))
        assert group <= set(one) or group <= set(other)


def test_halves_are_everybody():
    (partition,) = parse_chaos("partition:half@rounds=1", ALL_NOTATIONS)
    assert isinstance(partition, Partition)
    one, other = sides(Swarm.of(2, stages=2, datacenters=1), partition)
    assert one == ["bootstrap", "volunteer 1, stage 0", "volunteer 1, stage 1", "datacenter 1"]
    assert other == ["volunteer 2, stage 0", "volunteer 2, stage 1"]
