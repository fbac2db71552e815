"""Decisions, tried on invented swarms."""

from itertools import permutations, product

from hypothesis import given
from hypothesis import strategies as st

from peer.swarm.group.plan import (
    MUCH_QUICKER,
    TURN_SECONDS,
    backoff_seconds,
    better_members,
    choose_members,
    difference,
    goes_first,
)
from protocol.identity import PeerId
from protocol.trust.records import PeerRecord


def volunteer(name: str, stage: int, replica: str = "", speed: float = 0.0) -> PeerRecord:
    return PeerRecord.model_validate(
        {
            "peer_id": PeerId(name),
            "address": f"{name}:1",
            "role": "volunteer",
            "stage": stage,
            "slot": 0,
            "replica": replica,
            "tokens_per_second": speed,
        }
    )


def test_a_leader_takes_a_free_peer_of_every_other_stage():
    me = volunteer("a", 0)
    peers = (me, volunteer("b", 1), volunteer("c", 2), volunteer("d", 1, replica="x"))
    chosen = choose_members(peers, me, stages=3)
    assert {stage: peer.peer_id for stage, peer in chosen.items()} == {1: "b", 2: "c"}


def test_it_takes_what_there_is_while_a_stage_is_missing():
    me = volunteer("a", 0)
    assert list(choose_members((me, volunteer("c", 2)), me, stages=3)) == [2]


def test_seats_that_are_taken_are_left_alone():
    me = volunteer("a", 0)
    assert list(choose_members((me, volunteer("b", 1), volunteer("c", 2)), me, stages=3, taken=[1])) == [2]


def test_who_was_declined_asks_the_next_one():
    me = volunteer("a", 0)
    peers = (me, volunteer("b", 1), volunteer("c", 1))
    assert [choose_members(peers, me, 2, (), attempt)[1].peer_id for attempt in range(3)] == ["b", "c", "b"]


def test_a_pipeline_of_one_stage_needs_nobody():
    me = volunteer("a", 0)
    assert choose_members((me,), me, stages=1) == {}


@given(st.integers(1, 6), st.integers(1, 4))
def test_leaders_that_look_at_the_same_time_do_not_choose_the_same_peers(groups: int, stages: int):
    peers = tuple(volunteer(f"p{group}-{stage}", stage) for group in range(groups) for stage in range(stages))
    leaders = [peer for peer in peers if peer.stage == 0]
    chosen = [choose_members(peers, leader, stages) for leader in leaders]
    names = [peer.peer_id for members in chosen for peer in members.values()]
    assert len(names) == len(set(names)) == groups * (stages - 1)


@given(st.permutations(range(8)), st.integers(0, 8), st.integers(2, 4))
def test_like_goes_with_like(order: list[int], quick: int, stages: int):
    """Eight groups' volunteers, some of them at a tenth of the others' speed, by names that say nothing of it."""
    speeds = [1000.0 + number if number < quick else 100.0 + number for number in range(8)]
    peers = tuple(
        volunteer(f"p{name}-{stage}", stage, speed=speeds[number])
        for stage in range(stages)
        for number, name in enumerate(order if stage else range(8))
    )
    leaders = [peer for peer in peers if peer.stage == 0]
    chosen = {leader.peer_id: choose_members(peers, leader, stages) for leader in leaders}
    names = [peer.peer_id for members in chosen.values() for peer in members.values()]
    assert len(names) == len(set(names)) == 8 * (stages - 1)
    for leader in leaders:
        assert all(difference(leader, member) < 0.1 for member in chosen[leader.peer_id].values())


def test_two_leaders_that_differ_get_members_like_themselves():
    slow, quick = volunteer("a", 0, speed=90.0), volunteer("b", 0, speed=900.0)
    peers = (slow, quick, volunteer("c", 1, speed=1000.0), volunteer("d", 1, speed=100.0))
    assert choose_members(peers, slow, 2)[1].peer_id == "d"
    assert choose_members(peers, quick, 2)[1].peer_id == "c"


@given(st.floats(1e-3, 1e9), st.floats(0, 1e9))
def test_if_there_is_but_a_slow_one_it_is_taken(mine: float, its: float):
    me = volunteer("a", 0, speed=mine)
    assert choose_members((me, volunteer("b", 1, speed=its)), me, 2)[1].peer_id == "b"


speeds = st.sampled_from([0.0, 1.0, 10.0, 11.0, 100.0])


@given(st.lists(speeds, max_size=6), st.lists(speeds, min_size=1, max_size=6), st.integers(0, 12))
def test_whatever_their_speeds_a_leader_asks_each_candidate_in_turn_and_first_one_of_its_own(
    leading: list[float], serving: list[float], attempt: int
):
    leaders = [volunteer(f"l{number}", 0, speed=speed) for number, speed in enumerate([7.0, *leading])]
    candidates = [volunteer(f"c{number}", 1, speed=speed) for number, speed in enumerate(serving)]
    peers = (*leaders, *candidates)
    first = [choose_members(peers, leader, 2)[1].peer_id for leader in leaders]
    assert len(set(first)) == min(len(leaders), len(candidates)) or len(candidates) < len(leaders)
    me, turns = leaders[0], range(attempt, attempt + len(candidates))
    assert len({choose_members(peers, me, 2, (), turn)[1].peer_id for turn in turns}) == len(candidates)


def test_of_those_alike_the_nearest_is_asked_first_unless_another_leader_wants_it():
    me, other = volunteer("a", 0, speed=100.0), volunteer("b", 0, speed=100.0)
    near, far, slow = volunteer("d", 1, speed=90.0), volunteer("c", 1, speed=105.0), volunteer("e", 1, speed=9.0)
    trips = {near.peer_id: 0.02, far.peer_id: 0.2, slow.peer_id: 0.001}
    assert choose_members((me, near, far, slow), me, 2, (), 0, trips)[1] == near
    silent = {far.peer_id: 0.2}  # the other did not answer
    assert choose_members((me, near, far, slow), me, 2, (), 0, silent)[1] == far
    both = [choose_members((me, other, near, far, slow), leader, 2, (), 0, trips)[1] for leader in (me, other)]
    assert {peer.peer_id for peer in both} == {"c", "d"}


def test_backing_off_doubles_up_to_two_seconds():
    assert [backoff_seconds(attempt, 1.0) for attempt in range(5)] == [0.25, 0.5, 1, 2, 2]


# Who goes first


def firsts(peers: tuple[PeerRecord, ...], stages: int, at: float = 0.0) -> dict[str, str | None]:
    """What each leader without a whole group is told, by its id."""
    taken = {name: {peer.stage for peer in peers if peer.replica == name and peer.stage} for name in "abc"}
    leaders = [peer for peer in peers if peer.stage == 0 and len(taken[peer.peer_id]) < stages - 1]
    return {me.peer_id: goes_first(peers, me, stages, taken[me.peer_id], at) for me in leaders}


def test_of_leaders_that_hold_what_the_others_lack_all_but_one_let_go():
    peers = (
        *(volunteer(name, 0) for name in "abc"),
        *(volunteer(f"m{stage}", stage, replica=name) for stage, name in enumerate("abc", 1)),
    )
    for at in range(100):
        told = firsts(peers, 4, at * TURN_SECONDS)
        (first,) = {name for name in told.values() if name is not None}
        assert told[first] is None
        assert [name for name, other in told.items() if other is None] == [first]
        assert firsts(peers, 4, (at + 0.99) * TURN_SECONDS) == told


def test_each_of_them_has_its_turn():
    peers = (volunteer("a", 0), volunteer("b", 0), volunteer("c", 1, "a"), volunteer("d", 2, "b"))
    assert {firsts(peers, 3, turn * TURN_SECONDS)["a"] for turn in range(20)} == {None, "b"}


def test_who_goes_second_waits_though_it_has_let_go():
    peers = (volunteer("a", 0), volunteer("b", 0), volunteer("c", 1, "a"), volunteer("d", 2, "b"))
    for turn in range(20):
        told = firsts(peers, 3, turn * TURN_SECONDS)
        ((second, first),) = [(name, other) for name, other in told.items() if other is not None]
        gone = tuple(
            volunteer(peer.peer_id, peer.stage, "" if peer.replica == second else peer.replica) for peer in peers
        )
        assert firsts(gone, 3, turn * TURN_SECONDS) == {first: None, second: first}


def test_a_group_that_trains_goes_first_whosever_turn_it_is():
    peers = (volunteer("a", 0), volunteer("b", 0, "b"), volunteer("c", 1, "a"), volunteer("d", 2, "b"))
    assert all(firsts(peers, 3, turn * TURN_SECONDS) == {"a": "b", "b": None} for turn in range(20))


def test_nobody_lets_go_for_a_group_that_is_whole_or_holds_nothing_that_is_lacked():
    whole = (volunteer("a", 0), volunteer("b", 0, "b"), volunteer("c", 1, "b"), volunteer("d", 2, "b"))
    lacking = (volunteer("a", 0), volunteer("b", 0), volunteer("c", 1, "a"), volunteer("e", 1, "b"))
    spare = (volunteer("a", 0), volunteer("b", 0), volunteer("c", 1, "a"), volunteer("d", 2, "b"), volunteer("f", 2))
    for turn in range(20):
        assert firsts(whole, 3, turn * TURN_SECONDS) == {"a": None}
        assert firsts(lacking, 3, turn * TURN_SECONDS) == {"a": None, "b": None}
        assert firsts(spare, 3, turn * TURN_SECONDS)["a"] is None


# Whom groups exchange


def grouped(speeds: list[list[float]], spares: list[list[float]]) -> tuple[PeerRecord, ...]:
    """Groups, each of these speeds by stage, and at each stage but the first some volunteers without one."""
    seated = (
        volunteer(f"g{group}-{stage}", stage, f"g{group}-0", speed)
        for group, of in enumerate(speeds)
        for stage, speed in enumerate(of)
    )
    free = (
        volunteer(f"s{number}-{stage}", stage, "", speed)
        for stage, of in enumerate(spares, 1)
        for number, speed in enumerate(of)
    )
    return (*seated, *free)


def exchanged(peers: tuple[PeerRecord, ...], stages: int) -> dict[str, dict[int, PeerRecord]]:
    """Whom each leader would have at its later stages afterwards."""
    found = {}
    for leader in (peer for peer in peers if peer.leads):
        mine = {peer.stage: peer for peer in peers if peer.replica == leader.peer_id and peer.stage}
        better = better_members(peers, leader, stages, {stage: peer.peer_id for stage, peer in mine.items()})
        assert all(peer.peer_id != mine[stage].peer_id for stage, peer in better.items())
        found[leader.peer_id] = mine | better
    return found


def pace(peers: tuple[PeerRecord, ...], groups: dict[str, dict[int, PeerRecord]]) -> float:
    """How quick all groups are together."""
    led = {peer.peer_id: peer.tokens_per_second for peer in peers}
    return sum(min(led[leader], *(each.tokens_per_second for each in of.values())) for leader, of in groups.items())


groups_of_three = st.integers(1, 3).flatmap(
    lambda count: st.tuples(
        st.lists(
            st.lists(st.sampled_from([1.0, 1.5, 2.0, 4.0, 8.0]), min_size=3, max_size=3), min_size=count, max_size=count
        ),
        st.lists(st.lists(st.sampled_from([1.0, 3.0, 8.0]), max_size=1), min_size=2, max_size=2),
    )
)


@given(groups_of_three)
def test_together_the_groups_are_as_quick_as_they_can_be_or_nearly_so_and_nobody_is_in_two(made):
    peers = grouped(*made)
    leaders = [peer for peer in peers if peer.stage == 0]
    before = {
        leader.peer_id: {peer.stage: peer for peer in peers if peer.replica == leader.peer_id and peer.stage}
        for leader in leaders
    }
    after = exchanged(peers, 3)
    seated = [peer.peer_id for of in after.values() for peer in of.values()]
    assert len({*seated}) == len(seated)
    of_stage = [[peer for peer in peers if peer.stage == stage] for stage in (1, 2)]
    best = max(
        pace(peers, {leader.peer_id: {1: one, 2: other} for leader, one, other in zip(leaders, *seating, strict=True)})
        for seating in product(*(permutations(of, len(leaders)) for of in of_stage))
    )
    if best >= MUCH_QUICKER * pace(peers, before):
        assert pace(peers, after) == best
    else:
        assert after == before


def test_nobody_is_exchanged_where_a_group_is_not_whole_or_somebody_has_no_speed():
    uneven = [[8.0, 1.0], [1.0, 8.0]]
    whole = grouped(uneven, [[]])
    assert {leader: of[1].peer_id for leader, of in exchanged(whole, 2).items()} == {"g0-0": "g1-1", "g1-0": "g0-1"}
    me = whole[0]
    assert better_members(whole[:3], me, 2, {1: PeerId("g0-1")}) == {}
    unknown = grouped([[8.0, 1.0], [1.0, 0.0]], [[]])
    assert better_members(unknown, unknown[0], 2, {1: PeerId("g0-1")}) == {}


def test_a_quick_spare_takes_the_seat_of_a_slow_member():
    peers = grouped([[8.0, 1.0]], [[7.0]])
    assert exchanged(peers, 2)["g0-0"][1].peer_id == "s0-1"
