"""The processes that a target means, from invented events."""

import pytest

from peer.testnet.faults import Moment, Target
from peer.testnet.swarm import Swarm
from protocol.events.activity import GroupBroken, GroupFormed, Joined, RoundDone, StepDone


def swarm(groups: int = 2, datacenters: int = 1) -> Swarm:
    return Swarm.of(groups, stages=2, datacenters=datacenters)


def formed(crossed: bool) -> Swarm:
    """Groups, where wanted each with the stage 1 that is named after the other."""
    made = swarm()
    for process, replica in {
        "volunteer 1, stage 0": "A",
        "volunteer 2, stage 0": "B",
        "volunteer 1, stage 1": "B" if crossed else "A",
        "volunteer 2, stage 1": "A" if crossed else "B",
    }.items():
        made.take(process, GroupFormed(replica, 0, []))
    return made


@pytest.mark.parametrize(
    ("target", "names"),
    [
        (Target("volunteer", 0, 1), ["volunteer 1, stage 1"]),
        (Target("volunteer", 1, 0), ["volunteer 2, stage 0"]),
        (Target("group", 1), ["volunteer 2, stage 0", "volunteer 2, stage 1"]),
        (Target("datacenter", 0), ["datacenter 1"]),
        (Target("bootstrap"), ["bootstrap"]),
    ],
)
def test_before_groups_form_targets_go_by_name(target: Target, names: list[str]):
    assert swarm().processes(target) == names


def test_all_are_all():
    assert len(swarm().processes(Target("all"))) == 6


def test_a_group_is_who_is_in_it_whatever_they_are_named():
    assert formed(crossed=True).processes(Target("group", 0)) == ["volunteer 1, stage 0", "volunteer 2, stage 1"]
    assert formed(crossed=True).processes(Target("volunteer", 0, 1)) == ["volunteer 2, stage 1"]
    assert formed(crossed=False).processes(Target("volunteer", 0, 1)) == ["volunteer 1, stage 1"]


def test_a_member_that_has_not_been_heard_yet_is_in_the_group_it_is_named_after():
    made = swarm()
    made.take("volunteer 1, stage 0", GroupFormed("A", 0, []))
    assert made.processes(Target("volunteer", 0, 1)) == ["volunteer 1, stage 1"]
    made.take("volunteer 2, stage 1", GroupFormed("A", 0, []))
    assert made.processes(Target("volunteer", 0, 1)) == ["volunteer 2, stage 1"]


def test_who_replaced_a_member_is_one():
    made = formed(crossed=False)
    made.take("volunteer 1, stage 1", GroupFormed("C", 0, []))
    made.take(made.add(1), GroupFormed("A", 0, []))
    assert made.processes(Target("volunteer", 0, 1)) == ["volunteer 3, stage 1"]


def test_newcomers_get_names_that_nobody_has():
    made = swarm()
    assert [made.add(1), made.add(1), made.add(None)] == [
        "volunteer 3, stage 1",
        "volunteer 4, stage 1",
        "datacenter 2",
    ]


def test_a_moment_is_reached_when_its_step_is_done_by_the_first():
    made = swarm()
    assert not made.has_reached(Moment(1))
    made.take("datacenter 1", StepDone(2, 0, None, 1))
    made.take("volunteer 1, stage 0", StepDone(1, 4, None, 1))
    assert made.has_reached(Moment(1, 20))
    assert made.has_reached(Moment(2, 1))
    assert not made.has_reached(Moment(2, 2))


def test_a_round_has_ended_when_the_first_has_ended_it():
    made = swarm()
    made.take("datacenter 1", RoundDone(2, 1.0, 1, {}, {}, 0, 0))
    made.take("volunteer 1, stage 0", RoundDone(1, 1.0, 1, {}, {}, 0, 0))
    assert made.ended == 2


def test_who_has_lost_its_group_or_started_again_is_in_none():
    made = formed(crossed=False)
    made.take("volunteer 1, stage 1", GroupBroken("A", 1, 2, "its leader is gone"))
    made.take("volunteer 2, stage 1", Joined("P", "volunteer", 1, 0, "h:1"))
    made.take("volunteer 2, stage 0", GroupBroken("B", 1, 2, "a member is gone"))
    assert made.processes(Target("group", 0)) == ["volunteer 1, stage 0"]
    assert made.processes(Target("group", 1)) == ["volunteer 2, stage 0"]
