"""Who should serve another stage, decided from invented records."""

from collections import Counter
from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from peer.swarm.surplus import OVERDUE_MOVE_RATIO, SURPLUS_SECONDS, Watch
from protocol.identity import PeerId
from protocol.staffing import in_whole_groups, moves, stage_in_need
from protocol.trust.records import PeerRecord, Peers


def peer(name: str, stage: int = 0, replica: str = "", moves_to: tuple[int, ...] = (), **more: object) -> PeerRecord:
    place = {"role": "volunteer", "stage": stage, "replica": replica, "moves_to": list(moves_to)}
    return PeerRecord.model_validate({"peer_id": PeerId(name), "address": "h:1", "slot": 0} | place | more)


def group(name: str, stages: int = 2) -> Peers:
    """A group that is whole: its leader has the group's name."""
    return tuple(peer(name if not stage else f"{name}{stage}", stage, name) for stage in range(stages))


TWO = peer("x", moves_to=(1,)), peer("y", moves_to=(1,))


def test_as_many_move_as_make_another_group_possible():
    assert moves((*group("a"), *TWO), 2) == {"x": 1}
    assert moves((*group("a"), *TWO, peer("z", moves_to=(1,)), peer("w", moves_to=(1,))), 2) == {"w": 1, "x": 1}


def test_nobody_moves_where_no_other_group_would_be_possible():
    assert moves((*group("a"), TWO[0]), 2) == {}
    assert moves((*group("a"), *group("b"), TWO[0]), 2) == {}
    assert moves((*group("a", 3), peer("x", moves_to=(1, 2)), peer("y", moves_to=(1, 2))), 3) == {}
    assert moves((*group("a", 3), peer("v"), peer("w"), peer("x", moves_to=(1,)), peer("y")), 3) == {}
    assert moves((), 2) == {}


def test_where_a_stage_has_nobody_and_no_group_is_possible_somebody_moves_there():
    assert moves(TWO, 2) == {"x": 1}
    half = peer("x", 0, "x", moves_to=(1, 2)), peer("x1", 1, "x"), peer("y", moves_to=(2,))
    assert moves(half, 3) == {"y": 2}


def test_only_who_has_agreed_to_it_moves():
    assert moves((*group("a"), peer("w"), *TWO), 2) == {"x": 1}
    assert moves((*group("a"), peer("w"), peer("v")), 2) == {}
    assert moves((*group("a"), peer("w"), peer("v")), 2, anywhere=True) == {"v": 1}
    assert moves((*group("a"), *TWO), 2, without=["x"]) == {"y": 1}
    assert moves((*group("a"), *TWO), 2, without=["x", "y"]) == {}


def test_nobody_leaves_a_group_that_is_whole():
    seated = peer("a", 0, "a", moves_to=(1,)), peer("a1", 1, "a")
    assert moves((*seated, peer("v"), peer("w")), 2) == {}
    assert in_whole_groups((*seated, peer("b", 0, "b"), peer("c1", 1, "c")), 2) == {"a", "a1"}
    liar = peer("l", 1, "a")
    assert in_whole_groups((*seated, liar), 2) == {"a", "a1", "l"}  # nobody is driven from its seat by another's word


def test_who_has_the_least_choice_and_has_trained_least_recently_moves_first():
    flexible, bound = peer("v", moves_to=(1, 2)), peer("w", moves_to=(1,))
    assert moves((*group("a", 3), flexible, bound, peer("z")), 3) == {"v": 2, "w": 1}
    trained = peer("x", moves_to=(1,), contributed=4, round=4)
    assert moves((*group("a"), trained, TWO[1], peer("o", role="observer", round=4)), 2) == {"y": 1}
    halted = peer("x", replica="x", moves_to=(1,))
    assert moves((*group("a"), halted, TWO[1]), 2) == {"y": 1}


def test_nobody_moves_to_a_stage_whose_state_nobody_holds():
    alone = peer("x", moves_to=(1,), round=3), peer("y", moves_to=(1,), round=3)
    assert moves(alone, 2) == {}
    assert moves((*alone, peer("z", 1)), 2) == {}  # it has come too late for it
    assert moves((*alone, peer("w"), peer("z", 1, round=2)), 2) == {"x": 1}
    assert moves((*alone, peer("o", role="observer", round=3)), 2) == {"x": 1}


def test_every_surplus_volunteer_is_told_the_stage_that_is_short():
    v, w = peer("v"), peer("w")
    swarm = (*group("a"), v, w)
    assert (stage_in_need(swarm, v, 2), stage_in_need(swarm, w, 2)) == (1, 1)
    assert stage_in_need(swarm, swarm[0], 2) is None
    assert stage_in_need((*group("a"), v), v, 2) is None
    assert stage_in_need((*group("a"), *TWO), TWO[1], 2) == 1


@st.composite
def swarms(draw: st.DrawFn) -> tuple[int, Peers]:
    stages, groups = draw(st.integers(1, 4)), draw(st.integers(0, 3))
    whole = [each for number in range(groups) for each in group(f"g{number}-", stages)]
    choice = st.lists(st.integers(0, stages - 1), unique=True, max_size=stages)
    others = draw(st.lists(st.tuples(st.integers(0, stages - 1), choice, st.integers(0, 2)), max_size=12))
    return stages, (
        *whole,
        *(
            peer(f"v{number}", stage, moves_to=tuple(each for each in to if each != stage), contributed=contributed)
            for number, (stage, to, contributed) in enumerate(others)
        ),
        peer("o", role="observer"),
    )


def counts(peers: Peers, stages: int) -> list[int]:
    held = Counter(each.stage for each in peers if each.role == "volunteer")
    return [held[stage] for stage in range(stages)]


def moved(peers: Peers, planned: Mapping[PeerId, int]) -> Peers:
    """The swarm when these have moved, and still would to any stage that they have known."""

    def after(each: PeerRecord) -> PeerRecord:
        to = planned[each.peer_id]
        others = sorted({each.stage, *each.moves_to} - {to})
        return each.model_copy(update={"stage": to, "moves_to": others, "contributed": 0})

    return tuple(after(each) if each.peer_id in planned else each for each in peers)


@given(swarms(), st.data())
def test_no_stage_becomes_short_whoever_of_those_that_should_move_has_moved(
    swarm: tuple[int, Peers], data: st.DataObject
):
    stages, peers = swarm
    planned = moves(peers, stages)
    done = {each: planned[each] for each in planned if data.draw(st.booleans())}
    before, between, after = (counts(moved(peers, each), stages) for each in ({}, done, planned))
    assert min(between) >= min(before)
    assert min(after) > min(before) if planned else after == before
    assert all(now >= min(after) for now, then in zip(between, before, strict=True) if now < then)
    seated = in_whole_groups(peers, stages)
    assert all(
        each.peer_id not in seated and planned[each.peer_id] in each.moves_to
        for each in peers
        if each.peer_id in planned
    )


@given(swarms())
def test_moves_come_to_an_end_and_nobody_moves_back(swarm: tuple[int, Peers]):
    stages, peers = swarm
    while planned := moves(peers, stages):
        left = {each.stage for each in peers if each.peer_id in planned}
        assert not left & set(planned.values())
        fewest, peers = min(counts(peers, stages)), moved(peers, planned)
        assert min(counts(peers, stages)) > fewest


@given(swarms(), st.randoms())
def test_all_who_read_the_same_records_come_to_the_same(swarm: tuple[int, Peers], random: object):
    stages, peers = swarm
    shuffled = list(peers)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert moves(tuple(shuffled), stages) == moves(peers, stages)


@given(swarms())
def test_where_everybody_would_move_anywhere_as_many_groups_are_possible_as_there_can_be(swarm: tuple[int, Peers]):
    stages, peers = swarm
    after = counts(moved(peers, moves(peers, stages, anywhere=True)), stages)
    seated = in_whole_groups(peers, stages)
    free = sum(each.role == "volunteer" and each.peer_id not in seated for each in peers)
    whole = len(seated) // stages
    assert min(after) == whole + free // stages


# For how long


def at(watch: Watch, peers: Peers, me: str, now: float) -> int | None:
    return watch.look(peers, next(each for each in peers if each.peer_id == me), 2, now)


def in_round(peers: Peers, round: int) -> Peers:
    return tuple(each.model_copy(update={"round": round}) for each in peers)


SWARM = *group("a"), *TWO


def test_a_volunteer_moves_when_it_has_been_surplus_for_long_and_a_round_has_ended():
    watch, later = Watch(), SURPLUS_SECONDS
    assert at(watch, in_round(SWARM, 4), "x", 0.0) is None
    assert at(watch, in_round(SWARM, 5), "x", later - 1) is None
    assert at(watch, in_round(SWARM, 4), "x", later) is None
    assert at(watch, in_round(SWARM, 5), "x", later) == 1
    assert at(watch, in_round(SWARM, 5), "y", later) is None


def test_where_nobody_trains_no_round_is_waited_for():
    watch, two = Watch(), (*in_round(TWO, 4), peer("o", role="observer", round=4))
    assert at(watch, two, "x", 0.0) is None
    assert at(watch, two, "x", SURPLUS_SECONDS) == 1
    assert at(watch, (*two, peer("d", role="datacenter")), "x", SURPLUS_SECONDS) is None


def test_while_the_run_gathers_no_round_is_waited_for():
    watch = Watch()
    assert at(watch, SWARM, "x", 0.0) is None
    assert at(watch, SWARM, "x", SURPLUS_SECONDS) == 1


def test_who_is_needed_for_a_moment_begins_to_wait_anew():
    watch, back = Watch(), (*SWARM, peer("b1", 1))
    assert at(watch, in_round(SWARM, 4), "x", 0.0) is None
    assert at(watch, in_round(back, 5), "x", SURPLUS_SECONDS / 2) is None
    assert at(watch, in_round(SWARM, 6), "x", SURPLUS_SECONDS) is None
    assert at(watch, in_round(SWARM, 7), "x", 2 * SURPLUS_SECONDS) == 1


def test_who_has_contributed_to_the_round_in_progress_stays_until_it_is_over():
    watch, swarm = Watch(), (*group("a"), peer("x", moves_to=(1,), contributed=6), peer("y"))
    assert at(watch, in_round(swarm, 4), "x", 0.0) is None
    assert at(watch, in_round(swarm, 5), "x", SURPLUS_SECONDS) is None
    assert at(watch, in_round(swarm, 6), "x", SURPLUS_SECONDS) == 1


def test_who_never_moves_keeps_the_next_one_only_for_a_while():
    watch = Watch()
    for step in range(OVERDUE_MOVE_RATIO + 3):
        due = at(watch, in_round(SWARM, 4 + step), "y", step * SURPLUS_SECONDS)
        assert due == (1 if step == OVERDUE_MOVE_RATIO + 2 else None), step
