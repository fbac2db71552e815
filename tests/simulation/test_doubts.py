"""Groups in virtual time whose stages do spot checks: liars are found, and nobody else is blamed."""

import pytest

from tests.simulation.doubts import KINDS, play, play_many

ROUNDS = 400


@pytest.mark.timeout(300)
def test_liars_are_found_and_nobody_else_is_blamed():
    """A round is three to thirty steps long, and the observer is slow or down in some. Of what is made up one payload
    in twenty is false, and each stage checks one."""
    counts, wrong = play_many(range(ROUNDS))
    assert not wrong
    assert not counts["honest", True]
    for kind in KINDS[1:]:
        found, missed = counts[kind, True], counts[kind, False]
        assert found > (found + missed) * (0.07 if kind == "made-up" else 0.4), kind


def test_a_round_is_the_same_each_time_that_it_is_played():
    assert play(7) == play(7)
    assert play(7) != play(8)
