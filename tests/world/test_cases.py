"""What people have met, each in virtual time: what happened then must not happen again."""

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from typing import Any

import pytest

from peer import pausing
from peer.planning.memory import Duty, memory_of
from protocol.events.activity import (
    Contributed,
    Finished,
    GroupBroken,
    GroupFormed,
    Joined,
    Notice,
    Paused,
    Progress,
    RoundDone,
    StepDone,
)
from protocol.events.decisions import Placed
from protocol.events.event import Event
from protocol.events.waiting import Waiting
from protocol.manifest import Manifest
from protocol.monitor import View
from tests.reference.small_manifest import small_manifest
from tests.world.loop import in_host
from tests.world.owners import Owner
from tests.world.play import folder_in_memory
from tests.world.runs import files_of
from tests.world.standing import standing
from tests.world.world import World

MakeWorld = Callable[..., World]


@pytest.fixture
def world() -> Iterator[MakeWorld]:
    """A function that makes a world with a node, whose run is of these tables."""
    with worlds() as make:
        yield make


@contextmanager
def worlds() -> Iterator[MakeWorld]:
    """The same, for the block."""
    with ExitStack() as stack:

        def make(keeps_model: bool = False, **tables: dict[str, Any]) -> World:
            folder, files = stack.enter_context(folder_in_memory()), files_of(manifest(**tables))
            made = World(manifest(**tables), folder, 1, files, keeps_model=keeps_model)
            stack.enter_context(standing(made))
            stack.callback(made.close)
            made.start(made.owners["node"])
            assert made.run_until(lambda: made.ticket is not None, 10)
            return made

        yield make


def manifest(**tables: dict[str, Any]) -> Manifest:
    """Two stages, one group and no datacenter, three rounds of four steps; with other tables in their place."""
    standard: dict[str, dict[str, Any]] = {
        "model": {"layers": 2},
        "replicas": {"groups": 1, "datacenters": 0},
        "inner": {"steps": 4, "sequences": 2, "microbatch": 1},
        "outer": {"rounds": 3},
    }
    return small_manifest(**{name: standard.get(name, {}) | tables.get(name, {}) for name in standard | tables})


def join(world: World, name: str, role: Any, stage: int | None = None, **machine: Any) -> Owner:
    """Somebody more, who starts now. `machine`: its owner's `settings`, and what `Network.machine` takes."""
    owner = world.add(name, role, stage, **machine)
    world.start(owner)
    return owner


def told(owner: Owner, kind: type[Event], holds: Callable[[Any], bool] = lambda event: True) -> list[Any]:
    """The events of a kind of all processes of an owner, in order."""
    return [event for run in owner.runs for _, event in run.events if isinstance(event, kind) and holds(event)]


def all_end_well(world: World, *owners: Owner, seconds: float = 60.0) -> None:
    """All of these end with exit code 0, of themselves, and nothing has gone wrong unseen."""
    assert world.run_until(lambda: all(owner.process is None for owner in owners), seconds), [
        (owner.name, owner.process.status.state, owner.process.status.waits_for) for owner in owners if owner.process
    ]
    assert [(owner.name, owner.runs[-1].exit_code, owner.runs[-1].error) for owner in owners] == [
        (owner.name, 0, "") for owner in owners
    ]
    assert world.failures == []


@pytest.mark.parametrize("stage", [0, 1])
def test_one_group_goes_on_when_the_volunteer_that_was_stopped_in_mid_round_is_back(world: MakeWorld, stage: int):
    run = world(inner={"steps": 20})
    peers = [join(run, f"stage-{each}", "volunteer", each) for each in range(2)]
    assert run.run_until(lambda: bool(told(peers[0], StepDone, lambda step: (step.round, step.step) == (2, 8))), 60)
    leaver = peers[stage]
    assert leaver.process is not None
    run.interrupt(leaver.process)
    assert run.run_until(lambda: leaver.process is None, 30)
    assert leaver.runs[-1].exit_code == 130
    assert told(leaver, Contributed, lambda event: event.round == 2)
    back, steps = run.loop.now, len(told(leaver, StepDone))
    run.start(leaver)
    assert run.run_until(lambda: len(told(leaver, StepDone)) > steps, 15), leaver.process
    assert run.loop.now - back < 15
    all_end_well(run, *peers)
    assert len({event.digests["embedding"] for owner in peers for event in told(owner, Finished)}) == 1


@pytest.mark.parametrize("overlap", [False, True])
def test_a_round_to_which_a_stage_has_nothing_is_over_when_whoever_could_lead_it_is_past_it(
    world: MakeWorld, overlap: bool
):
    """Of two leaders one has lost its member early, so one alone shows how far the run is. Its member is killed when it
    has taken a round's last step, before it could itself."""
    run = world(replicas={"groups": 2, "datacenters": 0}, outer={"rounds": 6, "overlap": overlap})
    leaders = [join(run, f"stage-0-{each}", "volunteer", 0) for each in range(2)]
    members = [join(run, f"stage-1-{each}", "volunteer", 1, latency=0.2) for each in range(2)]
    assert run.run_until(lambda: all(told(each, Contributed) for each in members), 60)
    gone, member = members
    assert gone.process is not None
    run.kill(gone.process)
    assert run.run_until(lambda: bool(told(member, Contributed, lambda event: event.round == 4)), 60)
    leader = next(each for each in leaders if told(each, Contributed, lambda event: event.round == 4))
    assert run.run_until(lambda: bool(told(leader, StepDone, lambda step: (step.round, step.step) == (5, 3))), 60)
    assert member.process is not None
    run.kill(member.process)
    assert run.run_until(lambda: bool(told(leader, Contributed, lambda event: event.round == 5)), 30)
    run.start(member)
    all_end_well(run, *leaders, member, seconds=120)
    assert not told(member, Contributed, lambda event: event.round == 5)
    assert len({event.digests["embedding"] for owner in (*leaders, member) for event in told(owner, Finished)}) == 1


def test_who_slept_over_the_runs_end_is_told_and_ends_within_seconds(world: MakeWorld):
    run = world(replicas={"groups": 1, "datacenters": 1})
    center = join(run, "center", "datacenter")
    group = [join(run, f"stage-{each}", "volunteer", each) for each in range(2)]
    assert run.run_until(lambda: bool(told(group[0], StepDone, lambda step: step.round == 2)), 60)
    for each in group:
        assert each.process is not None
        run.freeze(each.process)
    assert run.run_until(lambda: center.process is None, 200)
    for each in group:
        assert each.process is not None
        run.thaw(each.process)
    all_end_well(run, *group, seconds=20)
    assert not told(group[0], StepDone, lambda step: step.round > 2)  # the step in flight may end, and that is all


def test_who_joins_after_the_end_is_told_that_the_run_is_over(world: MakeWorld):
    run = world()
    group = [join(run, f"stage-{each}", "volunteer", each) for each in range(2)]
    all_end_well(run, *group)
    late = join(run, "late", "volunteer", 1)
    all_end_well(run, late, seconds=10)
    assert "the run is over" in str(late.runs[0].events[-1][1].words).lower()


def test_a_datacenter_that_paused_over_the_runs_end_is_told_that_it_is_over(world: MakeWorld):
    run = world(replicas={"groups": 1, "datacenters": 1})
    center = join(run, "center", "datacenter")
    group = [join(run, f"stage-{each}", "volunteer", each) for each in range(2)]
    assert run.run_until(lambda: bool(told(group[0], StepDone, lambda step: step.round == 2)), 60)
    pausing.request_pause(center.folder)
    assert run.run_until(lambda: bool(told(center, Paused)), 30)
    all_end_well(run, *group, seconds=120)
    run.run_for(30)
    pausing.end_pause(center.folder)
    steps = len(told(center, StepDone))
    all_end_well(run, center, seconds=10)
    assert len(told(center, StepDone)) == steps


def test_a_node_that_was_away_at_the_runs_end_learns_of_it_and_tells_a_newcomer(world: MakeWorld):
    run = world()
    group = [join(run, f"stage-{each}", "volunteer", each) for each in range(2)]
    assert run.run_until(lambda: bool(told(group[0], StepDone, lambda step: step.round == 2)), 60)
    node = run.owners["node"]
    assert node.process is not None
    run.kill(node.process)
    assert run.run_until(lambda: all(told(each, RoundDone, lambda event: event.round == 3) for each in group), 60)
    run.run_for(20)
    run.start(node)
    all_end_well(run, *group, seconds=30)
    assert told(group[0], Waiting, lambda event: event.what == "the operator's node to know that the run is over")
    late = join(run, "late", "volunteer", 1)
    all_end_well(run, late, seconds=10)


def test_the_node_says_who_is_missing_and_that_a_leader_gives_no_sign_of_life(world: MakeWorld):
    run = world(replicas={"groups": 1, "datacenters": 1}, outer={"rounds": 40})
    leader, _ = (join(run, f"stage-{each}", "volunteer", each) for each in range(2))
    wait = "waits for 1 datacenter (0 of 1)"
    assert run.run_until(lambda: seen(run).state_why == wait and len(seen(run).groups) == 1, 30)
    assert seen(run).state == "gathering"
    (first,) = (each for each in seen(run).peers if each.role == "volunteer" and each.stage == 0)
    assert (first.state, f"waits for {first.why}".startswith(wait)) == ("waiting", True)
    run.run_for(20)
    assert not any("no sign of life" in each.broken for each in seen(run).groups)  # a leader that waits tells little
    center = join(run, "center", "datacenter")
    assert run.run_until(lambda: bool(told(leader, StepDone, lambda step: step.round == 2)), 60)
    assert seen(run).state == "training"
    assert leader.process is not None
    run.freeze(leader.process)
    assert run.run_until(lambda: any("no sign of life" in each.broken for each in seen(run).groups), 40)
    assert not any(each.role == "volunteer" and each.state == "training" for each in seen(run).peers)
    assert center.process is not None
    run.kill(center.process)
    assert run.run_until(lambda: seen(run).state == "stalled", 90)
    run.thaw(leader.process)  # its own state is rounds older than what the datacenter has
    assert run.run_until(lambda: "waits for the state of stage 0 after round" in seen(run).state_why, 60)
    assert "a peer that has it in its folder can bring it back" in seen(run).state_why  # the datacenter has it
    run.start(center)
    assert run.run_until(lambda: seen(run).state == "training", 60)
    assert run.failures == []


def test_a_group_that_the_same_peers_form_again_is_shown_as_whole(world: MakeWorld):
    run = world(replicas={"groups": 1, "datacenters": 1}, outer={"rounds": 40})
    leader, member = (join(run, f"stage-{each}", "volunteer", each) for each in range(2))
    join(run, "center", "datacenter")
    assert run.run_until(lambda: bool(told(leader, StepDone, lambda step: step.round == 2)), 60)
    assert leader.process is not None
    run.freeze(leader.process)
    assert run.run_until(lambda: bool(told(member, GroupBroken)), 60)
    run.thaw(leader.process)
    before = len(told(member, StepDone))
    assert run.run_until(lambda: len(told(member, StepDone)) > before + 3, 60)
    run.run_for(5)  # until the node has heard of it
    (group,) = seen(run).groups
    assert (group.broken, all(group.members)) == ("", True)
    assert run.failures == []


def seen(run: World) -> View:
    """What the operator's node shows now."""
    assert run.monitor is not None
    monitor, host = run.monitor, run.owners["node"].process
    assert host is not None
    return in_host(host).run(monitor.view)


def test_a_round_lasts_from_its_own_beginning(world: MakeWorld):
    run = world(outer={"rounds": 5}, replicas={"groups": 1, "datacenters": 1})
    owners = [join(run, "stage-0", "volunteer", 0)]
    run.run_for(30)  # alone: the first round has not begun
    came = run.loop.now
    owners += [join(run, "stage-1", "volunteer", 1)]
    owners += [join(run, "center", "datacenter"), join(run, "observer", "observer")]
    owners.append(join(run, "spare", "volunteer", 1))
    all_end_well(run, *owners)
    assert all(len(told(owner, RoundDone)) >= 4 for owner in owners)
    for owner in owners:
        rounds = [(at, event.seconds) for at, event in owner.runs[0].events if isinstance(event, RoundDone)]
        for (before, _), (at, seconds) in pairwise([(came, 0.0), *rounds]):
            assert seconds <= at - before + 0.1, owner.name


def test_the_owner_of_a_datacenter_is_told_how_it_computes(world: MakeWorld):
    run = world(replicas={"groups": 1, "datacenters": 1})
    center = join(run, "center", "datacenter")
    how = " on cpu, in microbatches of 1 sequence"
    assert run.run_until(lambda: bool(told(center, Notice, lambda notice: how in notice.doing)), 30)


def test_a_veteran_keeps_its_seat_when_a_member_that_was_killed_is_back(world: MakeWorld):
    run = world(inner={"steps": 20}, outer={"rounds": 4})
    leader, member = (join(run, f"stage-{each}", "volunteer", each) for each in range(2))
    assert run.run_until(lambda: bool(told(leader, StepDone)), 30)
    spare = join(run, "spare", "volunteer", 1)
    assert run.run_until(lambda: bool(told(leader, StepDone, lambda step: step.round == 2)), 60)
    assert member.process is not None
    run.kill(member.process)
    assert run.run_until(lambda: bool(told(spare, StepDone)), 30)
    run.start(member)
    all_end_well(run, leader, spare, member, seconds=120)
    assert len(told(leader, GroupFormed)) == 2  # the member's, and the spare's


def waits_for(owner: Owner) -> str:
    """What an owner is told that the peer waits for now."""
    return owner.process.status.waits_for if owner.process is not None else ""


def test_a_spare_is_told_what_it_has_seen_of_those_who_have_a_seat(world: MakeWorld):
    run = world(run={"gather": 0}, replicas={"groups": 1, "datacenters": 1}, outer={"rounds": 12})
    center = join(run, "center", "datacenter")
    group = [join(run, f"stage-{each}", "volunteer", each) for each in range(2)]
    assert run.run_until(lambda: bool(told(group[1], StepDone)), 60)
    spare = join(run, "spare", "volunteer", 1)
    stayed = "nobody else waits, and nobody has left a seat of this stage in the last 5 rounds or more"
    assert run.run_until(lambda: stayed in waits_for(spare), 60), waits_for(spare)
    all_end_well(run, center, *group, spare, seconds=120)


def test_a_group_at_the_start_is_told_which_replica_is_missing(world: MakeWorld):
    run = world(replicas={"groups": 1, "datacenters": 1})
    group = [join(run, f"stage-{each}", "volunteer", each) for each in range(2)]
    beginning = (
        "1 datacenter (0 of 1): the run begins when all 2 copies of the model are complete, or 60 s after the first is"
    )
    assert run.run_until(lambda: all(waits_for(each) == beginning for each in group), 20), list(map(waits_for, group))
    run.run_for(5.0)
    since = [each.process.status.waits_since for each in group if each.process]
    told_so_far = [len(told(each, Waiting)) for each in group]
    run.run_for(30.0)
    assert [each.process.status.waits_since for each in group if each.process] == since
    assert [len(told(each, Waiting)) for each in group] == told_so_far  # a wait that goes on is told once
    center = join(run, "center", "datacenter")
    all_end_well(run, *group, center)


def test_a_run_that_has_gathered_begins_with_one_replica_and_others_find_it_under_way(world: MakeWorld):
    run = world(run={"gather": 20}, replicas={"groups": 1, "datacenters": 1}, inner={"steps": 20})
    center = join(run, "center", "datacenter")
    missing = "1 volunteer of stage 0 (0 of 1) and 1 volunteer of stage 1 (0 of 1)"
    wait = f"{missing}: the run begins when all 2 copies of the model are complete, or 20 s after the first is"
    assert run.run_until(lambda: waits_for(center) == wait, 20), waits_for(center)
    since = run.loop.now
    assert run.run_until(lambda: bool(told(center, StepDone)), 30), waits_for(center)
    assert 19 <= run.loop.now - since < 25
    group = [join(run, f"stage-{each}", "volunteer", each) for each in range(2)]
    all_end_well(run, center, *group, seconds=120)
    assert told(center, Contributed, lambda event: event.round == 1)
    assert all(told(each, Contributed) for each in group)
    assert len({said.digests["embedding"] for each in (center, group[0]) for said in told(each, Finished)}) == 1


def test_the_first_round_of_a_run_that_has_gathered_waits_for_nobody_who_is_not_there(world: MakeWorld):
    run = world(run={"gather": 5}, replicas={"groups": 0, "datacenters": 2}, inner={"steps": 20})
    alone = join(run, "alone", "datacenter")
    all_end_well(run, alone, seconds=120)
    events = [(at, event) for at, event in alone.runs[0].events if isinstance(event, Contributed | RoundDone)]
    (out, _), (over, _) = (pair for pair in events if pair[1].round == 1)
    assert over - out < 1


def test_a_spare_is_told_that_it_is_one_and_which_stage_is_short(world: MakeWorld):
    run = world(replicas={"groups": 2, "datacenters": 0}, outer={"rounds": 6}, inner={"steps": 20})
    first = [join(run, f"first-{each}", "volunteer", each) for each in range(2)]
    assert run.run_until(lambda: "1 volunteer of stage 0 (1 of 2)" in waits_for(first[1]), 20), waits_for(first[1])
    spare = join(run, "spare", "volunteer", 1)
    short = "a seat in a group; this peer is a spare: stage 0 has 1 volunteer, 2 are needed"
    assert run.run_until(lambda: waits_for(spare) == short, 20), waits_for(spare)
    second = join(run, "second-0", "volunteer", 0)
    assert run.run_until(lambda: bool(told(spare, StepDone)), 30), waits_for(spare)
    more = join(run, "more", "volunteer", 1)
    full = "every group is complete, and it takes the next free seat of stage 1; nobody else waits"
    assert run.run_until(lambda: full in waits_for(more), 30), waits_for(more)
    all_end_well(run, *first, spare, second, more, seconds=120)
    assert sum(event.what.startswith("a seat") for event in told(more, Waiting)) <= 2  # not once a round


@pytest.mark.parametrize(("skew", "said"), [(7200.0, "120.0 min ahead of"), (-7200.0, "2.0 h behind")])
def test_a_clock_that_is_two_hours_off_is_refused_at_once_and_one_of_a_minute_and_a_half_told(
    world: MakeWorld, skew: float, said: str
):
    run = world()
    wrong = join(run, "wrong", "volunteer", 0, skew=skew)
    right = join(run, "right", "volunteer", 1, skew=50.0)
    doubtful = join(run, "doubtful", "volunteer", 1, skew=90.0)
    assert run.run_until(lambda: bool(wrong.runs[0].error), 5)
    assert wrong.runs[0].error.startswith(f"this machine's clock is {said} the node's: no other peer would find")
    run.run_for(10.0)
    assert not told(right, Progress, lambda event: "clock" in event.doing)
    (warned,) = told(doubtful, Progress, lambda event: "clock" in event.doing)
    assert warned.doing.startswith(
        "WARNING: this machine's clock is 90 s ahead of the node's: other peers may not find"
    )


def test_who_leaves_reads_what_it_gave_and_who_sees_the_end_hears_of_it_last(world: MakeWorld):
    run = world(replicas={"groups": 0, "datacenters": 2}, outer={"rounds": 3}, inner={"steps": 20})
    leaver, stayer = (join(run, name, "datacenter") for name in ("leaver", "stayer"))
    assert run.run_until(lambda: bool(told(leaver, StepDone, lambda step: step.round == 2)), 60)
    assert leaver.process is not None
    gave = leaver.process.status.tokens
    run.interrupt(leaver.process)
    all_end_well(run, stayer, seconds=120)
    words = [event.doing for event in told(leaver, Progress) if "in good order" in event.doing]
    assert len(words) == 1
    assert int(re.search(r"gave ([\d,]+) tokens", words[0])[1].replace(",", "")) >= gave > 0
    assert isinstance(stayer.runs[0].events[-1][1], Finished)
    assert stayer.runs[0].status.tokens == 3 * 20 * run.manifest.tokens_per_step


def test_who_cannot_come_back_is_told_that_nobody_answers(world: MakeWorld):
    run = world(inner={"steps": 20})
    leader, member = (join(run, f"stage-{each}", "volunteer", each) for each in range(2))
    assert run.run_until(lambda: bool(told(leader, StepDone, lambda step: step.round == 2)), 60)
    node = run.owners["node"]
    for each in (node, leader, member):
        assert each.process is not None
        run.kill(each.process)
    run.start(member)
    assert run.run_until(lambda: waits_for(member).startswith("an answer from the operator's node at "), 20)
    run.start(node)
    run.start(leader)
    all_end_well(run, leader, member, seconds=120)


def test_the_node_says_that_a_peer_pauses_and_why(world: MakeWorld):
    run = world(replicas={"groups": 1, "datacenters": 1}, outer={"rounds": 60})
    owners = [join(run, f"stage-{each}", "volunteer", each) for each in range(2)] + [join(run, "center", "datacenter")]
    center = owners[-1]
    assert run.run_until(lambda: bool(told(center, RoundDone)), 60)
    pausing.request_pause(center.folder)
    assert run.run_until(lambda: bool(told(center, Paused)), 60)
    run.run_for(2)
    (state,) = {(each.state, "hetpeer pause" in each.why) for each in seen(run).peers if each.role == "datacenter"}
    assert state == ("paused", True)


def takes(run: World, stage: int) -> int:
    """The bytes of memory that a stage of the run takes."""
    return memory_of(run.manifest, Duty("volunteer", stage, recompute=True)).total


def test_a_volunteer_without_a_wish_gets_the_scarcest_of_the_stages_that_fit_its_machine(world: MakeWorld):
    run = world(replicas={"groups": 2, "datacenters": 0}, model={"layers": 2, "vocabulary": 3000}, inner={"steps": 20})
    small = {"max_memory": takes(run, 0)}
    assert takes(run, 1) > takes(run, 0)
    other = join(run, "other", "volunteer", 0)
    assert run.run_until(lambda: bool(told(other, Joined)), 10)
    fitted = join(run, "fitted", "volunteer", settings=small)
    assert run.run_until(lambda: bool(told(fitted, Joined)), 10)
    rest = [join(run, f"rest-{each}", "volunteer", latency=0.01 + each / 100) for each in range(2)]
    assert run.run_until(lambda: bool(told(fitted, StepDone)), 60), waits_for(fitted)
    assert [told(each, Placed)[0].stage for each in (fitted, *rest)] == [0, 1, 1]
    assert told(fitted, Placed)[0].reason.startswith("this machine fits no other stage (stage 1 needs ")
    assert told(rest[0], Placed)[0].reason == "the operator's node gave it the stage that had the fewest volunteers"
    assert fitted.process is not None
    run.kill(fitted.process)
    run.start(fitted)
    all_end_well(run, other, fitted, *rest, seconds=120)
    assert [placed.stage for placed in told(fitted, Placed)] == [0, 0]
    assert told(fitted, Placed)[1].reason == "its folder has this place from an earlier time"
    assert told(fitted, Contributed)


def test_a_volunteer_whose_machine_fits_no_stage_is_told_what_each_needs_and_ends(world: MakeWorld):
    run = world()
    none = join(run, "none", "volunteer", settings={"max_memory": "10MB"})
    assert run.run_until(lambda: none.process is None, 10)
    (ended,) = none.runs
    assert ended.exit_code == 4
    assert ended.error.startswith("no stage of this run fits this machine: stage")
    assert all(f"{name} needs" in ended.error for name in ("stage 0", "stage 1"))
    assert ended.error.endswith("; for stage 0, give --max-memory 581MB")
    assert not told(none, Joined)
    group = [join(run, f"stage-{each}", "volunteer") for each in range(2)]
    all_end_well(run, *group)  # it holds nobody's place


def test_who_gives_its_place_less_than_it_takes_is_told_which_stage_would_fit(world: MakeWorld):
    run = world(model={"layers": 2, "vocabulary": 3000})
    group = [join(run, f"stage-{each}", "volunteer", latency=0.01 + each / 100) for each in range(2)]
    assert run.run_until(lambda: all(bool(told(each, StepDone)) for each in group), 60)
    last = group[1]
    assert last.process is not None
    run.kill(last.process)
    last.settings = {"max_memory": takes(run, 0)}
    run.start(last)
    assert run.run_until(lambda: last.process is None, 20)
    assert [told(each, Placed)[0].stage for each in group] == [0, 1]
    assert last.runs[-1].exit_code == 4
    assert last.runs[-1].error.endswith("; of this run's stages, this machine fits 0: take it with --stage 0")
    last.settings = {}
    run.start(last)
    all_end_well(run, *group)
