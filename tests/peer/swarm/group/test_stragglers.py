"""How long a step may take, and who is held to account for one that does not end, tried on invented groups."""

from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer.compute.schedule import Forward, Schedule, least_depth
from peer.swarm.group.stage_round import STEP_POLL_SECONDS
from peer.swarm.group.stragglers import StepPace, first_seconds, patience_with
from protocol.patience import (
    FIRST_STEP_PATIENCE,
    FIRST_STEP_SECONDS,
    SHORTEST_STEP_BOUND_SECONDS,
    STEP_PATIENCE,
    TRUSTED_PATIENCE,
)

# How long


def test_a_first_step_may_take_as_long_as_the_model_and_this_machine_make_it():
    """A model of 178 million in four stages on a few cores: 16,384 tokens at 60 tokens a second."""
    assert first_seconds(16384, 60.0) == FIRST_STEP_PATIENCE * 16384 / 60 > 30 * 60
    assert first_seconds(16384, 1e5) == FIRST_STEP_SECONDS  # on a card it is nothing
    pace = StepPace(first=1000.0)
    assert pace.bound() == 1000.0
    pace.remember(50.0)
    assert pace.bound() == STEP_PATIENCE * 50.0


def test_a_step_may_take_many_usual_ones_but_never_less_than_a_moment_of_a_busy_machine():
    pace = StepPace()
    assert pace.bound() == FIRST_STEP_SECONDS
    pace.remember(0.1)
    assert pace.bound() == SHORTEST_STEP_BOUND_SECONDS
    for _ in range(3):
        pace.remember(30.0)
    assert pace.bound() == STEP_PATIENCE * 30.0


def test_one_slow_step_does_not_make_the_group_patient():
    pace = StepPace()
    for seconds in (1.0, 1.0, 500.0):
        pace.remember(seconds)
    assert pace.bound() == SHORTEST_STEP_BOUND_SECONDS


def test_who_is_at_a_tenth_of_the_speed_of_whom_it_replaced_holds_nobody_up():
    pace = StepPace()
    for _ in range(16):
        pace.remember(30.0)
    for _ in range(16):
        assert 0.6 * pace.bound() > 10 * 30.0
        pace.remember(10 * 30.0)


# What the first stage tells of it


def of_steps(seconds: float | None) -> StepPace:
    """A peer whose steps have taken so long; None: it has taken none."""
    pace = StepPace()
    if seconds is not None:
        pace.remember(seconds)
    return pace


def test_who_is_new_in_a_group_waits_as_long_as_its_first_stage_tells():
    assert of_steps(None).bound_in(300.0) == 300.0
    assert of_steps(1.0).bound_in(60.0) == 60.0


def test_in_a_first_step_that_is_usually_quick_who_is_new_waits_no_longer_than_the_others():
    assert of_steps(None).bound_in(SHORTEST_STEP_BOUND_SECONDS) == SHORTEST_STEP_BOUND_SECONDS < FIRST_STEP_SECONDS


def test_nobody_is_made_impatient_or_much_too_patient_by_what_is_told():
    assert of_steps(30.0).bound_in(0.0) == STEP_PATIENCE * 30.0 / TRUSTED_PATIENCE
    assert of_steps(1.0).bound_in(0.0) == SHORTEST_STEP_BOUND_SECONDS
    assert of_steps(None).bound_in(0.0) == SHORTEST_STEP_BOUND_SECONDS
    assert of_steps(30.0).bound_in(1e300) == TRUSTED_PATIENCE * STEP_PATIENCE * 30.0
    assert of_steps(None).bound_in(1e300) == TRUSTED_PATIENCE * FIRST_STEP_SECONDS


@given(st.one_of(st.none(), st.floats(0.0, 1e6)), st.floats(0.0, 1e9), st.floats(0.0, 1e9))
def test_whatever_is_told_it_counts_within_bounds_and_more_is_never_less(
    own: float | None, told: float, another: float
):
    pace, (less, more) = of_steps(own), sorted((told, another))
    least, most = (
        (pace.bound() / TRUSTED_PATIENCE if own is not None else SHORTEST_STEP_BOUND_SECONDS),
        TRUSTED_PATIENCE * pace.bound(),
    )
    assert max(SHORTEST_STEP_BOUND_SECONDS, least) <= pace.bound_in(less) <= pace.bound_in(more) <= most
    if max(SHORTEST_STEP_BOUND_SECONDS, least) <= told <= most:  # so all of a group have one bound
        assert pace.bound_in(told) == told


# Who waits for whom


@dataclass
class Step:
    """An inner step, as each stage goes through it over links that take no time, until nobody can do any more."""

    stages: list[Schedule]
    left: list[int]
    """What each stage does at most: the culprit stops."""
    sums: set[int] = field(default_factory=set)
    """Who has told the stage before it of its gradients."""
    ends: set[int] = field(default_factory=set)
    """Who knows whether another step follows, where that is told in the middle of one."""

    def act(self, stage: int, late: int) -> bool:
        """The next thing that a stage can do; whether there is any."""
        todo, last = self.stages[stage], len(self.stages) - 1
        if todo.summed and stage not in self.sums:
            if able := stage == last or stage + 1 in self.sums:
                self.sums.add(stage)
            return able
        if todo.asks and (not stage or stage - 1 in self.ends):
            self.ends.add(stage)
            todo.more = late * (last - stage)
            return True
        forth = not stage or self.stages[stage - 1].forwards > todo.forwards
        back = stage == last or self.stages[stage + 1].backwards > todo.backwards
        return todo.next(forth, back) is not None

    def play(self, late: int) -> None:
        able = True
        while able:
            able = False
            for stage, left in enumerate(self.left):
                if left and self.act(stage, late):
                    able, self.left[stage] = True, left - 1

    def waits_downstream(self, stage: int) -> bool:
        """Of the stages beside it, for which one does a stage wait?"""
        todo = self.stages[stage]
        if todo.summed and stage not in self.sums:
            return True
        return not (todo.done or isinstance(todo.due, Forward))


@given(st.data())
def test_wherever_a_stage_stops_all_others_come_to_wait_in_its_direction(data: st.DataObject):
    """However many microbatches each may have in flight, with overlapping steps or without."""
    count, late = data.draw(st.integers(2, 6)), data.draw(st.integers(0, 2))
    microbatches = late * (count - 1) + data.draw(st.integers(1, 8))
    depths = [
        max(least_depth(stage, count) + data.draw(st.integers(0, 9)), late * (count - 1 - stage) + 1)
        for stage in range(count)
    ]
    stages = [Schedule(stage, count, microbatches, depth, 0, None if late else 0) for stage, depth in enumerate(depths)]
    step, culprit = Step(stages, [10**6] * count), data.draw(st.integers(0, count - 1))
    step.left[culprit] = data.draw(st.integers(0, 2 * microbatches))  # it never gets to its last gradients and sums
    step.play(late)
    for stage in {*range(count)} - {culprit}:
        assert step.waits_downstream(stage) == (stage < culprit)


# Who is held to account

NEWS_SECONDS = 1.0
"""So long the news that a link has ended may be on its way to the next stage, on a busy machine."""


@dataclass
class Held:
    """A group in a step that `culprit` does not go on with, while it gives signs of life. All others have done what
    they can without it, and wait for what should come from its side."""

    stages: int
    culprit: int
    bound: float
    begun: list[float]
    """When the step began at each stage."""
    free: dict[int, float] = field(default_factory=dict)
    """When each has learned that the group is broken."""
    acts: list[tuple[int, int]] = field(default_factory=list)
    """Who has hung up on whom for it, in that order."""

    def waits_for(self, stage: int) -> int:
        """The neighbour on the culprit's side."""
        return stage + (1 if self.culprit > stage else -1)

    def looks(self, stage: int) -> float:
        """When a stage holds its neighbour to account: at the first look after so long."""
        neighbour = self.waits_for(stage)
        side = self.stages - 1 - stage if neighbour > stage else stage
        return self.begun[stage] + STEP_POLL_SECONDS * ceil(patience_with(self.bound, side) / STEP_POLL_SECONDS)

    def play(self) -> "Held":
        """Until all others are free. Who hangs up on one neighbour hangs up on the other one, too, and so does who
        learns of it; the culprit passes nothing on."""
        others = {*range(self.stages)} - {self.culprit}
        due = [(self.looks(stage), stage, True) for stage in others]
        heapify(due)
        while due:
            now, stage, looks = heappop(due)
            if stage in self.free:
                continue
            self.free[stage] = now
            if looks:
                self.acts.append((stage, self.waits_for(stage)))
            for beside in {stage - 1, stage + 1} & others:
                heappush(due, (now + NEWS_SECONDS, beside, False))
        return self


def held(stages: int, culprit: int, usual: float = 0.1) -> Held:
    """All begin at the same time."""
    return Held(stages, culprit, max(SHORTEST_STEP_BOUND_SECONDS, STEP_PATIENCE * usual), [0.0] * stages).play()


@pytest.mark.parametrize(("stages", "culprit"), [(of, at) for of in range(2, 9) for at in range(of)])
def test_whoever_holds_a_step_up_only_its_neighbours_hang_up_on_whom_they_wait_for(stages: int, culprit: int):
    made = held(stages, culprit)
    beside = {stage for stage in (culprit - 1, culprit + 1) if 0 <= stage < stages}
    assert {*made.acts} == {(stage, culprit) for stage in beside}
    assert made.free.keys() == {*range(stages)} - {culprit}


@given(st.data())
def test_also_where_the_step_does_not_begin_at_the_same_time_everywhere(data: st.DataObject):
    """It begins within a usual step at all stages; a look may come up to a second late, and so may news."""
    stages = data.draw(st.integers(2, 64))
    culprit = data.draw(st.integers(0, stages - 1))
    usual = data.draw(st.floats(0.001, 600.0))
    begun = data.draw(st.lists(st.floats(0.0, usual), min_size=stages, max_size=stages))
    made = Held(stages, culprit, max(SHORTEST_STEP_BOUND_SECONDS, STEP_PATIENCE * usual), begun).play()
    assert {accused for _, accused in made.acts} == {culprit}
    for stage, at in made.free.items():
        if abs(stage - culprit) > 1:  # it has learned of it before its own patience was at an end
            assert at < made.looks(stage)


def test_the_sooner_a_neighbour_is_held_to_account_the_nearer_it_is_to_the_end_of_the_group():
    waits = [patience_with(20.0, stages) for stages in range(1, 5)]
    assert waits == [20.0, 25.0, 30.0, 35.0]
