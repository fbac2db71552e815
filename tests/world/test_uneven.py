"""Replicas of unequal speeds, which take as many inner steps as they can in a round and count by them: in virtual time,
and bit by bit as in the lab."""

from statistics import median
from typing import Any

import pytest
import torch

from bootstrap.genesis import load_run
from peer.lab.reference_run import Lab
from protocol.events.activity import Contributed, GroupBroken, GroupFormed, RoundDone
from protocol.events.decisions import EndedEarly, GoalChanged
from protocol.events.event import Event
from protocol.events.group_decisions import MemberChanged, Released
from protocol.monitor import View
from protocol.patience import REGROUP_SECONDS
from tests.world import test_cases
from tests.world.owners import Owner
from tests.world.runs import files_of
from tests.world.test_cases import MakeWorld, all_end_well, join, manifest, told, worlds

world = test_cases.world

H, MOST, ROUNDS = 20, 200, 6

LATE = 0.2
"""Seconds one way to a machine that is far from all others."""

TABLES: dict[str, dict[str, Any]] = {
    "replicas": {"groups": 1, "datacenters": 1, "stages": 2, "compression": 4},
    "inner": {"steps": H, "most_steps": MOST, "sequences": 6, "microbatch": 2, "warmup": 4},
    "outer": {"rounds": ROUNDS, "weights": "steps"},
}


def steps(owner: Owner) -> dict[int, int]:
    """The inner steps behind an owner's contribution to each round."""
    return {event.round: event.steps for event in told(owner, Contributed)}


def waited(owner: Owner) -> float:
    """Which share of a round an owner waits for others after its contribution: the median from the third round on."""
    moments = [(at, event) for run in owner.runs for at, event in run.events]
    contributed = {event.round: at for at, event in moments if isinstance(event, Contributed)}
    return median(
        (at - contributed[event.round]) / event.seconds
        for at, event in moments
        if isinstance(event, RoundDone) and event.round > 2
    )


def played_again(tables: dict[str, dict[str, Any]], taken: dict[tuple[int, int], int]) -> dict[int, RoundDone]:
    """The rounds of the lab, in which each replica takes as many steps as it took in the swarm."""
    files, said = files_of(manifest(**tables)), list[Event]()
    Lab.open(load_run(files), files, torch.device("cpu"), taken=taken).run(said.append)
    return {event.round: event for event in said if isinstance(event, RoundDone)}


@pytest.mark.parametrize(("group_speed", "center_speed", "overlap"), [(1.0, 2.0, False), (0.3, 12.0, True)])
def test_the_quicker_replica_takes_more_steps_and_the_bits_are_those_of_the_lab(
    group_speed: float, center_speed: float, overlap: bool
):
    tables = TABLES | {
        "outer": TABLES["outer"] | {"overlap": overlap, "patience": 100.0}
    }  # whoever is slow is waited for
    with worlds() as world:
        run = world(**tables)
        group = [join(run, name, "volunteer", stage) for stage, name in enumerate(("first", "last"))]
        center = join(run, "center", "datacenter")
        for owner in group:
            owner.machine.speed = group_speed
        center.machine.speed = center_speed
        all_end_well(run, *group, center, seconds=600)
        assert run.monitor is not None
        view: View = run.monitor.view()
    quick, slow = (group[0], center) if group_speed < 1.0 else (center, group[0])
    assert {*steps(slow).values()} == {H}
    assert steps(quick)[1] == H  # nobody knows yet
    assert min(steps(quick)[round] for round in range(4, ROUNDS)) >= 1.25 * H
    assert told(quick, GoalChanged)
    assert not told(slow, GoalChanged)
    taken = {
        (round, slot): each for slot, owner in enumerate((group[0], center)) for round, each in steps(owner).items()
    }
    assert len(taken) == 2 * ROUNDS
    rounds = played_again(tables, taken)
    for owner in (*group, center):
        done = told(owner, RoundDone)
        assert [event.round for event in done] == [*range(1, ROUNDS + 1)]
        for event in done:
            assert event.digests.items() <= rounds[event.round].digests.items(), (owner.name, event.round)
    assert view.tokens == manifest(**tables).tokens_per_step * sum(taken.values())


def test_the_quicker_replica_hardly_waits_any_more(world: MakeWorld):
    shares = []
    for tables in (TABLES, TABLES | {"inner": TABLES["inner"] | {"most_steps": 0}}):
        run = world(**tables)
        group = [join(run, name, "volunteer", stage) for stage, name in enumerate(("first", "last"))]
        center = join(run, "center", "datacenter")
        center.machine.speed = 2.0
        all_end_well(run, *group, center, seconds=600)
        shares.append(waited(center))
    assert shares[0] < 0.75 * shares[1]


def test_a_quick_replica_ends_with_the_others(world: MakeWorld):
    """Who was slow is quick after the fourth round: nobody waits for the steps that a third replica meant to take."""
    run = world(
        **TABLES | {"replicas": {"groups": 0, "datacenters": 2}, "outer": TABLES["outer"] | {"patience": 100.0}}
    )
    quick, slow = (join(run, name, "datacenter") for name in ("quick", "slow"))
    quick.machine.speed, slow.machine.speed = 4.0, 24.0

    def wake() -> None:
        slow.machine.speed = 4.0

    run.when(lambda name, event: name == "slow" and isinstance(event, RoundDone) and event.round == 4, wake)
    all_end_well(run, quick, slow, seconds=600)
    assert steps(quick)[4] > 4 * H
    assert H <= steps(quick)[6] < 2 * H
    assert not told(quick, EndedEarly)


def test_even_replicas_take_h_steps(world: MakeWorld):
    run = world(**TABLES | {"replicas": {"groups": 0, "datacenters": 3}})
    centers = [join(run, f"center-{number}", "datacenter") for number in range(3)]
    for owner, speed in zip(centers, (3.0, 3.2, 3.4), strict=True):
        owner.machine.speed = speed
    all_end_well(run, *centers, seconds=600)
    assert {each for owner in centers for each in steps(owner).values()} == {H}


def test_groups_exchange_members_so_that_the_quick_are_together(world: MakeWorld):
    """They form as their volunteers come, quick ones with slow ones. After the first round the quick ones are together,
    and take more steps than the slow ones; nothing of a round is lost, and all end with the same bits."""
    people = {"groups": 2, "datacenters": 0, "stages": 2, "compression": 4}
    run = world(**TABLES | {"replicas": people})
    quick_first, slow_last = join(run, "quick-0", "volunteer", 0), run.add("slow-1", "volunteer", 1)
    slow_last.machine.speed = 4.0
    run.start(slow_last)
    assert run.run_until(lambda: bool(told(quick_first, GroupFormed)), 30)
    slow_first, quick_last = run.add("slow-0", "volunteer", 0), join(run, "quick-1", "volunteer", 1)
    slow_first.machine.speed = 4.0
    run.start(slow_first)
    owners = (quick_first, quick_last, slow_first, slow_last)
    all_end_well(run, *owners, seconds=600)
    assert [told(owner, MemberChanged)[0].round for owner in (quick_first, slow_first)] == [2, 2]
    assert all(len(told(owner, Released)) == 1 for owner in (quick_last, slow_last))
    last = {owner.name: told(owner, GroupFormed)[-1].replica for owner in owners}
    assert last["quick-0"] == last["quick-1"] != last["slow-0"] == last["slow-1"]
    assert steps(quick_last)[ROUNDS - 1] == steps(quick_first)[ROUNDS - 1] > 2 * H
    assert steps(slow_last)[ROUNDS - 1] == steps(slow_first)[ROUNDS - 1] == H
    assert not any(told(owner, GroupBroken) for owner in owners)
    ends = [told(owner, RoundDone)[-1].digests for owner in owners]
    assert len({each["embedding"] for each in ends}) == 1


def test_groups_exchange_members_also_where_one_hears_of_a_rounds_end_later_than_the_other(world: MakeWorld):
    """The first leader has let its slow member go before the second one's round is over. They have looked before."""
    short = {"inner": TABLES["inner"] | {"steps": 6, "most_steps": 60}, "outer": TABLES["outer"] | {"rounds": 3}}
    run = world(**TABLES | short | {"replicas": {"groups": 2, "datacenters": 0, "stages": 2, "compression": 4}})
    quick_first, slow_last = join(run, "quick-0", "volunteer", 0), run.add("slow-1", "volunteer", 1)
    slow_last.machine.speed = 5.0
    run.start(slow_last)
    assert run.run_until(lambda: bool(told(quick_first, GroupFormed)), 30)
    slow_first, quick_last = run.add("slow-0", "volunteer", 0, latency=LATE), join(run, "quick-1", "volunteer", 1)
    slow_first.machine.speed = 4.0
    run.start(slow_first)
    all_end_well(run, quick_first, quick_last, slow_first, slow_last, seconds=900)
    for leader in (quick_first, slow_first):
        assert [event.round for event in told(leader, MemberChanged)] == [2]
        moments = [(at, event) for process in leader.runs for at, event in process.events]
        over = next(at for at, event in moments if isinstance(event, RoundDone))
        together = next(at for at, event in moments if isinstance(event, GroupFormed) and at > over)
        assert together - over < REGROUP_SECONDS / 2, leader.name
