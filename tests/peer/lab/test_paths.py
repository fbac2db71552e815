"""Loose paths: every microbatch goes through all stages and back, nobody computes two things at once, and nobody waits
while there is work."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer.lab.paths import AWAY, COST, Absence, Pass, absences, schedule

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


links = st.sampled_from([0.0, 0.3, 2.0, 7.5])


@st.composite
def disturbed(draw: st.DrawFn) -> tuple[list[list[int]], list[Absence]]:
    """Members, and their absences: of one member they do not overlap, and sometimes all of a stage are away."""
    stages = draw(speeds)
    found = []
    for stage, members in enumerate(stages):
        for member in range(len(members)):
            times = sorted(draw(st.lists(st.floats(0, 120), max_size=4, unique=True)))
            found += [Absence(stage, member, *pair) for pair in zip(times[::2], times[1::2], strict=False)]
    return stages, found


@given(disturbed(), st.integers(0, 30), links)
def test_whoever_comes_and_goes_each_text_goes_through_once_and_back_and_who_is_away_computes_nothing(
    pool, microbatches: int, link: float
):
    stages, away = pool
    done = schedule(stages, microbatches, link, away)
    last, through = len(stages) - 1, []
    for number in {each.microbatch for each in done}:
        own = [each for each in done if each.microbatch == number]
        there = [("forward", s) for s in range(last)] + [("backward", s) for s in range(last, -1, -1)]
        assert [(each.way, each.stage) for each in own] == there[: len(own)]
        assert all(a.member == b.member for a in own for b in own if a.stage == b.stage)
        assert len({each.text for each in own}) == 1
        through += [own[0].text] if len(own) == len(there) else []
        for before, after in pairwise(own):
            begun = after.ended - work(after, len(stages)) / stages[after.stage][after.member]
            assert begun >= before.ended + link - 1e-9
    assert sorted(through) == list(range(microbatches))
    for each in done:
        begun = each.ended - work(each, len(stages)) / stages[each.stage][each.member]
        assert not any(
            (one.stage, one.member) == (each.stage, each.member)
            and one.begins < each.ended - 1e-9
            and begun + 1e-9 < one.ends
            for one in away
        )


@given(disturbed(), st.integers(1, 30), links)
def test_a_gradient_comes_back_through_nobody_who_was_away_since_the_activations_went(
    pool, microbatches: int, link: float
):
    stages, away = pool
    done = schedule(stages, microbatches, link, away)
    first = {(each.microbatch, each.stage): each.ended for each in done if each.way == "forward"}
    for each in done:
        went = first.get((each.microbatch, each.stage)) if each.way == "backward" else None
        for one in away if went is not None else ():
            assert (one.stage, one.member) != (each.stage, each.member) or not went <= one.begins < each.ended - 1e-9


def test_what_a_kill_costs_is_what_was_in_flight_through_the_killed_member():
    """And what is drawn of these again is all that it costs: the others go on."""
    members, microbatches, killed_at = [[1, 1, 2, 4]] * 4, 800, 100.0
    calm = schedule(members, microbatches)
    killed = schedule(members, microbatches, absences=[Absence(2, 3, killed_at, killed_at + 0.5)])
    went = {each.microbatch for each in killed if (each.way, each.stage, each.member) == ("forward", 2, 3)}
    back = {each.microbatch for each in killed if (each.way, each.stage, each.member) == ("backward", 2, 3)}
    lost = max(each.microbatch for each in killed) + 1 - microbatches
    assert 1 <= lost <= len(went - back) + 2  # and what it computed, or had not begun
    assert [each for each in killed if each.ended <= killed_at] == [each for each in calm if each.ended <= killed_at]
    others = [
        [each for each in done if killed_at < each.ended <= killed_at + 8 and (each.stage, each.member) != (2, 3)]
        for done in (killed, calm)
    ]
    assert len(others[0]) > 0.85 * len(others[1])


def test_how_often_members_go_away_and_for_how_long():
    members, microbatches = [[1, 3]] * 50, 1000
    whole = microbatches * 4 / 4
    found = absences(members, microbatches, 2.0, (7, 3))
    assert found == absences(members, microbatches, 2.0, (7, 3))
    assert found != absences(members, microbatches, 2.0, (7, 4))
    assert absences(members, microbatches, 0.0, (7, 3)) == []
    assert 130 <= len(found) <= 200  # 200, less those that would begin while a member is away
    assert all(each.ends - each.begins == pytest.approx(AWAY * whole) and each.begins < whole for each in found)
    for one in found:
        own = [each for each in found if (each.stage, each.member) == (one.stage, one.member) and each != one]
        assert all(each.begins >= one.ends or each.ends <= one.begins for each in own)


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
