"""What the operator is shown before it rewinds a run."""

from peer.cli.rewind import inventory, lost_round, next_step
from protocol.outer.phases import RunPhase
from tests.peer.swarm.test_waits import peer

AWAITING = peer("QmWaits", stage=0, round=18).model_copy(update={"phase": RunPhase.AWAITING_STATE, "awaits": 21})


def test_what_is_held_of_each_stage_and_what_is_awaited_are_listed():
    lines = inventory(2, {0: 9, -1: 12}, (AWAITING,))
    assert lines == [
        "stage 0: the newest known state is of round 18; peer QmWaits, heard of within a minute, has round 18",
        "stage 1: the newest known state is of round 12; nobody who is here has one",
        "peer QmWaits awaits a state, and says that the run has finished round 21",
    ]


def test_the_operator_reads_what_to_type_next():
    both = peer("QmA", stage=0, round=12), peer("QmB", stage=1, round=21)
    assert "`hetpeer admin rewind --to-round 12` goes on from what is here" in next_step(2, 21, both)
    assert "needs no rewind" in next_step(2, 12, both)
    assert "needs no rewind" in next_step(2, 21, (peer("QmD", "datacenter", round=21),))
    assert "--to-round 0`" in next_step(2, 21, both[1:])


def test_what_is_lost_reaches_to_the_round_that_somebody_awaits():
    """The node was away while the run went on: without that, the one that is left could never go on."""
    assert lost_round((peer("QmHeld", round=12),), (AWAITING,)) == 21
    assert lost_round((peer("QmHeld", round=12),), ()) == 12
    assert lost_round((), ()) == 0
