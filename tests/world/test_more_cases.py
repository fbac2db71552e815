"""More of what people meet, in virtual time: pauses, farewells, restarts, slow and lost neighbours, a node that is
away."""

from typing import Any

import pytest

from peer import pausing
from protocol.events.activity import (
    Contributed,
    Finished,
    GroupBroken,
    HandedOver,
    Inherited,
    Joined,
    Paused,
    PauseEnded,
    Progress,
    RoundDone,
    StepDone,
)
from protocol.events.decisions import CaughtUp, EndedEarly, NotCounted
from protocol.events.event import Event
from protocol.events.waiting import Waiting
from protocol.patience import RETURN_SECONDS
from tests.world import test_cases
from tests.world.owners import Owner
from tests.world.test_cases import MakeWorld, all_end_well, join, told
from tests.world.world import World

world = test_cases.world


def group(run: World, **machine: Any) -> list[Owner]:
    """A volunteer at each of two stages."""
    return [join(run, f"stage-{each}", "volunteer", each, **machine) for each in range(2)]


def until_step(run: World, owner: Owner, round: int, step: int = 0, seconds: float = 120) -> None:
    """Let time pass until somebody has taken a step of a round."""
    due = (round, step)
    assert run.run_until(lambda: bool(told(owner, StepDone, lambda each: (each.round, each.step) >= due)), seconds)


def test_who_is_told_to_pause_serves_nobody_until_it_is_told_to_go_on(world: MakeWorld):
    run = world(inner={"steps": 20})
    peers = group(run)
    until_step(run, peers[0], 2)
    pausing.request_pause(peers[1].folder)
    assert run.run_until(lambda: bool(told(peers[1], Paused)), 20)
    run.run_for(5)
    paused = peers[1].process
    assert paused is not None
    assert not peers[1].machine.listeners
    assert told(peers[1], Contributed, lambda each: each.round == 2)
    steps = len(told(peers[0], StepDone))
    run.run_for(30)
    assert len(told(peers[0], StepDone)) == steps
    pausing.end_pause(peers[1].folder)
    assert run.run_until(lambda: bool(told(peers[1], PauseEnded)), 5)
    all_end_well(run, *peers)
    assert peers[1].runs == [paused]


def test_who_has_slept_at_the_end_finds_the_others_still_there(world: MakeWorld):
    run = world()
    peers = [*group(run), join(run, "observer", "observer")]
    until_step(run, peers[0], 3)
    assert peers[2].process is not None
    run.freeze(peers[2].process)
    assert run.run_until(lambda: bool(told(peers[0], RoundDone, lambda each: each.round == 3)), 30)
    run.run_for(5)
    run.thaw(peers[2].process)
    all_end_well(run, *peers)
    assert len({event.digests["embedding"] for owner in peers for event in told(owner, Finished)}) == 1
    assert told(peers[2], Finished)


def test_who_has_said_goodbye_is_not_waited_for_at_the_end(world: MakeWorld):
    run = world()
    peers = [*group(run), join(run, "observer", "observer")]
    until_step(run, peers[0], 2)
    assert peers[2].process is not None
    run.interrupt(peers[2].process)
    assert run.run_until(lambda: bool(told(peers[0], RoundDone, lambda each: each.round == 3)), 60)
    all_end_well(run, *peers[:2], seconds=8)


def test_a_peer_that_is_gone_for_good_stops_nobody(world: MakeWorld):
    run = world(replicas={"groups": 1, "datacenters": 1}, outer={"rounds": 5})
    peers, center = group(run), join(run, "center", "datacenter")
    until_step(run, peers[0], 2, 1)
    assert center.process is not None
    run.lose_power(center.process)
    lost = run.loop.now
    assert run.run_until(lambda: bool(told(peers[0], RoundDone, lambda each: each.round == 4)), 40)
    assert run.loop.now - lost < 40
    all_end_well(run, *peers)


def test_a_replica_that_is_far_too_slow_is_not_waited_for_and_contributes_what_it_has(world: MakeWorld):
    run = world(replicas={"groups": 1, "datacenters": 1}, inner={"steps": 20}, outer={"rounds": 4})
    peers = group(run)
    center = run.add("center", "datacenter")
    center.machine.speed = 60.0
    run.start(center)
    all_end_well(run, *peers, center, seconds=300)
    assert told(center, EndedEarly)
    early = {each.round: each.steps for each in told(center, EndedEarly)}
    assert {each.round: each.steps for each in told(center, Contributed) if each.steps < 20} == early
    for owner in peers:
        assert all(each.seconds < 60 for each in told(owner, RoundDone, lambda each: each.round > 1))


@pytest.mark.parametrize("compression", [4, 1])
def test_a_member_whose_leader_fails_as_it_contributes_is_free_for_the_next_one(world: MakeWorld, compression: int):
    """The leader's disk is full when it has taken a round's last step, and has told its member so. The member of this
    only group has contributed, and waits for others; nobody else can make the contribution that it waits for. In an
    uncompressed group it goes on: then the leader catches up with that round when it is back."""
    run = world(replicas={"groups": 1, "datacenters": 0, "compression": compression}, outer={"rounds": 4})
    peers = group(run)

    def takes_the_last_step(name: str, event: Event) -> bool:
        return name == "stage-0" and isinstance(event, StepDone) and (event.round, event.step) == (2, 3)

    run.when(takes_the_last_step, lambda: run.fill(peers[0]))
    assert run.run_until(lambda: peers[0].process is None, 60)
    assert run.run_until(lambda: {each.round for each in told(peers[1], Contributed)} == {1, 2}, 20)
    run.disk.full.discard(peers[0].folder)
    run.start(peers[0])
    all_end_well(run, *peers)
    assert told(peers[1], GroupBroken, lambda each: "has not contributed to round 2" in each.reason or compression == 1)
    counts = {each.round: each.contributions["stage-0"] for each in told(peers[0], RoundDone)}
    if compression > 1:
        assert counts == {1: 1, 2: 1, 3: 1, 4: 1}
    else:
        assert counts == {1: 1, 3: 1, 4: 1}
        assert [event.round for event in told(peers[0], CaughtUp)] == [2]


def test_who_leaves_hands_over_to_a_spare_and_once(world: MakeWorld):
    run = world(inner={"steps": 20})
    peers = group(run)
    spare = join(run, "spare", "volunteer", 1)
    until_step(run, peers[0], 2, 3)
    leaver, successor = (peers[1], spare) if told(peers[1], StepDone) else (spare, peers[1])
    assert leaver.process is not None
    run.interrupt(leaver.process)
    assert run.run_until(lambda: leaver.process is None, 30)
    assert len(told(leaver, HandedOver)) == len(told(successor, Inherited)) == 1
    run.start(leaver)
    all_end_well(run, peers[0], successor, leaver)
    assert len(told(successor, Inherited)) == 1


def test_a_member_whose_leader_is_gone_for_good_is_free_for_the_next(world: MakeWorld):
    run = world(inner={"steps": 20}, replicas={"groups": 1, "datacenters": 1}, outer={"rounds": 6})
    peers, center = group(run), join(run, "center", "datacenter")  # which holds what the leader takes with it
    until_step(run, peers[1], 2, 3)
    assert peers[0].process is not None
    run.lose_power(peers[0].process)
    next_leader = join(run, "next", "volunteer", 0)
    assert run.run_until(lambda: bool(told(next_leader, StepDone)), 90)
    all_end_well(run, next_leader, peers[1], center, seconds=120)


def test_after_a_power_cut_all_go_on_from_their_folders_with_no_round_done_twice(world: MakeWorld):
    run = world(inner={"steps": 20}, replicas={"groups": 1, "datacenters": 1})
    peers = [*group(run), join(run, "center", "datacenter")]
    center = peers[-1]  # quicker than the group: it has contributed to the round that power fails in
    assert run.run_until(lambda: bool(told(center, Contributed, lambda each: each.round == 3)), 60)
    assert not any(told(owner, Contributed, lambda each: each.round == 3) for owner in peers[:-1])
    for owner in (*peers, run.owners["node"]):
        assert owner.process is not None
        run.lose_power(owner.process)
    run.run_for(5)
    for owner in (run.owners["node"], *peers):
        run.start(owner)
    all_end_well(run, *peers)
    for owner in peers:
        assert {each.round for each in told(owner, RoundDone)} == {1, 2, 3}, owner.name
        assert [each.round for each in told(owner, Contributed)] == [1, 2, 3], owner.name
        steps = [(each.round, each.step) for each in told(owner, StepDone, lambda each: each.round < 3)]
        assert steps == [(round, step) for round in (1, 2) for step in range(20)], owner.name
    assert len({event.digests["embedding"] for owner in peers for event in told(owner, Finished)}) == 1


@pytest.mark.parametrize("who", ["first stage", "group"])
def test_a_round_is_kept_open_for_those_who_are_killed_in_it_and_come_back(world: MakeWorld, who: str):
    """The datacenter is done, and waits for nobody else."""
    run = world(inner={"steps": 20}, replicas={"groups": 1, "datacenters": 1})
    peers = [*group(run), join(run, "center", "datacenter")]
    assert run.run_until(lambda: bool(told(peers[-1], Contributed, lambda each: each.round == 3)), 60)
    killed = peers[:1] if who == "first stage" else peers[:2]
    for owner in killed:
        assert owner.process is not None
        run.kill(owner.process)
    run.run_for(2)
    assert any("to be back in round 3" in each.what for each in told(peers[-1], Waiting))
    for owner in killed:
        run.start(owner)
    all_end_well(run, *peers)
    for owner in peers:
        assert [each.round for each in told(owner, Contributed)] == [1, 2, 3], owner.name
        assert {each.contributions["embedding"] for each in told(owner, RoundDone)} == {2}
    steps = [(each.round, each.step) for each in told(peers[1], StepDone)]
    assert len(steps) == len(set(steps)) or who == "group"  # who was not killed goes on where it was


@pytest.mark.parametrize("number", [0, 1])
def test_a_round_is_kept_open_for_so_long_only(world: MakeWorld, number: int):
    """For those who do not come back: once for a lost first stage; within the deadlines for one that is alone."""
    outer = {"rounds": 6, "patience": (30.0, 3.0)[number]}
    run = world(inner={"steps": 20}, replicas={"groups": 1, "datacenters": 1}, outer=outer)
    peers = [*group(run), join(run, "center", "datacenter")]
    killed, there = peers[number], peers[1 - number]
    until_step(run, peers[0], 2, 3)
    assert killed.process is not None
    run.kill(killed.process)
    all_end_well(run, peers[-1], there, seconds=200)
    seconds = {each.round: each.seconds for each in told(peers[-1], RoundDone)}
    assert all(seconds[round] < 5 for round in ((3, 4, 5, 6) if number == 0 else (5, 6)))
    assert max(seconds.values()) < RETURN_SECONDS + 20
    assert {each.round: each.steps for each in told(there, Contributed)}[2] < 20  # its steps of that round count


def test_who_has_a_place_goes_on_without_the_node_and_one_that_finds_nobody_can_be_stopped(world: MakeWorld):
    run = world(inner={"steps": 20})
    peers, node = group(run), run.owners["node"]
    until_step(run, peers[0], 2)
    assert node.process is not None
    assert peers[1].process is not None
    run.kill(node.process)
    run.kill(peers[1].process)
    run.network.partition(["stage-1"])
    run.start(peers[1])
    run.run_for(60)
    alone = peers[1].process
    assert alone is not None  # it tries again, and does not give up
    run.interrupt(alone)
    assert run.run_until(lambda: peers[1].process is None, 5)
    assert alone.exit_code == 130
    run.network.partition(())
    run.start(peers[1])
    all_end_well(run, *peers)


def test_a_datacenter_that_waits_for_the_others_can_be_stopped(world: MakeWorld):
    run = world(replicas={"groups": 1, "datacenters": 1})
    center = join(run, "center", "datacenter")
    run.run_for(20)
    process = center.process
    assert process is not None
    run.interrupt(process)
    assert run.run_until(lambda: center.process is None, 10)
    assert process.exit_code == 130
    assert run.failures == []


def test_a_node_that_was_killed_after_the_end_still_knows_of_it(world: MakeWorld):
    run = world()
    peers, node = group(run), run.owners["node"]
    all_end_well(run, *peers)
    run.run_for(15)
    assert node.process is not None
    run.kill(node.process)
    run.start(node)
    run.run_for(3)
    late = join(run, "late", "volunteer", 1)
    all_end_well(run, late, seconds=10)


def test_a_node_that_was_stopped_goes_on_with_what_it_knew(world: MakeWorld):
    run = world(inner={"steps": 20})
    peers, node = group(run), run.owners["node"]
    until_step(run, peers[0], 3)
    process = node.process
    assert process is not None
    run.interrupt(process)
    assert run.run_until(lambda: node.process is None, 10)
    assert process.exit_code == 130
    run.start(node)
    all_end_well(run, *peers)
    assert run.failures == []


def test_a_leader_without_members_follows_the_rounds_of_the_others(world: MakeWorld):
    run = world(inner={"steps": 20}, replicas={"groups": 1, "datacenters": 1}, outer={"rounds": 5})
    peers, center = group(run), join(run, "center", "datacenter")
    until_step(run, peers[0], 2)
    assert peers[1].process is not None
    run.lose_power(peers[1].process)
    all_end_well(run, peers[0], center, seconds=120)
    assert {each.round for each in told(peers[0], RoundDone)} == {1, 2, 3, 4, 5}


def test_the_record_of_who_waits_for_long_is_renewed(world: MakeWorld):
    run = world(run={"gather": 3600}, replicas={"groups": 1, "datacenters": 1})
    center = join(run, "center", "datacenter")
    run.run_for(180)
    node = next(each for each in run.directory.nodes if each.process is run.owners["node"].process)
    assert center.process is not None
    assert [each for each in node.kept.values() if each.expiration > run.wall(center.process)]


def test_who_comes_after_the_end_takes_no_place(world: MakeWorld):
    run = world()
    all_end_well(run, *group(run))
    run.run_for(15)  # then the node takes nobody for at work any more
    late = join(run, "late", "volunteer", 1)
    all_end_well(run, late, seconds=10)
    assert not told(late, Joined)


def test_volunteers_that_compute_in_other_numbers_and_with_less_memory_end_with_one_state(world: MakeWorld):
    run = world(replicas={"groups": 2, "datacenters": 1})
    ways = ({"precision": "bf16", "memory": "recompute"}, {"precision": "fp32", "memory": "keep"})
    peers = [
        join(run, f"stage-{stage}-{number}", "volunteer", stage, settings=way)
        for number, way in enumerate(ways)
        for stage in range(2)
    ]
    peers.append(join(run, "center", "datacenter", settings={"precision": "bf16", "memory": "recompute"}))
    all_end_well(run, *peers, seconds=120)
    said = {owner.name: [each.doing for each in told(owner, Progress)] for owner in peers}
    for name, words in said.items():
        (numbers,) = [doing for doing in words if "passes are computed in" in doing]
        is_first_way = "bf16 on cpu" in numbers and "the backward pass computes each layer's" in numbers
        assert is_first_way == (not name.endswith("-1")), numbers
    digests: dict[str, set[str]] = {}
    for owner in peers:
        for part, digest in told(owner, Finished)[-1].digests.items():
            digests.setdefault(part, set()).add(digest)
    assert {part: len(each) for part, each in digests.items()} == {"embedding": 1, "stage-0": 1, "stage-1": 1}


def test_with_overlap_slow_datacenters_are_a_round_behind_and_all_that_they_do_counts(world: MakeWorld):
    run = world(replicas={"groups": 0, "datacenters": 4}, outer={"rounds": 6, "overlap": True, "grace": 3, "liars": 0})
    peers = [join(run, f"datacenter-{each}", "datacenter", speed=each) for each in (1.0, 1.1, 3.0, 3.1)]
    all_end_well(run, *peers, seconds=200)
    assert [told(each, NotCounted) for each in peers] == [[]] * 4
    assert [event.round for each in peers for event in told(each, Contributed)] == [*range(1, 7)] * 4
