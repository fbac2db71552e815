"""When a round is over for a peer, and how long it waits, from what it has seen."""

import math
import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from peer.swarm.rounds import round_policy
from peer.swarm.rounds.round_policy import MOST_CREDIT, PACE_ROUNDS, Pace, PartSeen, RoundSeen, awaited, halfway
from protocol.identity import EMBEDDING, PeerId, stage_part
from protocol.patience import (
    BEHIND_ROUNDS,
    BEHIND_SECONDS,
    CREDIT_SHARE,
    EARLY_SHARE,
    LAST_ROUND_RATIO,
    RETURN_SECONDS,
    RETURN_SHARE,
    SHORTEST_WAIT_SECONDS,
)
from protocol.trust.records import PeerRecord, Peers
from tests.peer.swarm.test_roles import SWARM, peer


def part(awaited: str, **arrivals: float) -> PartSeen:
    return PartSeen(frozenset(map(PeerId, awaited)), frozenset(map(PeerId, arrivals)), [*arrivals.values()])


ROUND = RoundSeen(
    round=5,
    parts=[part("abc", a=110.0, b=112.0), part("ab", a=110.0, b=111.0)],
    started=100.0,
    passed=None,
    least=1,
    applied_in=6,
    is_last=False,
    others_at=4,
)
PACE = Pace(3.0)


def test_a_round_is_complete_when_all_parts_have_all_that_are_awaited_and_as_many_as_there_must_be():
    assert not round_policy.is_complete(ROUND)
    whole = replace(ROUND, parts=[part("abc", a=1.0, b=2.0, c=3.0), part("ab", a=1.0, b=2.0)])
    assert round_policy.is_complete(whole)
    assert not round_policy.is_complete(replace(whole, least=3))
    assert not round_policy.is_complete(replace(whole, parts=[part("")]))  # of nobody


def test_the_others_are_done_when_nobody_is_awaited_but_this_peer():
    me = PeerId("c")
    assert not round_policy.others_are_done(ROUND, PeerId("a"))
    assert round_policy.others_are_done(ROUND, me)  # a and b are here
    missing = replace(ROUND, parts=[ROUND.parts[0], part("ab", a=1.0)])
    assert not round_policy.others_are_done(missing, me)


@pytest.mark.parametrize(
    ("contributed", "members_at", "others", "abandoned"),
    [
        (4, [6, 6], [], True),
        (5, [6], [], False),  # its own contribution to the round exists
        (3, [6], [], False),  # it has missed more than this round
        (0, [6], [], False),  # a newcomer, who does not hold the state
        (4, [7], [], False),
        (4, [6, 5], [], False),  # one of them can go through the round with it
        (4, [], [], False),
        (4, [6], [peer("spare", round=4)], True),
        (4, [6], [peer("spare", round=5)], False),  # holds what this peer does not
        (4, [6], [peer("other", replica="other", round=4)], False),
        (4, [6], [peer("one", stage=1, replica="other", round=5)], True),
        (4, [6], [peer("center", role="datacenter", replica="center", round=4)], False),
    ],
)
def test_a_round_is_abandoned_if_its_members_have_gone_on_and_nobody_else_could_lead(
    contributed: int, members_at: list[int], others: list[PeerRecord], abandoned: bool
):
    me = peer("me", round=4, contributed=contributed)
    assert round_policy.is_abandoned(me, members_at, tuple(others)) is abandoned


def test_a_newcomer_to_a_run_has_nothing_to_give_up():
    assert not round_policy.is_abandoned(peer("me", round=0, contributed=0), [2], ())


@pytest.mark.parametrize(("others_at", "gone_on", "complete"), [(5, False, False), (6, True, False), (7, True, True)])
def test_with_overlap_the_others_have_gone_on_once_they_have_applied_the_round(others_at, gone_on, complete):
    seen = replace(ROUND, others_at=others_at)
    assert round_policy.others_have_gone_on(seen) is gone_on
    assert round_policy.is_complete(seen) is complete
    assert bool(round_policy.why_stop(seen, PACE, 100.0)) is gone_on


def test_the_slowest_part_decides_how_long_to_wait():
    both = round_policy.seconds_left(ROUND, PACE, 112.0)
    assert both == pytest.approx(3 * 12)  # half of three came at 112, half of two at 110
    assert round_policy.seconds_left(replace(ROUND, parts=ROUND.parts[1:]), PACE, 112.0) == pytest.approx(
        110 + 3 * 10 - 112
    )


def test_while_less_than_half_are_here_nothing_ends_the_wait_but_the_others():
    early = replace(ROUND, parts=[part("abc", a=110.0), ROUND.parts[1]])
    assert round_policy.seconds_left(early, PACE, 500.0) is None
    gone = replace(early, others_at=6)
    assert round_policy.seconds_left(gone, PACE, 500.0) == pytest.approx(3 * SHORTEST_WAIT_SECONDS)
    assert round_policy.seconds_left(replace(gone, passed=498.0), PACE, 500.0) == pytest.approx(
        3 * SHORTEST_WAIT_SECONDS - 2
    )


def test_a_part_that_nobody_contributes_to_is_waited_for_as_long_as_somebody_might_lead():
    nobody = replace(ROUND, parts=[part("abc", a=1.0, b=2.0, c=3.0), part("")])
    assert round_policy.seconds_left(nobody, PACE, 500.0) is None
    passed = replace(nobody, led=False, passed=499.0)
    assert round_policy.seconds_left(passed, PACE, 500.0) == pytest.approx(3 * SHORTEST_WAIT_SECONDS - 1)
    assert not round_policy.is_complete(passed)
    assert not round_policy.why_stop(replace(passed, parts=[part("abc"), part("abc")]), PACE, 500.0)


def leaders(first: int = 6, second: int = 6) -> Peers:
    """A leader and a datacenter that have finished these rounds, and a member."""
    return peer("a", round=first), peer("b", role="datacenter", round=second), peer("c", stage=1, round=4)


def test_nobody_can_lead_a_round_once_all_who_lead_are_past_it_and_one_has_shown_it():
    me, shown = peer("d", stage=1), {PeerId("a")}
    assert not round_policy.may_be_led(leaders(), me, 6, shown)
    assert not round_policy.may_be_led(leaders(), peer("d", role="observer"), 6, {PeerId("b")})
    assert round_policy.may_be_led(leaders(first=5), me, 6, shown)
    assert round_policy.may_be_led(leaders(second=5), me, 6, shown)
    assert round_policy.may_be_led(leaders(), me, 6, set())  # by their word alone
    assert round_policy.may_be_led(leaders(), me, 6, {PeerId("c")})  # who does not lead
    assert round_policy.may_be_led((), me, 6, shown)
    for leads in (peer("d", stage=0), peer("d", role="datacenter")):
        assert round_policy.may_be_led(leaders(), leads, 6, shown)


def test_a_replica_stops_in_time_for_the_first_part_that_waits_no_longer():
    stop = 110 + EARLY_SHARE * 3 * 10
    assert not round_policy.why_stop(ROUND, PACE, stop)
    assert "not wait much longer" in round_policy.why_stop(ROUND, PACE, stop + 0.1)


def test_who_is_ahead_of_everybody_waits_for_some_rounds_unless_nobody_has_shown_anything():
    quick, slow = Pace(3.0), Pace(3.0)
    quick.halves.extend([8.0, 10.0, 12.0])
    slow.halves.extend([80.0, 100.0, 120.0])
    for pace, most in (quick, BEHIND_SECONDS), (slow, BEHIND_ROUNDS * 100.0), (PACE, BEHIND_SECONDS):
        waits = [round_policy.most_wait_for_those_behind(ROUND, pace, furthest) for furthest in (0, 4, 5, 6)]
        assert waits == [0, most, 0, 0]


def test_why_a_peer_goes_on_says_who_did_first():
    assert round_policy.why_go_on(ROUND, 160.0) == "most contributions are here, and the round has lasted 60 s"
    assert round_policy.why_go_on(replace(ROUND, passed=150.0), 160.0).startswith("the others have gone on")


def test_the_first_round_is_of_all_while_they_are_waited_for_and_the_present_one_not_of_nobody():
    rounds = (1, 1), (1, 3), (3, 3), (2, 3)
    assert [round_policy.least_contributions(*each, replicas=4, gathered=False) for each in rounds] == [4, 4, 1, 0]
    assert [round_policy.least_contributions(*each, replicas=4, gathered=True) for each in rounds] == [1, 0, 1, 0]


def test_nobody_waits_for_who_is_on_trial():
    newcomer = peer("n", role="datacenter", replica="n", on_trial=True)
    assert awaited((*SWARM, newcomer), EMBEDDING, 1) == {"a", "d"}


def test_awaited_are_those_who_are_at_the_round_yet_and_those_whose_contribution_is_out():
    working = peer("w", replica="w", round=4, contributed=4)
    out = peer("o", replica="o", round=5, contributed=5)
    passed_over = peer("p", replica="p", round=5, contributed=3)
    idle = peer("i", round=4)
    ahead = peer("a", replica="a", round=5, contributed=6)
    swarm = (working, out, passed_over, idle, ahead)
    assert awaited(swarm, stage_part(0), 5) == {"w", "o"}
    assert awaited(swarm, stage_part(0), 5, told={"a", "gone"}) == {"w", "o", "a"}


def test_who_was_in_the_last_round_and_is_out_of_its_replica_may_return():
    looks, lost = peer("l", round=4, contributed=4), peer("x", replica="x", round=4, contributed=4)
    parted = peer("p", round=4, contributed=4).model_copy(update={"gone": True})
    past, moved = peer("q", round=5, contributed=4), peer("m", stage=1, round=4, contributed=4)
    swarm = {each.peer_id: each for each in (looks, lost, parted, past, moved)}
    last = [*swarm, PeerId("unknown"), PeerId("d")]
    here = {PeerId("d")}
    assert round_policy.may_return(last, here, swarm, stage_part(0), 5) == {"l", "x", "unknown"}
    assert round_policy.may_return(last[:1], here, swarm, stage_part(0), 5) == set()  # another is in its place
    assert round_policy.may_return([*swarm][:2], here, swarm, stage_part(0), 5) == {"l", "x"}


def test_the_time_for_a_return_runs_from_when_somebody_was_missed_first_and_anew_for_who_was_back():
    arrivals, one, other = round_policy.RoundArrivals(0.0), PeerId("a"), PeerId("b")
    assert arrivals.note_absent(EMBEDDING, {one}, 5.0) == {one: 5.0}
    assert arrivals.note_absent(EMBEDDING, {one, other}, 9.0) == {one: 5.0, other: 9.0}
    assert arrivals.note_absent(stage_part(0), {one}, 11.0) == {one: 11.0}
    assert arrivals.note_absent(EMBEDDING, {other}, 12.0) == {other: 9.0}
    assert arrivals.note_absent(EMBEDDING, {one, other}, 15.0) == {one: 15.0, other: 9.0}
    later = round_policy.RoundArrivals(12.0, absent=arrivals.absent)
    assert later.note_absent(EMBEDDING, {one, other}, 20.0) == {one: 15.0, other: 9.0}
    assert later.missed(EMBEDDING) == {one}  # the other was missed in the round before
    assert later.last_missed({one, other}) == 15.0
    assert later.last_missed({other}) == 9.0
    assert later.last_missed({one, PeerId("c")}) is None  # a third trains
    assert later.last_missed(()) is None


def test_long_rounds_are_kept_open_for_longer():
    pace = Pace(3.0)
    assert pace.return_seconds == RETURN_SECONDS
    pace.remember(0.0, [3600.0], 1)
    assert pace.return_seconds == RETURN_SHARE * 3600


# How long a round waits


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
    assert pace.wait(99.0, [100.0], 2) == pytest.approx(100 + 2 * SHORTEST_WAIT_SECONDS)


def test_old_rounds_are_forgotten():
    pace = Pace(1.0)
    for round in range(3 * PACE_ROUNDS):
        pace.remember(0.0, [100.0, 150.0 if round < PACE_ROUNDS else 110.0], 2)
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
    assert pace.wait(0.0, [100.0], 2, last=True) == pytest.approx(100 + LAST_ROUND_RATIO * 300)
    assert pace.stop(0.0, [100.0], 2) == pytest.approx(100 + EARLY_SHARE * 300)


# What a slow replica costs a quick one

QUICK, DELAY = 20.0, 10.0
"""Seconds until the quick replica's contribution of a round is out, and from there to that of the other one."""


def rounds_beside(pace: Pace, delays: Callable[[int, float], float], rounds: int, parts: int = 3) -> list[float]:
    """The lengths of rounds of a quick replica, beside one whose contribution comes so many seconds after its own:
    `delays` is given the round, and for how long it is waited for."""
    lengths, now = list[float](), 0.0
    for round in range(rounds):
        half = now + QUICK
        until = pace.wait(now, [half], 2)
        assert until is not None
        came = half + delays(round, until - half)
        arrivals = [half, came] if came <= until else [half]
        for _ in range(parts):
            pace.remember(now, arrivals, 2)
        lengths.append(min(came, until) - now)
        now = min(came, until)
    return lengths


GOOD, SLOW = 10, 100


@pytest.mark.parametrize(
    "slowness",
    [
        lambda round, wait: math.inf,
        lambda round, wait: wait,
        lambda round, wait: EARLY_SHARE * wait,
        lambda round, wait: DELAY * 1.02**round,
        lambda round, wait: DELAY if round % 5 else wait,
        lambda round, wait: DELAY if round % 3 else math.inf,
    ],
    ids=["it never comes", "just in time", "before the stop", "a little more each round", "now and then", "and never"],
)
def test_a_quick_replica_keeps_its_steps_however_a_slow_one_goes_about_it(slowness: Callable[[int, float], float]):
    lengths = rounds_beside(Pace(3.0), lambda n, w: DELAY if n < GOOD else slowness(n - GOOD, w), GOOD + SLOW)
    usual = QUICK + DELAY
    assert sum(lengths[GOOD:]) <= (1 + CREDIT_SHARE) * usual * SLOW + MOST_CREDIT * usual + 1e-6
    assert usual * SLOW / sum(lengths[GOOD:]) >= 0.95


@pytest.mark.parametrize(("patience", "pause"), [(3.0, 5.0), (100.0, 150.0)])
def test_in_rounds_of_less_than_a_second_a_pause_of_a_machine_that_does_something_else_is_waited_for(
    patience: float, pause: float
):
    short = [delay / 60 for delay in (QUICK, DELAY)]
    pace, now, lengths = Pace(patience), 0.0, list[float]()
    for round in range(GOOD + SLOW):
        half = now + short[0]
        until = pace.wait(now, [half], 2)
        assert until is not None
        came = half + (pause if round >= GOOD else short[1])
        arrivals = [half, came] if came <= until else [half]
        pace.remember(now, arrivals, 2)
        lengths.append(min(came, until) - now)
        now = min(came, until)
    assert lengths[GOOD] == pytest.approx(short[0] + pause)  # once
    most = patience * SHORTEST_WAIT_SECONDS + (1 + CREDIT_SHARE) * sum(short) * SLOW
    assert sum(lengths[GOOD:]) <= most + 1e-6  # and not again and again


def test_a_steady_slow_replica_is_always_waited_for():
    chance = random.Random(1)
    lengths = rounds_beside(Pace(3.0), lambda round, wait: DELAY * chance.uniform(0.9, 1.1), 300)
    assert min(lengths) >= QUICK + 0.9 * DELAY
    pace = Pace(3.0)
    assert set(rounds_beside(pace, lambda round, wait: DELAY, 100)) == {QUICK + DELAY}
    assert pace.stop(0.0, [QUICK], 2) >= QUICK + DELAY  # type: ignore[operator]


def test_after_a_slow_time_a_replica_that_is_as_quick_as_before_is_waited_for_again():
    pace = Pace(3.0)
    lengths = rounds_beside(pace, lambda round, wait: wait if GOOD <= round < 40 else DELAY, 60)
    assert lengths[40:] == pytest.approx([QUICK + DELAY] * 20)


def test_a_peer_that_catches_up_does_not_take_the_rounds_of_then_for_usual():
    pace = Pace(3.0)
    rounds_beside(pace, lambda round, wait: DELAY, GOOD)
    known = dict(pace.usual_delays)
    pace.remember(1000.0, [1000.1, 1000.1], 2)
    pace.remember(1000.2, [1000.3, 1000.3], 2)
    assert pace.usual_delays == known


def test_with_another_replica_what_was_usual_stays_a_bound_and_with_fewer_it_is_measured_anew():
    pace = Pace(3.0)
    rounds_beside(pace, lambda round, wait: DELAY, GOOD)
    waits = []
    for start in map(float, range(1000, 1600, 60)):
        arrivals = [start + QUICK, start + QUICK]
        waits.append(pace.wait(start, arrivals, 3))
        pace.remember(start, arrivals, 3)
    assert waits[-1] <= 1540.0 + (QUICK + DELAY) * (1 + CREDIT_SHARE)
    assert pace.wait(2000.0, [2000.0 + QUICK], 1) == pytest.approx(2000.0 + QUICK + 3.0 * SHORTEST_WAIT_SECONDS)
    for start in map(float, range(2000, 2300, 60)):
        pace.remember(start, [start + QUICK, start + QUICK + 3 * DELAY / 4, start + QUICK + DELAY / 2], 3)
    assert pace.usual_delays == {2: DELAY, 3: 3 * DELAY / 4 - DELAY / 2}
