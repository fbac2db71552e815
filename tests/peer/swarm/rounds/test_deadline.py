"""How long a round waits, from what was seen."""

import pytest

from peer.swarm.rounds.deadline import EARLY_SHARE, LAST, LEAST_SECONDS, ROUNDS_REMEMBERED, Pace, halfway


def test_nothing_is_waited_for_before_half_are_here():
    pace = Pace(3.0)
    assert pace.wait(0.0, [10.0], 4) is None
    assert pace.stop(0.0, [], 2) is None
    assert halfway([3.0, 1.0, 2.0], 5) == 3.0


def test_without_experience_a_round_waits_for_its_own_length():
    assert Pace(3.0).wait(100.0, [110.0, 112.0], 4) == pytest.approx(112 + 3 * 12)


def test_with_experience_it_waits_for_the_usual_delay():
    pace = Pace(3.0)
    for last in (115.0, 114.0, 116.0):
        pace.remember(100.0, [110.0, 112.0, last], 3)  # half of them were here at 112
    assert pace.wait(200.0, [212.0, 212.0], 3) == pytest.approx(212 + 3 * 3)


def test_a_contribution_that_comes_before_its_time_hurries_nobody():
    pace = Pace(3.0)
    for last in (115.0, 114.0, 116.0):
        pace.remember(100.0, [110.0, 112.0, last], 3)
    assert pace.wait(200.0, [201.0], 2) == pytest.approx(212 + 3 * 3)  # of a group that has broken


def test_a_slow_replica_stops_before_the_others_go_on():
    pace = Pace(2.0)
    pace.remember(80.0, [100.0, 105.0], 2)
    stop, wait = pace.stop(0.0, [30.0], 2), pace.wait(0.0, [30.0], 2)
    assert wait == 40.0
    assert stop == 30 + EARLY_SHARE * 10


def test_delays_too_small_to_measure_do_not_hurry_anybody():
    pace = Pace(2.0)
    pace.remember(99.0, [100.0, 100.001], 2)
    assert pace.wait(0.0, [100.0], 2) == pytest.approx(100 + 2 * 0.1 * 100)
    assert pace.wait(99.0, [100.0], 2) == pytest.approx(100 + 2 * LEAST_SECONDS)


def test_old_rounds_are_forgotten():
    pace = Pace(1.0)
    for round in range(3 * ROUNDS_REMEMBERED):
        pace.remember(0.0, [100.0, 150.0 if round < ROUNDS_REMEMBERED else 110.0], 2)
    assert pace.wait(0.0, [100.0], 2) == pytest.approx(110.0)


def test_who_was_made_to_stop_early_does_not_make_the_next_wait_longer():
    pace = Pace(3.0)
    pace.remember(0.0, [100.0, 110.0, 100.0 + 3 * 100.0], 3)  # the third came when the wait let it
    assert pace.wait(1000.0, [1100.0, 1110.0], 3) == pytest.approx(1110 + 3 * 0.1 * 110)


def test_it_is_known_how_long_rounds_usually_take_the_others():
    pace = Pace(3.0)
    assert pace.usual == 0.0
    for half in (110.0, 130.0, 111.0):
        pace.remember(100.0, [half, half + 1], 2)
    assert pace.usual == 11.0


STEPS = 100


def play(pace: Pace, seconds_of_slow_step: float, rounds: int) -> list[tuple[float, int]]:
    """Rounds of three replicas that take 100 s for all their steps, and of one that is slower: how long each round
    lasted, and how many steps the slow one did."""
    told = []
    for _ in range(rounds):
        quick = [100.0, 101.0, 102.0]
        stop, wait = pace.stop(0.0, quick, 4), pace.wait(0.0, quick, 4)
        assert stop is not None
        assert wait is not None
        steps = min(STEPS, 1 + int(stop / seconds_of_slow_step))  # it ends the step it is in
        slow = steps * seconds_of_slow_step
        arrivals = [*quick, slow] if slow <= wait else quick
        pace.remember(0.0, arrivals, 4)
        told.append((max(quick[-1], min(slow, wait)), steps))
    return told


def test_a_replica_at_a_tenth_of_the_speed_contributes_fewer_steps_and_does_not_slow_the_others_down():
    rounds = play(Pace(3.0), 10.0, 20)
    assert all(steps >= 10 for _, steps in rounds)
    assert all(seconds <= 1.4 * 100 for seconds, _ in rounds[2:])


def test_a_replica_that_is_a_little_slower_is_waited_for():
    assert all(steps == STEPS for _, steps in play(Pace(3.0), 1.2, 20))


def test_the_runs_last_contributions_are_waited_for_longer_and_nobody_trains_for_longer():
    pace = Pace(3.0)
    assert pace.wait(0.0, [100.0], 2, last=True) == pytest.approx(100 + LAST * 300)
    assert pace.stop(0.0, [100.0], 2) == pytest.approx(100 + EARLY_SHARE * 300)
