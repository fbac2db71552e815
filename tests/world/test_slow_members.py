"""A volunteer that becomes slow after good rounds, and stays below what makes a breach: a spare of its stage is
tried, or all are told who is slow. In virtual time, at each stage of a group, with a datacenter beside."""

import pytest

from protocol.events.activity import GroupBroken, GroupFormed
from protocol.events.group_decisions import NOBODY_FREE, Dismissed, MemberReplaced, SlowMember
from protocol.patience import SLOW_STEPS
from tests.world import test_cases
from tests.world.slowness import MEASURED_SECONDS, STAGES, Beside, beside_a_slow_member, slowed
from tests.world.test_cases import MakeWorld, told

world = test_cases.world

LEAST_OF_GROUP, LEAST_OF_CENTER = 0.8, 0.95


def replacements(beside: Beside) -> list[str]:
    """The peers that were replaced, in order."""
    owners = (*beside.group, *beside.spares)
    return [event.peer for owner in owners for event in told(owner, MemberReplaced)]


@pytest.mark.parametrize(("stage", "honest"), [(0, True)])  # `benchmarks/slow_member.py` measures the others
def test_a_group_with_a_spare_keeps_its_steps_beside_a_member_that_becomes_slow(
    world: MakeWorld, stage: int, honest: bool
):
    """Whether it tells of its passes what they take, or does not."""
    with slowed(stage, honest=honest) as slow:
        beside = beside_a_slow_member(world, stage, (stage,), MEASURED_SECONDS)
    assert beside.group_kept >= LEAST_OF_GROUP
    assert beside.center_kept >= LEAST_OF_CENTER
    assert replacements(beside) == [beside.slow_ids[stage]]
    assert len(slow.steps) <= SLOW_STEPS + STAGES
    everybody = (*beside.group, *beside.spares, beside.center)
    assert not any(told(each, Dismissed) for each in everybody)
    assert told(beside.spares[0], GroupFormed)
    slow_owner = beside.group[stage]
    (broken,) = [event for event in told(slow_owner, GroupBroken) if "has hung up" in event.reason]
    assert "this machine is slower than before (a step takes" in broken.reason
    assert not beside.run.failures


def test_without_a_spare_all_are_told_who_is_slow_and_by_how_much_and_nobody_is_replaced(world: MakeWorld):
    """Spares of other stages stand by. The operator's node shows it, and the datacenter goes on."""
    with slowed(1):
        beside = beside_a_slow_member(world, 1, (0, 2), 250.0)
    assert replacements(beside) == []
    slow = beside.slow_ids[1]
    findings = [event for owner in beside.group for event in told(owner, SlowMember)]
    assert {(event.peer, event.stage, event.or_further) for event in findings} == {(slow, 1, False)}
    assert all(event.seconds > 14.0 and event.usual < 4.0 for event in findings)
    assert [event.reason for event in told(beside.group[0], SlowMember)] == [NOBODY_FREE]
    assert told(beside.group[1], SlowMember)  # the slow one's own owner
    assert beside.run.monitor is not None
    (group,) = beside.run.monitor.fold.view(beside.run.wall(beside.run.owners["node"].runs[-1])).groups
    assert group.slow.startswith(f"stage 1 (peer {slow[-8:]}) takes 17")
    assert "its group took 3.4 s before, and it says that it could in 1.2" in group.slow
    assert beside.center_kept >= 0.9  # it has used up what it had in credit
