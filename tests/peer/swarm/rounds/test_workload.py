"""How many inner steps a replica takes in a round, by what it has seen of the others' speeds."""

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer.swarm.rounds.workload import SPEED_ROUNDS, TRAVEL_SECONDS, UNEVEN, Speeds, Workload
from protocol.events.decisions import GoalChanged
from protocol.events.event import Event
from protocol.identity import EMBEDDING, PeerId
from protocol.outer.data_plan import Reading, chunks, first_chunks
from tests.reference.small_manifest import small_manifest

ME, OTHER, THIRD = PeerId("me"), PeerId("other"), PeerId("third")
H, MOST = 20, 100


def after(own: float, other: float, steps: int = H, others: int = H) -> Speeds:
    """What is known after a round in which this peer's contribution came after `own` seconds, and the other's later."""
    speeds = Speeds()
    speeds.note({ME: own, OTHER: other}, {ME: steps, OTHER: others}, ME)
    return speeds


def test_nobody_who_knows_nothing_takes_more():
    assert Speeds().goal(H, MOST) == H
    speeds = Speeds()
    speeds.note({OTHER: 100.0}, {OTHER: H}, ME)  # this peer was away
    speeds.note({ME: 100.0}, {ME: H}, ME)  # it was alone
    speeds.note({ME: 10.0, OTHER: 100.0}, {ME: H, OTHER: 0}, ME)  # nobody else did a step
    assert speeds.goal(H, MOST) == H


def test_as_many_as_there_is_time_for_while_the_slowest_takes_the_usual_number():
    assert after(10.0, 30.0 + TRAVEL_SECONDS).goal(H, MOST) == 3 * H
    assert after(10.0, 30.0 + TRAVEL_SECONDS, steps=2 * H).goal(H, MOST) == 6 * H - H  # no more than there may be
    assert after(10.0, 30.0 + TRAVEL_SECONDS, others=H // 2).goal(H, 1000) == 6 * H
    speeds = Speeds()
    speeds.note({ME: 10.0, OTHER: 12.0, THIRD: 42.0}, {ME: H, OTHER: H, THIRD: H}, ME)
    assert speeds.goal(H, MOST) == 4 * H


def test_who_is_as_quick_as_the_others_or_slower_takes_the_usual_number():
    for other in (5.0, 10.0, 10.0 * UNEVEN + TRAVEL_SECONDS - 0.01):
        assert after(10.0, other).goal(H, MOST) == H
    assert after(10.0, 10.0 * UNEVEN + TRAVEL_SECONDS).goal(H, MOST) == int(UNEVEN * H)


def test_one_round_that_was_unlike_the_others_changes_nothing():
    speeds = Speeds()
    for other in (30.0, 30.0, 300.0, 30.0):
        speeds.note({ME: 10.0, OTHER: other + TRAVEL_SECONDS}, {ME: H, OTHER: H}, ME)
    assert speeds.goal(H, 1000) == 3 * H
    for _ in range(SPEED_ROUNDS):
        speeds.note({ME: 10.0, OTHER: 10.0}, {ME: H, OTHER: H}, ME)
    assert speeds.goal(H, 1000) == H


@given(st.floats(0.1, 1000.0), st.floats(0.1, 1000.0), st.integers(1, MOST), st.integers(1, MOST))
def test_a_goal_is_never_less_than_the_usual_number_nor_more_than_the_most(own, other, steps, others):
    assert H <= after(own, other, steps, others).goal(H, MOST) <= MOST


@given(st.floats(5.0, 1000.0), st.floats(0.0, 0.2))
def test_two_that_are_even_do_not_drive_each_other_on(seconds: float, travels: float):
    """Each sees the other's contribution later than its own, round after round, and however many steps they take."""
    one, other, steps, others = Speeds(), Speeds(), H, H
    for _ in range(40):
        late = TRAVEL_SECONDS + travels * seconds
        one.note({ME: seconds * steps / H, OTHER: seconds * others / H + late}, {ME: steps, OTHER: others}, ME)
        other.note({ME: seconds * others / H, OTHER: seconds * steps / H + late}, {ME: others, OTHER: steps}, ME)
        steps, others = one.goal(H, MOST), other.goal(H, MOST)
    assert (steps, others) == (H, H)


# What a round is planned to be


def workload(said: list[Event], **inner: int) -> Workload:
    manifest = small_manifest(inner={"steps": H, **inner}, outer={"weights": "steps"})
    followed: Any = SimpleNamespace(
        reading=Reading.begin(manifest), me=ME, parts={EMBEDDING: SimpleNamespace(steps={1: {ME: H, OTHER: H}})}
    )
    discovery: Any = SimpleNamespace(record=SimpleNamespace(slot=1))
    return Workload(manifest, followed, discovery, said.append)


def test_a_share_has_a_chunk_for_each_step_and_a_change_is_told_once():
    said: list[Event] = []
    work = workload(said, most_steps=MOST)
    whole = work.followed.reading.share(1, 1, work.manifest)
    assert work.begin(1) == first_chunks(whole, H)
    work.note(1, 50.0, {ME: 10.0, OTHER: 30.0 + TRAVEL_SECONDS}, [ME, OTHER])
    assert work.begin(2) == work.share(2)
    assert len([*chunks(work.share(2))]) == 3 * H
    work.begin(3)
    (told,) = said
    assert told == GoalChanged(2, 3 * H, 3.0)
    assert "3.0 times" in told.words
    upcoming = [*work.upcoming(1, whole, 90)]
    assert upcoming[:10] == [*chunks(whole)][90:]
    assert upcoming[10 : 10 + 3 * H] == [*chunks(work.share(2))]


def test_who_is_awaited_and_does_not_come_is_at_least_as_slow_as_the_round_was_long():
    said: list[Event] = []
    work = workload(said, most_steps=MOST)
    work.note(1, 42.0, {ME: 10.0}, [ME, THIRD])
    work.begin(2)
    assert work.goal == 4 * H


@pytest.mark.parametrize("noise", [0.96, 1.04])
def test_a_goal_that_hardly_changes_stays(noise: float):
    said: list[Event] = []
    work = workload(said, most_steps=MOST)
    work.note(1, 50.0, {ME: 10.0, OTHER: 30.0 + TRAVEL_SECONDS}, [])
    work.begin(2)
    for _ in range(SPEED_ROUNDS):
        work.note(1, 50.0, {ME: 10.0, OTHER: noise * 30.0 + TRAVEL_SECONDS}, [])
    work.begin(3)
    assert work.goal == 3 * H
    assert len(said) == 1
    for _ in range(SPEED_ROUNDS):
        work.note(1, 50.0, {ME: 10.0, OTHER: (1 + 2 * (noise - 1)) * 30.0 + TRAVEL_SECONDS}, [])
    work.begin(3)
    assert work.goal == pytest.approx((1 + 2 * (noise - 1)) * 3 * H, abs=1)
    said.pop()
    for _ in range(SPEED_ROUNDS):
        work.note(1, 50.0, {ME: 10.0, OTHER: 10.0}, [])
    work.begin(4)
    assert said[1:] == [GoalChanged(4, H, 0.8)]


def test_only_who_may_take_more_steps_and_sees_what_replicas_contribute_looks_at_it():
    assert workload([], most_steps=MOST).looks
    assert not workload([]).looks
    of_a_later_stage = workload([], most_steps=MOST)
    of_a_later_stage.followed.parts.clear()
    assert not of_a_later_stage.looks
