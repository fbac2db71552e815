"""Volunteers for whom groups have no seat, while another stage is short: in virtual time."""

from peer.swarm.surplus import SURPLUS_SECONDS
from protocol.events.activity import Contributed, Finished, HandedOver, Inherited, Joined, Progress
from protocol.events.decisions import Left
from protocol.events.waiting import Waiting
from tests.world import test_cases
from tests.world.owners import Owner
from tests.world.properties import at_the_end
from tests.world.test_cases import MakeWorld, all_end_well, join, told
from tests.world.world import World

world = test_cases.world

ANY = {"any_stage": True}


def stages_of(owner: Owner) -> list[int]:
    """The stages that somebody has served, one after the other."""
    return [event.stage for event in told(owner, Joined)]


def all_end_as_they_should(run: World, *owners: Owner, seconds: float = 500) -> None:
    """All of these end well, hold the same, and have lost and counted twice nothing."""
    all_end_well(run, *owners, seconds=seconds)
    assert list(at_the_end(run, list(owners), run.loop.now)) == []
    assert all(len(each) == 1 for each in digests_of(*owners).values())


def digests_of(*owners: Owner) -> dict[str, set[str]]:
    """The digests of each part that these have at the run's end."""
    found: dict[str, set[str]] = {}
    for owner in owners:
        (finished,) = told(owner, Finished)
        for part, digest in finished.digests.items():
            found.setdefault(part, set()).add(digest)
    return found


def surplus_of_stage_0(run: World, settings: dict[str, bool], more: int = 0) -> tuple[list[Owner], list[Owner]]:
    """All but one of the volunteers of stage 1 are lost for good in round 2, while there are three of stage 0, and two
    groups, or `more`, train. Returns the peers that are left: those who have named their stages, and two with these
    settings, whom the node has given stage 0."""
    named = [join(run, f"stage-{each}", "volunteer", each) for each in range(2)]
    lost = [join(run, f"lost-{each}", "volunteer", 1) for each in range(1 + more)]
    run.run_for(5)
    others = [join(run, name, "volunteer", settings=settings) for name in ("one", "two")]
    for owner in run.owners.values():
        owner.machine.speed = 10.0
    trained = [*named, *lost, *(others if more else [])]
    assert run.run_until(lambda: all(told(each, Contributed, lambda event: event.round == 2) for each in trained), 200)
    assert [stages_of(each) for each in others] == [[0], [0]]
    for owner in lost:
        assert owner.process is not None
        run.kill(owner.process)
    return named, others


def test_a_surplus_volunteer_moves_to_the_stage_that_is_short_and_another_group_forms(world: MakeWorld):
    """It is started again after it has moved, by the same command, and stays there."""
    run = world(replicas={"groups": 2, "datacenters": 0}, outer={"rounds": 13})
    named, others = surplus_of_stage_0(run, ANY)
    lost = run.loop.now
    assert run.run_until(lambda: any(stages_of(each) == [0, 1] for each in others), 200)
    assert SURPLUS_SECONDS <= run.loop.now - lost <= 2 * SURPLUS_SECONDS
    mover = next(each for each in others if stages_of(each) == [0, 1])
    (left,) = told(mover, Left)
    assert left.reason.startswith("stage 0 has more volunteers than groups can use, and stage 1 is short")
    assert run.run_until(lambda: bool(told(mover, Contributed)), 100)
    assert mover.process is not None
    run.interrupt(mover.process)
    assert run.run_until(lambda: mover.process is None, 30)
    run.start(mover)
    all_end_as_they_should(run, *named, *others)
    assert sorted(stages_of(each) for each in others) == [[0], [0, 1, 1]]
    assert all(told(each, Contributed, lambda event: event.round == 13) for each in others)
    assert digests_of(*named, *others).keys() == {"embedding", "stage-0", "stage-1"}


def test_who_has_trained_hands_over_to_another_of_its_stage_before_it_moves(world: MakeWorld):
    run = world(replicas={"groups": 3, "datacenters": 0}, outer={"rounds": 9})
    named, others = surplus_of_stage_0(run, ANY, more=1)
    assert run.run_until(lambda: any(stages_of(each) == [0, 1] for each in others), 200)
    mover = next(each for each in others if stages_of(each) == [0, 1])
    assert len(told(mover, HandedOver)) == 1
    (successor,) = [each for each in (*named, *others) if told(each, Inherited)]
    assert successor is not mover
    all_end_as_they_should(run, *named, *others)
    assert sorted(stages_of(each) for each in others) == [[0], [0, 1]]


def test_where_a_stage_has_nobody_left_somebody_moves_there_and_takes_its_state(world: MakeWorld):
    run = world(replicas={"groups": 1, "datacenters": 0}, outer={"rounds": 5})
    observer, lost = join(run, "observer", "observer"), join(run, "lost", "volunteer", 1)
    run.run_for(5)
    others = [join(run, name, "volunteer", settings=ANY) for name in ("one", "two")]
    assert run.run_until(lambda: bool(told(lost, Contributed, lambda event: event.round == 2)), 100)
    assert lost.process is not None
    run.kill(lost.process)
    all_end_as_they_should(run, observer, *others)
    assert sorted(stages_of(each) for each in others) == [[0], [0, 1]]


def test_who_has_not_agreed_to_move_is_told_which_stage_is_short_and_what_to_do(world: MakeWorld):
    run = world(replicas={"groups": 2, "datacenters": 0}, outer={"rounds": 9})
    named, others = surplus_of_stage_0(run, {})
    told_so = (
        "Waits for a seat in a group; this peer is a spare: stage 0 has more volunteers than groups can use, and stage "
        "1 is short: `hetpeer join` without --stage would move there"
    )
    run.run_for(2 * SURPLUS_SECONDS)
    stages = [each for each in (*named, *others) if told(each, Waiting, lambda wait: wait.words == told_so)]
    assert len(stages) == 2
    assert all(stages_of(each) == [0] for each in (named[0], *others))


def test_where_the_node_is_away_a_surplus_volunteer_keeps_its_stage(world: MakeWorld):
    run = world(replicas={"groups": 2, "datacenters": 0}, outer={"rounds": 10})
    named, others = surplus_of_stage_0(run, ANY)
    assert run.run_until(lambda: any(told(each, Left) for each in others), 200)
    node = run.owners["node"]
    assert node.process is not None
    run.kill(node.process)
    said = "WARNING: this peer stays at its stage, and cannot move to stage 1: "
    assert run.run_until(
        lambda: any(told(each, Progress, lambda event: event.doing.startswith(said)) for each in others), 60
    )
    assert run.run_until(lambda: any(stages_of(each) == [0, 0] for each in others), 60)
    run.start(node)
    all_end_as_they_should(run, *named, *others)
