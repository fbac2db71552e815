"""Random faults are a function of their seed."""

from itertools import islice, takewhile

from hypothesis import given
from hypothesis import strategies as st

from peer.testnet.faults import After, Fault, Kill, Random
from peer.testnet.injection import draw

seeds = st.integers(0, 10**6)


def first(plan: Random, count: int = 30) -> list[Fault]:
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
