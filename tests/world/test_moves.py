"""Machines that get another address while a run goes on, in virtual time: who was there goes on, and nobody waits until
TCP has given up."""

from collections.abc import Callable
from typing import Any

import pytest

from protocol.events.activity import GroupBroken, GroupFormed, RoundDone, StepDone
from protocol.patience import SILENT_BEATS, STREAM_HEARTBEAT_SECONDS
from tests.world.owners import Owner
from tests.world.test_cases import MakeWorld, all_end_well, told, world
from tests.world.test_churn import reach, states, swarm

__all__ = ["world"]  # the fixture

SOON_SECONDS = SILENT_BEATS * STREAM_HEARTBEAT_SECONDS - 1
"""The seconds of the world within which a group trains again: a silent link would be given up a second later."""

ROUND_SECONDS = 20.0
"""The seconds of the world within which a round that holds both contributions has ended: some rounds' time."""


def first_after(owner: Owner, kind: type, since: float, holds: Callable[[Any], bool] = lambda event: True) -> float:
    """When a peer told an event of a kind, for which this holds, for the first time after a moment."""
    return next(at for at, event in owner.runs[0].events if at > since and isinstance(event, kind) and holds(event))


def has_both(done: RoundDone) -> bool:
    """Whether the contributions of the group and the datacenter are in a round."""
    return {*done.contributions.values()} == {2}


@pytest.mark.parametrize("mover", [0, 1])
def test_a_group_goes_on_when_the_address_of_a_volunteer_has_changed(world: MakeWorld, mover: int):
    run = world(inner={"steps": 20})
    owners = swarm(run)
    reach(run, owners[0], 2, 3)
    moved_at = run.loop.now
    run.network.move(owners[mover].machine)
    all_end_well(run, *owners, seconds=200)
    assert len(states(owners)) == 1
    for owner in owners:
        assert len(told(owner, GroupBroken)) == 1
        assert first_after(owner, StepDone, first_after(owner, GroupFormed, moved_at)) - moved_at < SOON_SECONDS


def test_a_datacenter_goes_on_contributing_when_its_address_has_changed_twice(world: MakeWorld):
    run = world(replicas={"groups": 1, "datacenters": 1}, inner={"steps": 12}, outer={"rounds": 6})
    owners = swarm(run)
    center = owners[2]
    moves = list[float]()
    for round in (2, 4):
        reach(run, owners[0], round, 3)
        run.network.move(center.machine)
        moves.append(run.loop.now)
    all_end_well(run, *owners, seconds=200)
    assert len(states(owners)) == 1
    for moved_at in moves:
        for owner in owners:
            whole = first_after(owner, RoundDone, moved_at, has_both)
            assert whole - moved_at < ROUND_SECONDS


def test_a_whole_house_that_gets_other_addresses_at_once_finds_itself_again(world: MakeWorld):
    run = world(replicas={"groups": 1, "datacenters": 1}, inner={"steps": 12}, outer={"rounds": 4})
    owners = swarm(run)
    reach(run, owners[0], 2, 3)
    for owner in owners:
        run.network.move(owner.machine)
    all_end_well(run, *owners, seconds=200)
    assert len(states(owners)) == 1
