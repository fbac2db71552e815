"""k by link: a group finds the largest whose frames hide behind its passes, and says why."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer.swarm.group.compression import MOST_PATIENCE, PATIENCE, SLOW_STRETCH_RATIO, START, KController, stretch
from tests.reference.small_manifest import small_manifest

AUTO = small_manifest(model={"d": 64}, replicas={"compression": "auto"})


def step(link: float, compression: int, beside: float = 1.0) -> float:
    """How many times its passes a step takes on links that carry frames of d / `link` numbers a token as quickly as
    stages compute, when whatever else it waits for makes it `beside` times as long."""
    return max(1.0, link / compression) * beside


class Group:
    """One that takes a step a round."""

    def __init__(self, link: float, beside: float = 1.0) -> None:
        self.link, self.beside = link, beside
        self.k_controller = KController.of(AUTO)

    def play(self, rounds: int) -> list[int]:
        """d / k of each of the next rounds."""
        had = []
        for _ in range(rounds):
            had.append(self.k_controller.current)
            self.k_controller.steps.append(step(self.link, self.k_controller.current, self.beside))
            self.k_controller.decide()
        return had


def best(link: float) -> int:
    """The largest k that makes no step slower."""
    quickest = min(step(link, each) for each in AUTO.compressions)
    return min(each for each in AUTO.compressions if step(link, each) <= SLOW_STRETCH_RATIO * quickest)


def test_a_group_begins_at_the_papers_ratio_or_the_nearest_that_its_model_has():
    assert KController.of(AUTO).current == START
    assert KController.of(small_manifest(replicas={"compression": 4})).current == 4


@given(st.floats(0.1, 500), st.floats(1.0, 3.0))
def test_it_comes_to_the_largest_k_that_makes_no_step_slower_whatever_else_holds_steps_up(link: float, beside: float):
    had = Group(link, beside).play(400)
    assert set(had) <= set(AUTO.compressions)
    assert had[-MOST_PATIENCE:].count(best(link)) >= MOST_PATIENCE - 4


@given(st.floats(0.1, 500))
def test_on_links_that_decide_it_comes_there_within_a_few_rounds(link: float):
    had = Group(link).play(len(AUTO.compressions) + 3)
    assert best(link) in had[-3:]


@given(st.floats(0.1, 500), st.floats(0.1, 500))
def test_it_follows_links_that_change(link: float, later: float):
    group = Group(link)
    group.play(20)
    group.link = later
    had = group.play(400)
    assert had[-MOST_PATIENCE:].count(best(later)) >= MOST_PATIENCE - 4


def test_on_a_very_slow_link_it_does_not_go_down_step_by_step():
    assert Group(link=60.0).play(2) == [8, 64]


def test_what_was_too_much_is_tried_again_later_and_later():
    had = Group(link=8.0).play(300)
    tried = [round for round, each in enumerate(had) if each < 8]
    waits = [there - here for here, there in pairwise(tried)]
    assert waits == sorted(waits)
    assert tried[0] == 1
    assert PATIENCE <= waits[0] <= PATIENCE + 2
    assert len(tried) <= 8


def test_a_round_without_an_inner_step_says_nothing_of_the_links():
    k_controller = KController.of(AUTO)
    assert k_controller.decide() == ""
    assert k_controller.current == START


def test_one_bad_step_decides_nothing():
    k_controller = KController((8, 16), 4, False, 8)
    k_controller.steps = [1.0, 9.0, 1.0]
    assert k_controller.decide() == ""


def test_it_says_what_it_has_found():
    group = Group(link=8.0)
    group.k_controller.steps.append(1.0)
    assert group.k_controller.decide() == (
        "k = d/4 from the next round on: to see whether it hides; at d/8 a step took 1.0 times its passes"
    )
    group.k_controller.steps.append(2.0)
    assert group.k_controller.decide() == (
        "k = d/8 from the next round on: at d/4 a step took 2.0 times its passes, and 1.0 times at d/8"
    )


def test_where_the_manifest_says_k_there_is_nothing_to_choose():
    k_controller = KController.of(small_manifest(replicas={"compression": 4}))
    for each in (1.0, 50.0):
        k_controller.steps.append(each)
        assert k_controller.decide() == ""
        assert k_controller.current == 4


def test_a_step_that_never_waits_has_stretch_one():
    """Four stages of which the second is the slowest; sixteen microbatches."""
    passes = [1.0, 3.0, 2.0, 1.0]
    assert stretch(7.0 + 15 * 3.0, passes, 16, overlaps=False) == 1.0
    assert stretch(2 * (7.0 + 15 * 3.0), passes, 16, overlaps=False) == pytest.approx(2.0)
    assert stretch(16 * 3.0, passes, 16, overlaps=True) == 1.0
    assert stretch(7.0 + 15 * 3.0, passes, 16, overlaps=True) == pytest.approx(52 / 48)


@pytest.mark.parametrize("passes", [[0.0, 0.0], [1e300, 1e300]])
def test_a_liar_makes_no_stretch_below_one(passes: list[float]):
    assert stretch(1.0, passes, 16, overlaps=False) == 1.0


def test_a_little_more_than_the_passes_is_filling_the_pipeline_and_no_reason_for_a_smaller_k():
    k_controller = KController((8, 16), 4, False, 8)
    k_controller.steps.append(SLOW_STRETCH_RATIO)
    assert k_controller.decide() == ""
