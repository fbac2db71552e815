"""Who has to go when a group does not get on, tried on invented groups."""

import pytest

from peer.swarm.group.stragglers import (
    FIRST_PATIENCE,
    FIRST_SECONDS,
    LEAST_SECONDS,
    PATIENCE,
    Accusations,
    StepPace,
    first_seconds,
    held_up,
)
from protocol.identity import PeerId

ONE, TWO, THREE = PeerId("one"), PeerId("two"), PeerId("three")
NOBODY, LEADER = PeerId(""), PeerId("leader")


def test_a_first_step_may_take_as_long_as_the_model_and_this_machine_make_it():
    """A model of 178 million in four stages on a few cores: 16,384 tokens at 60 tokens a second."""
    assert first_seconds(16384, 60.0) == FIRST_PATIENCE * 16384 / 60 > 30 * 60
    assert first_seconds(16384, 1e5) == FIRST_SECONDS  # on a card it is nothing
    pace = StepPace(first=1000.0)
    assert pace.bound() == 1000.0
    pace.remember(50.0)
    assert pace.bound() == PATIENCE * 50.0


def test_a_step_may_take_many_usual_ones_but_never_less_than_a_moment_of_a_busy_machine():
    pace = StepPace()
    assert pace.bound() == FIRST_SECONDS
    pace.remember(0.1)
    assert pace.bound() == LEAST_SECONDS
    for _ in range(3):
        pace.remember(30.0)
    assert pace.bound() == PATIENCE * 30.0


def test_one_slow_step_does_not_make_the_group_patient():
    pace = StepPace()
    for seconds in (1.0, 1.0, 500.0):
        pace.remember(seconds)
    assert pace.bound() == LEAST_SECONDS


def test_who_is_at_a_tenth_of_the_speed_of_whom_it_replaced_holds_nobody_up():
    pace = StepPace()
    for _ in range(16):
        pace.remember(30.0)
    for _ in range(16):
        assert 0.6 * pace.bound() > 10 * 30.0
        pace.remember(10 * 30.0)


@pytest.mark.parametrize(
    ("waited_for", "accuser", "culprit"),
    [
        ({ONE: NOBODY, TWO: ONE, THREE: TWO}, None, ONE),
        ({ONE: TWO, TWO: NOBODY, THREE: TWO}, ONE, TWO),
        ({ONE: TWO, TWO: THREE, THREE: NOBODY}, TWO, THREE),
        ({ONE: LEADER, TWO: ONE, THREE: TWO}, None, ONE),
        ({ONE: TWO, TWO: ONE, THREE: TWO}, ONE, TWO),
        ({ONE: ONE, TWO: ONE, THREE: TWO}, None, ONE),
    ],
    ids=[
        "the first", "the second", "the last", "who says it was the leader", "who points back", "who points at itself"
    ],
)  # fmt: skip
def test_the_last_that_names_no_other_member_held_the_step_up(
    waited_for: dict[PeerId, PeerId], accuser: PeerId | None, culprit: PeerId
):
    assert held_up(ONE, waited_for) == (accuser, culprit)


def test_who_is_accused_goes_but_who_accuses_a_second_one_goes_itself():
    accusations = Accusations()
    assert accusations.weigh(ONE, TWO) == TWO
    assert accusations.weigh(ONE, TWO) == TWO
    assert accusations.weigh(THREE, TWO) == TWO
    assert accusations.weigh(ONE, THREE) == ONE
