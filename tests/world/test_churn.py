"""Peers that leave, are killed, cut off, and come back, in virtual time: one state at the end, nothing done twice, and
every sequence read once."""

from collections import Counter
from itertools import count
from pathlib import Path

import pytest

from peer.data.batches import sequence_ids, sequences_in
from peer.data.text import open_tokens
from protocol.codec.snapshot import Header, parse_header
from protocol.events.activity import (
    Contributed,
    Evaluated,
    Finished,
    GroupBroken,
    GroupFormed,
    HandedOver,
    Inherited,
    Joined,
    Progress,
    Resumed,
    RoundDone,
    StepDone,
)
from protocol.events.decisions import Resynchronised
from protocol.identity import EMBEDDING, PeerId
from protocol.manifest import Manifest
from protocol.run.run_files import TRAIN
from tests.world.owners import Owner, Process
from tests.world.test_cases import MakeWorld, all_end_well, join, told, world
from tests.world.world import World

__all__ = ["world"]  # the fixture


def swarm(run: World) -> list[Owner]:
    """Everybody that the run's manifest plans for: groups stage by stage, then datacenters."""
    planned = run.manifest.replicas
    places = [(group, stage) for group in range(planned.groups) for stage in range(planned.stages)]
    volunteers = [join(run, f"group-{group}-stage-{stage}", "volunteer", stage) for group, stage in places]
    return volunteers + [join(run, f"datacenter-{number}", "datacenter") for number in range(planned.datacenters)]


def working(owner: Owner) -> Process:
    """What runs at an owner, who runs something."""
    assert owner.process is not None
    return owner.process


def reach(run: World, owner: Owner, round: int, step: int = 0) -> None:
    """Let time pass until a peer has done an inner step."""
    assert run.run_until(lambda: bool(told(owner, StepDone, lambda s: (s.round, s.step) >= (round, step))), 120)


def kill_and_start(run: World, owner: Owner, seconds: float = 1.0) -> None:
    run.kill(working(owner))
    run.run_for(seconds)
    run.start(owner)


def states(owners: list[Owner]) -> set[str]:
    """The states of the embedding that these have told of at the run's end."""
    return {event.digests[EMBEDDING] for owner in owners for event in told(owner, Finished)}


def nobody_contributes_twice(owners: list[Owner]) -> bool:
    made = Counter((owner.name, event.round) for owner in owners for event in told(owner, Contributed))
    return max(made.values()) == 1


def test_a_member_a_leader_and_a_datacenter_die_and_come_back(world: MakeWorld):
    run = world(replicas={"groups": 2, "datacenters": 1}, inner={"steps": 8}, outer={"rounds": 9})
    owners = swarm(run)
    leader, member, center = owners[2], owners[1], owners[4]
    for victim, round, step in ((member, 2, 3), (leader, 4, 4), (center, 6, 2)):
        reach(run, owners[0], round, step)
        kill_and_start(run, victim)
    all_end_well(run, *owners, seconds=200)
    assert len(states(owners)) == 1
    assert told(owners[0], GroupBroken) or told(leader, GroupBroken)
    assert sum(len(told(owner, Resumed)) for owner in owners) == 3
    assert not any(told(owner, Resynchronised) for owner in owners)
    assert nobody_contributes_twice(owners)


def test_two_groups_that_lose_their_leaders_in_one_round_go_on_where_they_were(world: MakeWorld):
    run = world(replicas={"groups": 2, "datacenters": 0}, inner={"steps": 60}, outer={"rounds": 2})
    owners = swarm(run)
    reach(run, owners[0], 2, 3)
    for leader in (owners[0], owners[2]):
        run.kill(working(leader))
    run.run_for(1.0)
    for leader in (owners[0], owners[2]):
        run.start(leader)
    all_end_well(run, *owners, seconds=200)
    assert len(states(owners)) == 1
    for member in (owners[1], owners[3]):
        broken = told(member, GroupBroken)
        assert [event.round for event in broken] == [2]
        at = next(at for at, event in member.runs[0].events if event is broken[0])
        after = next(e for when, e in member.runs[0].events if when > at and isinstance(e, StepDone))
        assert (after.round, after.step >= broken[0].step) == (2, True)


@pytest.mark.parametrize("overlap", [False, True])
def test_everything_killed_at_once_goes_on_with_the_digests_it_had(world: MakeWorld, overlap: bool):
    run = world(replicas={"groups": 1, "datacenters": 2}, outer={"rounds": 6, "overlap": overlap})
    owners = swarm(run)
    reach(run, owners[0], 4, 2)
    node = run.owners["node"]
    for owner in (node, *owners):
        run.kill(working(owner))
    run.run_for(1.0)
    for owner in (node, *owners):
        run.start(owner)
    all_end_well(run, *owners, seconds=200)
    assert len(states(owners)) == 1
    assert all(told(owner, Resumed) for owner in owners)
    for round in (1, 2, 3):
        said = [
            event.digests[EMBEDDING] for owner in owners for event in told(owner, RoundDone) if event.round == round
        ]
        assert len(set(said)) == 1


def test_a_datacenter_that_joins_in_the_midst_takes_the_state_from_the_others_and_contributes_next(world: MakeWorld):
    run = world(replicas={"groups": 2, "datacenters": 1}, outer={"rounds": 16, "grace": 2, "liars": 0})
    owners = swarm(run)
    reach(run, owners[0], 10)
    late = join(run, "late", "datacenter")
    all_end_well(run, *owners, late, seconds=200)
    assert len(states([*owners, late])) == 1
    fetched = [event.doing for event in told(late, Progress) if " came from peer " in event.doing]
    assert len(fetched) == 3  # one part after the other
    assert run.loop.turns < 200_000  # nobody asks again and again while a piece is on its way
    assert told(late, Contributed)[0].round <= 15


def test_two_halves_that_were_cut_off_from_each_other_become_one_again(world: MakeWorld):
    run = world(replicas={"groups": 2, "datacenters": 2}, outer={"rounds": 8})
    owners = swarm(run)
    reach(run, owners[0], 3)
    run.network.partition([owner.name for owner in (owners[2], owners[3], owners[5])])
    reach(run, owners[0], 5)
    run.network.partition(())
    all_end_well(run, *owners, seconds=300)
    apart = {event.digests[EMBEDDING] for owner in owners for event in told(owner, RoundDone) if event.round == 3}
    assert len(apart) >= 2
    assert len(states(owners)) == 1
    assert not any(told(owner, Resynchronised) for owner in owners)


def test_who_leaves_hands_over_to_the_standby_that_takes_its_seat(world: MakeWorld):
    run = world(inner={"steps": 12}, outer={"rounds": 8})
    leader, one, other = (
        join(run, name, "volunteer", stage) for name, stage in (("leader", 0), ("one", 1), ("other", 1))
    )
    reach(run, leader, 2)
    ids = {told(each, Joined)[0].peer_id: each for each in (one, other)}
    member = ids[told(leader, GroupFormed)[0].members[1]]
    successor = one if member is other else other
    run.interrupt(working(member))
    assert run.run_until(lambda: member.process is None, 30)
    assert member.runs[0].exit_code == 130
    all_end_well(run, leader, successor, seconds=200)
    me, its = (told(each, Joined)[0].peer_id for each in (member, successor))
    assert [event.heir for event in told(member, HandedOver)] == [its]
    assert told(successor, Inherited) == [Inherited(me, True)]
    assert told(successor, GroupFormed)[-1].members[1] == its
    assert len(states([leader, successor])) == 1
    rounds = [{event.round for event in told(each, Contributed)} for each in (member, successor)]
    assert rounds[0] | rounds[1] == set(range(1, 9))


@pytest.mark.parametrize("seconds", [0.0, 3.0])
def test_a_datacenter_that_stops_for_a_while_costs_time_and_nothing_else(world: MakeWorld, seconds: float):
    run = world(replicas={"groups": 1, "datacenters": 1}, inner={"steps": 6})
    owners = swarm(run)
    center = owners[-1]
    reach(run, center, 2, 2)
    run.freeze(working(center))
    run.run_for(seconds)
    run.thaw(working(center))
    all_end_well(run, *owners, seconds=200)
    assert len(states(owners)) == 1
    assert [len(told(each, StepDone)) for each in (owners[0], center)] == [18, 18]
    assert len(told(center, Evaluated)) == 3


def last_state(folder: Path, manifest: Manifest) -> Header:
    """The last state of the embedding that a peer has closed."""
    newest = max((folder / "snapshots").glob(f"{EMBEDDING}-*.header"))
    return parse_header(newest.read_bytes(), manifest)


def behind(owners: list[Owner]) -> dict[tuple[str, int], list[int]]:
    """The chunks behind each contribution, as its author said: (peer id, round) → chunks."""
    said: dict[tuple[str, int], list[int]] = {}
    for owner in owners:
        me = told(owner, Joined)[0].peer_id
        for event in told(owner, Contributed, lambda event: bool(event.chunks)):
            assert (me, event.round) not in said
            said[me, event.round] = [chunk for first, end in event.chunks for chunk in range(first, end)]
    return said


def test_every_sequence_of_an_epoch_is_read_once_though_two_are_killed_and_another_comes_late(world: MakeWorld):
    run = world(
        replicas={"groups": 1, "datacenters": 1},
        inner={"steps": 6, "sequences": 16, "microbatch": 8},
        outer={"rounds": 30, "grace": 2, "liars": 0},
    )
    leader, _, center = owners = swarm(run)
    reach(run, center, 3, 1)
    kill_and_start(run, center)
    late = join(run, "late", "datacenter")
    assert run.run_until(lambda: bool(told(late, Contributed)), 120)
    reach(run, leader, told(late, Contributed)[0].round + 2)
    kill_and_start(run, leader)
    owners = [*owners, late]
    all_end_well(run, *owners, seconds=300)
    headers = [last_state(owner.folder, run.manifest) for owner in owners]
    assert len({header.digest for header in headers}) == 1
    header, said = headers[0], behind([leader, center, late])
    counted = {(who, round): chunks for (who, round), chunks in said.items() if header.history.has(PeerId(who), round)}
    assert len(counted) == header.history.total()
    assert len({who for who, _ in counted}) == 3
    read = [chunk for chunks in counted.values() for chunk in chunks]
    assert len(read) == len({*read})
    whole = next(chunk for chunk in count() if chunk not in {*read})  # before it nothing is left out
    tokens = open_tokens(run.files / TRAIN, run.manifest.model.vocabulary)
    sequences = sequences_in(tokens, run.manifest)
    epochs = whole * run.manifest.inner.sequences // sequences
    assert epochs >= 1
    ids = [each for chunk in range(whole) for each in sequence_ids(run.manifest, sequences, chunk).tolist()]
    for epoch in range(epochs):
        assert sorted(ids[epoch * sequences : (epoch + 1) * sequences]) == list(range(sequences))
