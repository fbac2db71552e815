"""Loose paths: every microbatch goes through all stages and back, nobody computes two things at once, and nobody waits
while there is work."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer.lab.paths import COST, Pass, inner_steps, schedule

speeds = st.lists(st.lists(st.integers(1, 8), min_size=1, max_size=4), min_size=1, max_size=5)


def work(each: Pass, stages: int) -> float:
    return COST["backward"] if each.stage == stages - 1 else COST[each.way]


@given(speeds, st.integers(0, 40))
def test_each_microbatch_goes_through_all_stages_and_back_by_the_same_members(stages, microbatches: int):
    done = schedule(stages, microbatches)
    last = len(stages) - 1
    for number in range(microbatches):
        own = [each for each in done if each.microbatch == number]
        there = [(each.way, each.stage) for each in own]
        assert there == [("forward", s) for s in range(last)] + [("backward", s) for s in range(last, -1, -1)]
        assert all(a.member == b.member for a in own for b in own if a.stage == b.stage)
    assert len(done) == microbatches * (2 * last + 1)


@given(speeds, st.integers(0, 40))
def test_a_member_does_one_thing_at_a_time_and_as_fast_as_it_is(stages, microbatches: int):
    done = schedule(stages, microbatches)
    assert [each.ended for each in done] == sorted(each.ended for each in done)
    for s, members in enumerate(stages):
        for m, speed in enumerate(members):
            own = [each for each in done if (each.stage, each.member) == (s, m)]
            begun = [each.ended - work(each, len(stages)) / speed for each in own]
            assert all(begin >= before.ended - 1e-9 for before, begin in zip(own, begun[1:], strict=False))


@pytest.mark.parametrize(("members", "share"), [([1], 0.95), ([1, 1, 1, 1], 0.95), ([1, 1, 2, 4], 0.8)], ids=str)
def test_members_of_any_speeds_are_busy_nearly_all_the_time_and_in_proportion(members: list[int], share: float):
    """Chains of members with the speeds 1, 1, 2, 4 that wait for each other would use half."""
    microbatches = 200 * sum(members)
    done = schedule([members] * 4, microbatches)
    bound = microbatches * (COST["forward"] + COST["backward"]) / sum(members)
    assert done[-1].ended < bound / share
    for stage in range(3):
        counts = [
            sum(each.way == "backward" and (each.stage, each.member) == (stage, m) for each in done)
            for m in range(len(members))
        ]
        assert counts == pytest.approx([200 * speed for speed in members], rel=0.2)


@pytest.mark.parametrize(
    "stages", [[[1], []], [[1], [0]], [[1], [-1]], [[1], [float("nan")]], [[1], [float("inf")]]], ids=str
)
def test_a_stage_without_members_or_one_that_never_ends_is_refused(stages):
    with pytest.raises(ValueError, match="members, and each member a positive speed"):
        schedule(stages, 1)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=8), st.integers(0, 300))
def test_inner_steps_are_shared_out_by_speed_and_none_is_left(shares: list[int], more: int):
    total = len(shares) + more
    steps = inner_steps(total, shares)
    assert sum(steps) == total
    assert min(steps) >= 1
    for mine, speed in zip(steps, shares, strict=True):
        exact = total * speed / sum(shares)
        assert mine <= max(1, exact + 1)


def test_steps_in_proportion_are_exact_where_they_can_be():
    assert inner_steps(80, [1, 1, 2, 4]) == [10, 10, 20, 40]
    assert inner_steps(80, [1, 1, 1, 1]) == [20] * 4
    with pytest.raises(ValueError, match="too few"):
        inner_steps(3, [1, 1, 1, 1])
