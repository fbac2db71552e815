"""Decisions, tried on invented swarms."""

from hypothesis import given
from hypothesis import strategies as st

from peer.swarm.plan import backoff_seconds, choose_members
from protocol.identity import PeerId
from protocol.records import PeerRecord


def volunteer(name: str, stage: int, replica: str = "") -> PeerRecord:
    return PeerRecord.model_validate(
        {
            "peer_id": PeerId(name),
            "address": f"{name}:1",
            "role": "volunteer",
            "stage": stage,
            "slot": 0,
            "replica": replica,
        }
    )


def test_a_leader_takes_a_free_peer_of_every_other_stage():
    me = volunteer("a", 0)
    peers = (me, volunteer("b", 1), volunteer("c", 2), volunteer("d", 1, replica="x"))
    chosen = choose_members(peers, me, stages=3)
    assert {stage: peer.peer_id for stage, peer in chosen.items()} == {1: "b", 2: "c"}


def test_it_takes_what_there_is_while_a_stage_is_missing():
    me = volunteer("a", 0)
    assert list(choose_members((me, volunteer("c", 2)), me, stages=3)) == [2]


def test_seats_that_are_taken_are_left_alone():
    me = volunteer("a", 0)
    assert list(choose_members((me, volunteer("b", 1), volunteer("c", 2)), me, stages=3, taken=[1])) == [2]


def test_who_was_declined_asks_the_next_one():
    me = volunteer("a", 0)
    peers = (me, volunteer("b", 1), volunteer("c", 1))
    assert [choose_members(peers, me, 2, (), attempt)[1].peer_id for attempt in range(3)] == ["b", "c", "b"]


def test_a_pipeline_of_one_stage_needs_nobody():
    me = volunteer("a", 0)
    assert choose_members((me,), me, stages=1) == {}


@given(st.integers(1, 6), st.integers(1, 4))
def test_leaders_that_look_at_the_same_time_do_not_choose_the_same_peers(groups: int, stages: int):
    peers = tuple(volunteer(f"p{group}-{stage}", stage) for group in range(groups) for stage in range(stages))
    leaders = [peer for peer in peers if peer.stage == 0]
    chosen = [choose_members(peers, leader, stages) for leader in leaders]
    names = [peer.peer_id for members in chosen for peer in members.values()]
    assert len(names) == len(set(names)) == groups * (stages - 1)


def test_backing_off_doubles_up_to_two_seconds():
    assert [backoff_seconds(attempt, 1.0) for attempt in range(5)] == [0.25, 0.5, 1, 2, 2]
