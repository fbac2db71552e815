"""The state of a stage that nobody holds any more: everybody says so, and the run goes on when somebody brings it."""

import pytest

from peer.network.discovery import WRITE_SECONDS
from protocol.events.activity import Resumed, StepDone
from protocol.events.decisions import Adopted
from tests.world import test_cases
from tests.world.owners import Owner
from tests.world.test_cases import MakeWorld, all_end_well, join, seen, told, waits_for
from tests.world.test_more_cases import group, until_step
from tests.world.world import World

world = test_cases.world


@pytest.mark.parametrize("stage", [0, 1])
def test_a_state_that_nobody_holds_is_named_by_all_and_the_run_goes_on_when_it_is_back(world: MakeWorld, stage: int):
    run = world(outer={"rounds": 6})
    peers = group(run)
    until_step(run, peers[0], 4)
    lost, other = peers[stage], peers[1 - stage]
    assert lost.process is not None
    run.kill(lost.process)
    new = join(run, "new", "volunteer", stage)
    said = (
        f"the state of stage {stage} after round 3: nobody who is here holds it; a peer that has it in its folder can "
        "bring it back, or the run's operator can go on without it: `hetpeer admin rewind`"
    )
    assert run.run_until(lambda: waits_for(new) == waits_for(other) == said, 60), [*map(waits_for, (new, other))]
    assert run.run_until(lambda: seen(run).state == "stalled", 30), seen(run).state
    assert seen(run).state_why == f"waits for {said}"
    assert {each.why for each in seen(run).peers if each.state == "waiting"} == {said}
    run.run_for(60)
    assert waits_for(new) == waits_for(other) == said
    assert seen(run).state == "stalled"
    assert not told(other, StepDone, lambda each: each.round > 4)
    run.start(lost)
    assert run.run_until(lambda: bool(told(other, StepDone, lambda each: each.round > 4)), 60)
    assert run.run_until(lambda: seen(run).state in ("training", "finished"), 30)
    all_end_well(run, lost, other, new, seconds=120)


def test_a_peer_that_comes_back_while_the_node_is_away_learns_from_any_other_how_far_the_run_is(world: MakeWorld):
    run = world(replicas={"groups": 1, "datacenters": 1}, outer={"rounds": 20})
    center = join(run, "center", "datacenter")
    peers = group(run)
    until_step(run, peers[0], 1)
    spare = join(run, "spare", "volunteer", 0)
    run.run_for(3 * WRITE_SECONDS)  # the datacenter has written down where the spare is
    left_at = rounds_of(center)[-1]
    assert center.process is not None
    assert spare.process is not None
    run.freeze(spare.process)
    run.kill(center.process)
    until_step(run, peers[0], left_at + 4)
    for peer in peers:
        assert peer.process is not None
        run.kill(peer.process)
    run.thaw(spare.process)
    lost = f"stage 0 after round {rounds_of(peers[0])[-1] - 1}"
    assert run.run_until(lambda: lost in waits_for(spare), 60), waits_for(spare)
    node = run.owners["node"]
    assert node.process is not None
    run.kill(node.process)
    run.start(center)
    assert run.run_until(lambda: "nobody who is here holds it" in waits_for(center), 60), waits_for(center)
    run.run_for(60)
    for peer in (node, *peers):
        run.start(peer)
    assert run.run_until(lambda: rounds_of(center)[-1] > left_at, 120)
    assert min(round for round in rounds_of(center) if round > left_at) >= left_at + 4  # none that others had finished
    all_end_well(run, center, spare, *peers, seconds=240)


def rounds_of(owner: Owner) -> list[int]:
    """The round of each step that an owner's peer has taken."""
    return [step.round for step in told(owner, StepDone)]


def test_a_process_that_has_just_begun_trains_on_no_word_but_its_folders(world: MakeWorld):
    """Two datacenters come back, and the node is away before they can ask it: each finds the other, which knows no more
    than it does itself."""
    run = world(replicas={"groups": 0, "datacenters": 3}, outer={"rounds": 40})
    *back, ahead = (join(run, f"center-{number}", "datacenter") for number in range(3))
    until_step(run, ahead, 3)
    stop(run, *back)
    left_at = rounds_of(back[0])[-1]
    until_step(run, ahead, left_at + 5)
    assert ahead.process is not None
    run.freeze(ahead.process)  # whoever asks it waits for an answer
    for center in back:
        run.start(center)
    assert run.run_until(lambda: all(told(center, Resumed) for center in back), 60)
    node = run.owners["node"]
    stop(run, node)
    waiting = "an answer from the operator's node, or from a peer that trains: how far the run is: one of them is back"
    assert run.run_until(lambda: all(waits_for(center).startswith(waiting) for center in back), 60), [
        *map(waits_for, back)
    ]
    run.run_for(60)
    run.start(node)
    run.thaw(ahead.process)
    for center in back:
        assert run.run_until(lambda center=center: rounds_of(center)[-1] > left_at, 120)
        assert min(round for round in rounds_of(center) if round > left_at) >= left_at + 4
    all_end_well(run, *back, ahead, seconds=240)


def stop(run: World, *owners: Owner) -> None:
    """Kill the processes of these owners."""
    for owner in owners:
        assert owner.process is not None
        run.kill(owner.process)


def test_a_peer_goes_on_behind_the_closed_state_that_it_has_taken(world: MakeWorld):
    """A datacenter comes back, with the node away, to an observer alone: that has closed rounds of which this peer
    knows nothing, and cannot prove any others."""
    run = world(replicas={"groups": 0, "datacenters": 2}, outer={"rounds": 30, "liars": 1})
    centers, observer = [join(run, f"center-{at}", "datacenter") for at in range(2)], join(run, "observer", "observer")
    until_step(run, centers[0], 3)
    stop(run, centers[0])
    until_step(run, centers[1], 12)
    stop(run, centers[1], run.owners["node"])
    run.run_for(5)
    run.start(centers[0])
    assert run.run_until(lambda: rounds_of(centers[0])[-1] > 12, 240), (
        rounds_of(centers[0])[-5:],
        waits_for(centers[0]),
        waits_for(observer),
    )
    assert centers[0].process is not None
    rounds = [step.round for _, step in centers[0].process.events if isinstance(step, StepDone)]
    assert rounds[0] == told(centers[0], Adopted)[-1].round + 1
    assert sorted({*rounds}) == [*range(rounds[0], rounds[-1] + 1)]
