"""After a run's end, in virtual time: somebody stays who holds the model, and latecomers get it."""

import shutil

from bootstrap.admission.admission_policy import OBSERVER_FOLDER
from peer import pausing
from peer.export.collected import bring_up_to_date, collect
from protocol.events.activity import Contributed, Finished, Joined, Progress, RoundDone
from protocol.events.decisions import CaughtUp, Left, Placed, Resynchronised
from protocol.events.waiting import Waiting
from protocol.patience import SETTLE_PATIENCE_SECONDS
from tests.world import test_cases
from tests.world.loop import in_host
from tests.world.owners import Owner, Process
from tests.world.test_cases import MakeWorld, all_end_well, join, seen, told
from tests.world.test_more_cases import group, until_step
from tests.world.world import World

world = test_cases.world


def digests_of(run: World, *names: str) -> set[tuple[tuple[str, str], ...]]:
    """The last states that these have told, of the parts of the whole model that each holds."""
    return {
        tuple(sorted((str(part), digest) for part, digest in event.digests.items()))
        for name in names
        for event in told(run.owners[name], Finished)
    }


def exported(run: World, name: str) -> dict[str, str]:
    """The digests of the model that `hetpeer export TICKET` collects on a new machine."""
    owner = run.add(name, "observer")
    process = Process(name, owner.machine)
    owner.runs.append(process)

    async def work(stop: object) -> None:
        assert run.ticket is not None
        await bring_up_to_date(run.ticket, owner.folder, 1, False, stop, run._teller(process))  # type: ignore[arg-type]

    process.task = run.loop.create_task(run._run(process, work), context=in_host(process))
    assert run.run_until(lambda: process.exit_code is not None, 60)
    assert (process.exit_code, process.error) == (0, "")
    assert told(owner, CaughtUp)
    assert not any(told(owner, kind) for kind in (Joined, Placed, Left, Finished))  # who exports takes no part
    collected = collect([owner.folder, run.owners["node"].folder], None, lambda event: None)
    assert collected.round == run.manifest.outer.rounds
    return {str(part): digest for part, digest in collected.digests.items()}


def last_state(*owners: Owner) -> dict[str, str]:
    """The digests of the parts that these have told at the end."""
    return {
        part: digest for owner in owners for event in told(owner, Finished) for part, digest in event.digests.items()
    }


def test_when_all_have_gone_the_node_holds_the_last_state_and_gives_it_to_who_comes_late(world: MakeWorld):
    run = world(keeps_model=True)
    peers = [*group(run), join(run, "sleeper", "observer")]
    until_step(run, peers[0], 2)
    pausing.request_pause(peers[2].folder)
    assert run.run_until(lambda: all(told(each, RoundDone, lambda event: event.round == 3) for each in peers[:2]), 60)
    ended = run.loop.now
    all_end_well(run, *peers[:2])
    assert run.loop.now - ended < 15
    assert seen(run).state == "finished"
    assert "the node holds the model" in seen(run).state_why
    pausing.end_pause(peers[2].folder)
    all_end_well(run, peers[2], seconds=20)
    node = run.owners["node"]
    assert node.process is not None
    run.kill(node.process)
    run.start(node)
    assert run.run_until(lambda: "the node holds the model" in seen(run).state_why, 20)
    assert exported(run, "export") == last_state(*peers[:2])
    run.interrupt(node.process)
    assert run.run_until(lambda: node.process is None, 60)
    assert node.runs[-1].exit_code == 130
    assert run.failures == []


def test_who_is_told_of_the_end_while_others_wait_for_one_that_is_cut_off_ends_as_they_do(world: MakeWorld):
    run = world(replicas={"groups": 0, "datacenters": 3})
    first, late, cut_off = centers = [join(run, f"center-{number}", "datacenter") for number in range(3)]
    until_step(run, first, 3, 1)
    run.network.partition(["center-2"])
    assert run.run_until(lambda: bool(told(late, Contributed, lambda event: event.round == 3)), 30)
    assert late.process is not None
    run.kill(late.process)
    assert run.run_until(lambda: bool(told(first, RoundDone, lambda event: event.round == 3)), 60)
    assert run.run_until(lambda: seen(run).state == "finished", 15)
    run.start(late)
    assert run.run_until(lambda: bool(told(late, CaughtUp, lambda event: event.round == 3)), 15)
    assert any("the run is over" in event.doing for event in told(late, Progress))
    run.run_for(3)
    run.network.partition(())
    all_end_well(run, *centers)
    assert all(told(owner, Finished) for owner in centers)
    assert len(digests_of(run, "center-0", "center-1", "center-2")) == 1
    assert {event.contributions["embedding"] for event in told(cut_off, RoundDone) if event.round == 3} == {1}


def test_who_is_cut_off_late_in_the_wait_for_the_end_is_waited_for_as_long_as_others(world: MakeWorld):
    run = world(replicas={"groups": 0, "datacenters": 3})
    centers = [join(run, f"center-{number}", "datacenter") for number in range(3)]
    until_step(run, centers[0], 3, 1)
    run.network.partition(["center-1"])
    for owner in centers:
        assert run.run_until(lambda owner=owner: bool(told(owner, RoundDone, lambda event: event.round == 3)), 60)
    run.run_for(10)
    run.network.partition(["center-1", "center-2"])
    run.run_for(SETTLE_PATIENCE_SECONDS - 3)
    assert not any(told(owner, Finished) for owner in centers)
    run.network.partition(())
    all_end_well(run, *centers)
    assert len(digests_of(run, "center-0", "center-1", "center-2")) == 1


def test_who_has_finished_alone_takes_the_state_that_more_hold_and_they_wait_for_that(world: MakeWorld):
    """It has closed rounds with its own contributions only, and no later round shows it what the others hold."""
    run = world(replicas={"groups": 0, "datacenters": 4}, outer={"rounds": 9, "grace": 2})
    alone, *others = centers = [run.add(f"center-{number}", "datacenter") for number in range(4)]
    for owner in centers:
        owner.machine.speed = 1.0 if owner is alone else 8.0
        run.start(owner)
    until_step(run, alone, 2, 1)
    run.network.partition([alone.name])
    assert run.run_until(lambda: bool(told(alone, RoundDone, lambda event: event.round == 9)), 60)
    assert not any(told(owner, RoundDone, lambda event: event.round == 9) for owner in others)
    assert run.run_until(lambda: any("the end of the run" in event.what for event in told(alone, Waiting)), 5)
    run.network.partition(())
    all_end_well(run, *centers, seconds=200)
    assert {event.part for event in told(alone, Resynchronised)} == {"embedding", "stage-0", "stage-1"}
    assert not any(told(owner, Resynchronised) for owner in others)
    assert len(digests_of(run, *(owner.name for owner in centers))) == 1


def test_who_has_finished_stays_until_a_node_that_comes_back_has_the_last_state(world: MakeWorld):
    run = world(keeps_model=True)
    peers, node = group(run), run.owners["node"]
    until_step(run, peers[0], 2)
    assert node.process is not None
    run.kill(node.process)
    assert run.run_until(lambda: all(told(each, RoundDone, lambda event: event.round == 3) for each in peers), 60)
    run.run_for(5)
    node.machine.speed = 20.0  # its process that holds the model takes its time
    run.start(node)
    all_end_well(run, *peers, seconds=120)
    assert told(peers[0], Waiting, lambda event: event.what == "the operator's node to take the run's last state")
    assert "the node holds the model" in seen(run).state_why
    assert exported(run, "export") == last_state(*peers)


def test_a_node_that_has_missed_the_end_takes_the_last_state_from_who_brings_it_back(world: MakeWorld):
    run = world(keeps_model=True)
    peers, node = group(run), run.owners["node"]
    until_step(run, peers[0], 3)
    assert node.process is not None
    run.kill(node.process)
    all_end_well(run, *peers, seconds=120)
    shutil.rmtree(node.folder / OBSERVER_FOLDER, ignore_errors=True)
    run.start(node)
    run.run_for(20)
    for each in peers:
        run.start(each)
    all_end_well(run, *peers, seconds=60)
    assert "the node holds the model" in seen(run).state_why
    assert exported(run, "export") == last_state(*peers)
