"""How soon a volunteer without a seat may get one, by what it has seen."""

from peer.swarm.departures import Departures, roughly
from protocol.trust.records import PeerRecord
from tests.peer.swarm.test_waits import peer


def seen(*looks: tuple[int, tuple[PeerRecord, ...]]) -> Departures:
    departures = Departures()
    for round, peers in looks:
        departures.look(peers, peer("me", stage=1).model_copy(update={"round": round}))
    return departures


A, B = peer("a", stage=1, replica="x"), peer("b", stage=1, replica="y")
FREE = peer("a", stage=1)


def test_before_a_round_has_ended_nothing_is_known():
    assert seen((7, (A, B))).outlook(1, 90) == "nobody else waits; how often a seat becomes free is not known yet"


def test_where_nobody_leaves_that_is_said_with_the_rounds_seen():
    few, enough = (seen(*((round, (A, B)) for round in range(count))) for count in (5, 6))
    assert few.outlook(2, 90) == "1 other waits; how often a seat becomes free is not known yet"
    assert enough.outlook(2, 90) == (
        "1 other waits, and nobody has left a seat of this stage in the last 5 rounds or more"
    )
    assert enough.outlook(3, 90).startswith("2 others wait, and")
    still = seen(*((round, (A, B)) for round in range(50)))
    assert "nobody has left a seat of this stage in the last 20 rounds or more" in still.outlook(1, 90)


def test_who_goes_leaves_a_seat_and_who_is_between_two_groups_does_not():
    assert seen((1, (A, B)), (2, (FREE, B)), (3, (A, B))).left == 0
    assert seen((1, (A, B)), (2, (B,))).left == 1
    assert seen((1, (A, B)), (2, (FREE, B)), (3, (B,))).left == 1
    assert seen((1, (A, peer("z", stage=0, replica="x"))), (2, (A,))).left == 0


def test_the_more_leave_and_the_fewer_wait_the_sooner_comes_the_turn():
    gone = seen(*((round, (A, B)) for round in range(20)), (20, (B,)))
    assert gone.outlook(1, 90).endswith(
        "1 left a seat of this stage in the last 20 rounds or more: about 20 rounds until its turn, if that goes on"
    )
    assert "about 50 rounds until its turn" in gone.outlook(4, 90)
    assert "more than the run has left, if that goes on" in gone.outlook(4, 30)


def test_after_a_seat_of_its_own_it_counts_anew():
    assert seen((1, (A, B)), (2, (B,)), (9, (B,))).left == 0
    assert "not known yet" in seen((1, (A, B)), (2, (B,)), (9, (B,))).outlook(1, 90)


def test_numbers_change_seldom():
    assert [roughly(count) for count in (0, 1, 3, 5, 9, 10, 49, 50, 1234)] == [0, 1, 2, 5, 5, 10, 20, 50, 1000]
