"""How long the swarm takes for a round, from what peers say at the moments at which a node looks."""

import pytest

from bootstrap.monitor.rounds import PACE_ROUNDS_KEPT, Round, SwarmPace, time_left
from protocol.identity import PeerId
from protocol.trust.membership_card import Role
from protocol.trust.records import PeerRecord


def says(who: str, round: int, at: float, role: Role = "datacenter") -> PeerRecord:
    """A peer has finished a round, and said so at a time."""
    return PeerRecord(
        peer_id=PeerId(who), address="h:1", role=role, stage=0, slot=0, round=round, sequence=int(1000 * at)
    )


def test_a_round_takes_what_lies_between_the_ends_that_were_seen():
    pace = SwarmPace()
    for look in range(20):  # every 15 s, at rounds of 40 s that end at 100, 140, 180…
        now = 100.0 + 15 * look
        round = 1 + int(now - 100) // 40
        pace.see([says("a", round, 100.0 + 40 * (round - 1)), says("b", round, now)], 0, now)
    assert pace.round == 8
    assert pace.seconds(385.0) == pytest.approx(40.0)


def test_what_ended_before_the_first_look_ended_at_no_time_that_is_known():
    pace = SwarmPace()
    pace.see([says("a", 7, 100.0)], 0, 160.0)
    assert (pace.round, pace.seconds(161.0)) == (7, 0.0)
    pace.see([says("a", 8, 200.0)], 0, 205.0)
    assert pace.seconds(205.0) == 0.0
    pace.see([says("a", 9, 245.0)], 0, 250.0)
    assert pace.seconds(250.0) == pytest.approx(45.0)


def test_a_round_that_lasts_longer_than_others_counts_already():
    pace = SwarmPace()
    for round, at in enumerate((0.0, 10.0, 20.0), start=1):
        pace.see([says("a", round, at)], 0, at)
    assert pace.seconds(21.0) == pytest.approx(10.0)
    assert pace.seconds(110.0) == pytest.approx(50.0)


def test_old_rounds_are_forgotten():
    pace, now = SwarmPace(), 0.0
    for round in range(1, 40):
        now += 100.0 if round < 20 else 10.0
        pace.see([says("a", round, now)], 0, now)
    assert pace.seconds(now) == pytest.approx(10.0)
    assert len(pace.ends) == PACE_ROUNDS_KEPT + 1


def test_no_liar_alone_moves_it_and_a_wrong_clock_by_no_more_than_a_look():
    pace = SwarmPace()
    for look in range(10):
        now = 10.0 * look
        pace.see([says("liar", 999, 0.0), says("a", look, now + 3600), says("b", look, now + 3600)], 1, now)
    assert pace.round == 9
    assert pace.seconds(90.0) == pytest.approx(10.0, abs=1.5)


def test_who_only_watches_does_not_count():
    pace = SwarmPace()
    pace.see([says("a", 50, 1.0, "observer"), says("b", 3, 1.0)], 0, 1.0)
    assert pace.round == 3


@pytest.mark.parametrize(
    ("ends", "now", "left"),
    [
        ({}, 100.0, None),
        ({1: 100.0}, 101.0, None),
        ({1: 100.0, 2: 110.0}, 110.0, 180.0),
        ({1: 100.0, 2: 110.0}, 114.0, 176.0),
        ({1: 100.0, 2: 110.0}, 130.0, 18 * 15.0 - 10.0),  # this round takes longer than others
        ({number: 10.0 * number for number in range(1, 21)}, 200.0, None),  # over
        ({1: 0.0} | {number: 5000 + 10.0 * number for number in range(2, 13)}, 5120.0, 80.0),  # old ends do not count
    ],
)
def test_the_time_left_is_that_of_the_last_rounds(ends: dict[int, float], now: float, left: float | None):
    entries = [Round(number, ended - 1, ended) for number, ended in ends.items()]
    entries.append(Round(max(ends, default=0) + 1, now))
    assert time_left(entries, max(ends, default=0), 20, now) == left
