"""The order of passes: what it keeps whatever comes late, and that it does not stand still."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer.compute.schedule import (
    SPARE,
    Action,
    Backward,
    Forward,
    Schedule,
    depth_for,
    least_depth,
)
from protocol.codec.frames import MOST_IN_FLIGHT
from tests.reference.virtual_pipeline import Taken, play, play_round

ROOM = 10_000
pipelines = st.tuples(st.integers(1, 5), st.integers(1, 12))


def one_forward_one_backward(stage: int, stages: int, microbatches: int) -> list[Action]:
    """The textbook's order: as many forward passes as there are stages behind, then one of each."""
    ahead = min(stages - 1 - stage, microbatches)
    actions: list[Action] = [Forward(each) for each in range(ahead)]
    for microbatch in range(microbatches):
        if microbatch + ahead < microbatches:
            actions.append(Forward(microbatch + ahead))
        actions.append(Backward(microbatch))
    return actions


@given(pipelines)
def test_over_links_that_take_no_time_it_is_1f1b(pipeline: tuple[int, int]):
    stages, microbatches = pipeline
    depths = [least_depth(stage, stages) for stage in range(stages)]
    played = play(stages, microbatches, depths, lambda *_: 1.0, lambda *_: 0.0)
    assert played.actions == [one_forward_one_backward(stage, stages, microbatches) for stage in range(stages)]
    assert played.seconds == 2 * (microbatches + stages - 1)


@given(pipelines, st.data())
def test_whatever_is_late_all_go_forward_and_back_in_order_and_no_more_are_in_flight_than_allowed(
    pipeline: tuple[int, int], data: st.DataObject
):
    stages, microbatches = pipeline
    depths = [data.draw(st.integers(1, 3 * stages)) for _ in range(stages)]
    some_time = st.floats(0.0, 5.0)
    played = play(
        stages, microbatches, depths, lambda *_: data.draw(some_time), lambda *_: data.draw(some_time), latency=0.5
    )
    for actions, depth, most in zip(played.actions, depths, played.most_in_flight, strict=True):
        assert [each.microbatch for each in actions if isinstance(each, Forward)] == list(range(microbatches))
        assert [each.microbatch for each in actions if isinstance(each, Backward)] == list(range(microbatches))
        assert all(actions.index(Forward(each)) < actions.index(Backward(each)) for each in range(microbatches))
        assert most <= depth


def bound(stages: int, microbatches: int, passes: float, carry: float, latency: float) -> float:
    """The step's time by the model of `reference-numbers`: the slower of passes and link for all microbatches but one,
    and the way of that one through all stages and back."""
    hop = carry + latency
    return (microbatches - 1) * max(passes, carry) + stages * passes + 2 * (stages - 1) * hop


@pytest.mark.parametrize("carry", [0.0, 0.1, 0.2, 0.5, 0.9])
@pytest.mark.parametrize("latency", [0.0, 0.02, 0.3])
@pytest.mark.parametrize("stages", [2, 4, 6])
def test_with_the_depth_that_the_first_microbatch_shows_the_next_step_hides_its_links(
    stages: int, carry: float, latency: float
):
    """Passes take 1, a third of it forward; a link is busy for `carry` with a frame."""
    passes = {Forward: 1 / 3, Backward: 2 / 3}

    def step(depths: list[int]) -> tuple[float, list[float]]:
        played = play(stages, 64, depths, lambda _, action: passes[type(action)], lambda *_: carry, latency)
        return played.seconds, played.trips

    shallow, trips = step([least_depth(stage, stages) for stage in range(stages)])
    deep, _ = step([*(depth_for(trip, 1.0, stage, stages, ROOM) for stage, trip in enumerate(trips)), 1])
    assert deep <= shallow
    assert deep <= 1.035 * bound(stages, 64, 1.0, carry, latency)


def test_1f1b_alone_stands_still_over_a_slow_link():
    """What a link takes is added to every round trip of a microbatch: 4 stages, a frame takes 0.2 of the passes."""
    played = play(4, 64, [4, 3, 2, 1], lambda *_: 0.5, lambda *_: 0.2)
    deeper = play(4, 64, [8, 6, 5, 1], lambda *_: 0.5, lambda *_: 0.2)
    assert played.seconds > 1.2 * bound(4, 64, 1.0, 0.2, 0.0)
    assert deeper.seconds < 1.01 * bound(4, 64, 1.0, 0.2, 0.0)


@given(st.integers(2, 6), st.floats(0, 100), st.floats(1e-3, 10), st.integers(0, 40), st.data())
def test_a_depth_is_at_least_that_of_1f1b_and_bounded(
    stages: int, trip: float, passes: float, room: int, data: st.DataObject
):
    stage = data.draw(st.integers(0, stages - 2))
    depth = depth_for(trip, passes, stage, stages, room)
    assert least_depth(stage, stages) <= depth <= max(min(room, MOST_IN_FLIGHT * stages), least_depth(stage, stages))
    assert depth_for(trip, 0.0, stage, stages, room) == least_depth(stage, stages)
    if least_depth(stage, stages) < depth < min(room, MOST_IN_FLIGHT * stages):
        assert depth == 1 + math.ceil(trip / passes) + SPARE


@given(st.integers(2, 6), st.integers(1, 12), st.data())
def test_once_every_frame_has_come_no_two_neighbours_wait_for_each_other(
    stages: int, microbatches: int, data: st.DataObject
):
    """Two neighbours between which nothing is under way: what one has sent, the other has taken, or cannot take yet."""
    stage = data.draw(st.integers(0, stages - 2))
    forwards = data.draw(st.integers(0, microbatches))
    backwards = data.draw(st.integers(0, forwards))
    one, other = (
        Schedule(each, stages, microbatches, 99, begun=forwards, backwards=backwards) for each in (stage, stage + 1)
    )
    assert (one.forwards, one.backwards) == (forwards, backwards)
    if not one.done:
        assert not (isinstance(one.due, Backward) and isinstance(other.due, Forward))


@given(pipelines, st.integers(1, 4), st.integers(1, 4), st.data())
def test_with_overlap_as_many_passes_are_late_as_is_agreed_whatever_the_links_do(
    pipeline: tuple[int, int], steps: int, overlap: int, data: st.DataObject
):
    """Those of the first microbatches of a step, and nobody waits in a circle."""
    stages, more = pipeline
    microbatches = overlap * (stages - 1) + more
    some_time = st.floats(0.0, 5.0)
    _, actions = play_round(
        stages, microbatches, steps, overlap, lambda *_: data.draw(some_time), lambda: data.draw(some_time)
    )
    everything = range(steps * microbatches)
    for stage, of in enumerate(actions):
        assert [each.microbatch for each in of if isinstance(each, Forward)] == [*everything]
        assert [each.microbatch for each in of if isinstance(each, Backward)] == [*everything]
        for step in range(steps):
            taken = of.index(Taken(step))
            forward = sum(isinstance(each, Forward) for each in of[:taken])
            backward = sum(isinstance(each, Backward) for each in of[:taken])
            early = overlap * (stages - 1 - stage) if step + 1 < steps else 0
            assert (forward, backward) == ((step + 1) * microbatches + early, (step + 1) * microbatches)


@pytest.mark.parametrize(("latency", "overlap"), [(0.0, 1), (0.4, 2), (0.9, 3)])
@pytest.mark.parametrize("stages", [2, 4, 8])
def test_with_overlap_a_pipeline_fills_and_drains_once_a_round(latency: float, overlap: int, stages: int):
    """An overlap of 1 + (there and back) / passes hides the links."""
    microbatches, steps = max(8, overlap * (stages - 1)), 10
    passes = {Forward: 1 / 3, Backward: 2 / 3}
    seconds, _ = play_round(
        stages, microbatches, steps, overlap, lambda _, action: passes[type(action)], lambda: latency
    )
    round_trip = (stages - 1) * (1 + 2 * latency)
    assert seconds <= steps * microbatches + round_trip + 1
    drained, _ = play_round(stages, microbatches, steps, 0, lambda _, action: passes[type(action)], lambda: latency)
    assert drained >= steps * (microbatches + (stages - 1) * (1 + latency)) - 1e-9


def test_slow_stages_in_a_row_do_not_leave_each_other_without_work():
    """A stage goes forth behind each pass back: else gradients come in heaps, and the stages behind wait meanwhile."""
    shares, passes = {Forward: 1 / 3, Backward: 2 / 3}, (1.0, 1.0, 1 / 8, 1 / 4)

    def seconds(stage: int, action: Action) -> float:
        return shares[type(action)] * passes[stage]

    hop, microbatches = 0.25, 8
    trips = [sum(passes[stage + 1 :]) + 2 * hop * (3 - stage) for stage in range(3)]
    depths = [*(depth_for(trip, passes[stage], stage, 4, ROOM) for stage, trip in enumerate(trips)), 1]
    played = play(4, microbatches, depths, seconds, lambda *_: 0.0, hop)
    assert played.seconds < microbatches + 2
    chance = random.Random(1)
    overlapping, _ = play_round(4, microbatches, 20, 2, seconds, lambda: chance.choice((0.2, 0.2, 0.2, 0.8)), 7)
    assert overlapping < 1.06 * 20 * microbatches
