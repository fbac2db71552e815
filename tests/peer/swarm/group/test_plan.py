"""Decisions, tried on invented swarms."""

from collections.abc import Sequence
from itertools import permutations, product
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer.swarm.group.plan import MUCH_QUICKER, backoff_seconds, better_group, preferred, speed_difference
from peer.swarm.roles import looking
from protocol.identity import PeerId
from protocol.trust.records import PeerRecord, Peers


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


def names(peers: Sequence[PeerRecord]) -> list[str]:
    return [peer.peer_id for peer in peers]


def grown(peers: Peers, stages: int) -> dict[str, list[PeerRecord]]:
    """The groups that come of it if all stages of one number look at the same time, one stage after the other, and each
    gets the first that it would call. Nobody is called twice."""
    groups = {first.peer_id: [first] for first in peers if first.stage == 0}
    known = {peer.peer_id: peer for peer in peers}
    for _ in range(1, stages):
        at_once = tuple(known.values())
        for first, group in groups.items():
            (found, *_) = preferred(at_once, known[group[-1].peer_id])
            assert not known[found.peer_id].replica, "two have called it"
            known[found.peer_id] = found.model_copy(update={"replica": first})
            group.append(known[found.peer_id])
    return groups


# Whom a stage calls


def test_a_stage_calls_the_free_peers_of_the_next_one():
    me = volunteer("a", 0)
    peers = (me, volunteer("b", 1), volunteer("c", 2), volunteer("d", 1, replica="x"))
    assert names(preferred(peers, me)) == ["b"]
    middle = volunteer("e", 1, replica="a")
    assert names(preferred((*peers, middle), middle)) == ["c"]


def test_who_finds_nobody_free_calls_nobody_and_the_last_stage_neither():
    me = volunteer("a", 0)
    assert preferred((me, volunteer("c", 2), volunteer("d", 1, replica="x")), me) == []
    assert preferred((me,), me) == []


@given(st.integers(1, 6), st.integers(1, 4))
def test_those_that_look_at_the_same_time_do_not_call_the_same_peers(groups: int, stages: int):
    peers = tuple(volunteer(f"p{group}-{stage}", stage) for group in range(groups) for stage in range(stages))
    made = grown(peers, stages)
    assert len(made) == groups
    assert all(len(group) == stages for group in made.values())


@given(st.permutations(range(8)), st.integers(0, 8), st.integers(2, 4))
def test_like_goes_with_like(order: list[int], quick: int, stages: int):
    """Eight groups' volunteers, some of them at a tenth of the others' speed, by names that say nothing of it."""
    speeds = [1000.0 + number if number < quick else 100.0 + number for number in range(8)]
    peers = tuple(
        volunteer(f"p{name}-{stage}", stage, speed=speeds[number])
        for stage in range(stages)
        for number, name in enumerate(order if stage else range(8))
    )
    for first, *later in grown(peers, stages).values():
        assert len(later) == stages - 1
        assert all(speed_difference(first, member) < 0.1 for member in later)


def test_two_that_differ_call_those_like_themselves():
    slow, quick = volunteer("a", 0, speed=90.0), volunteer("b", 0, speed=900.0)
    peers = (slow, quick, volunteer("c", 1, speed=1000.0), volunteer("d", 1, speed=100.0))
    assert names(preferred(peers, slow)) == ["d", "c"]
    assert names(preferred(peers, quick)) == ["c", "d"]


@given(st.floats(1e-3, 1e9), st.floats(0, 1e9))
def test_if_there_is_but_a_slow_one_it_is_called(mine: float, its: float):
    me = volunteer("a", 0, speed=mine)
    assert names(preferred((me, volunteer("b", 1, speed=its)), me)) == ["b"]


speeds = st.sampled_from([0.0, 1.0, 10.0, 11.0, 100.0])


@given(st.lists(speeds, max_size=6), st.lists(speeds, min_size=1, max_size=6), st.integers(0, 1))
def test_whatever_their_speeds_a_stage_calls_each_candidate_in_turn_and_first_one_of_its_own(
    looks: list[float], serving: list[float], stage: int
):
    """At the first stage, and at one whose group has a first stage but not all of the later ones."""
    rivals = [
        volunteer(f"l{number}", stage, f"g{number}" if stage else "", speed)
        for number, speed in enumerate([7.0, *looks])
    ]
    candidates = [volunteer(f"c{number}", stage + 1, speed=speed) for number, speed in enumerate(serving)]
    peers = (*rivals, *candidates)
    called = [preferred(peers, rival) for rival in rivals]
    assert all(sorted(names(order)) == sorted(names(candidates)) for order in called)
    first = {order[0].peer_id for order in called}
    assert len(first) == min(len(rivals), len(candidates)) or len(candidates) < len(rivals)


def test_of_those_alike_the_nearest_is_called_first_unless_another_wants_it():
    me, other = volunteer("a", 0, speed=100.0), volunteer("b", 0, speed=100.0)
    near, far, slow = volunteer("d", 1, speed=90.0), volunteer("c", 1, speed=105.0), volunteer("e", 1, speed=9.0)
    trips = {near.peer_id: 0.02, far.peer_id: 0.2, slow.peer_id: 0.001}
    assert preferred((me, near, far, slow), me, trips) == [near, far, slow]
    silent = {far.peer_id: 0.2}  # the other did not answer
    assert preferred((me, near, far, slow), me, silent)[0] == far
    both = [preferred((me, other, near, far, slow), each, trips)[0] for each in (me, other)]
    assert {*names(both)} == {"c", "d"}


def test_nobody_is_called_twice_nor_left_out_for_being_near():
    me = volunteer("a", 0, speed=100.0)
    candidates = [volunteer(f"c{number}", 1, speed=speed) for number, speed in enumerate([90.0, 100.0, 110.0, 900.0])]
    for order in permutations(range(4)):
        trips = {candidates[at].peer_id: 0.01 * (rank + 1) for rank, at in enumerate(order)}
        assert sorted(names(preferred((me, *candidates), me, trips))) == names(candidates)


def test_backing_off_doubles_up_to_two_seconds():
    assert [backoff_seconds(attempt, 1.0) for attempt in range(5)] == [0.25, 0.5, 1, 2, 2]


# Who looks


def test_those_look_that_have_nobody_behind_them_in_their_group_and_of_the_first_stage_those_in_none():
    whole = (volunteer("a", 0, "a"), volunteer("b", 1, "a"), volunteer("c", 2, "a"))
    growing = (volunteer("d", 0), volunteer("e", 1, "d"))  # whose first stage tells no group before it is whole
    waiting = (volunteer("f", 1), volunteer("g", 2), volunteer("h", 0))
    peers = (*whole, *growing, *waiting)
    assert [names(looking(peers, stage)) for stage in range(2)] == [["h"], ["e"]]
    broken = tuple(peer for peer in peers if peer.peer_id != "c")
    assert [names(looking(broken, stage)) for stage in range(2)] == [["h"], ["b", "e"]]


def test_nobody_but_volunteers_looks():
    others = (volunteer("a", 0).model_copy(update={"role": role}) for role in ("datacenter", "observer"))
    assert looking(tuple(others), 0) == ()


# Whom groups exchange


def grouped(speeds: list[list[float]], spares: list[list[float]]) -> Peers:
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


Groups = dict[str, list[str]]
"""By the first stage's name: who serves each stage."""


def before(peers: Peers) -> Groups:
    """The groups that there are."""
    of = {peer.peer_id: sorted((p for p in peers if p.replica == peer.peer_id), key=_stage) for peer in peers}
    return {first: names(group) for first, group in of.items() if group}


def _stage(peer: PeerRecord) -> int:
    return peer.stage


def after(peers: Peers, stages: int) -> Groups:
    """The groups that there will be, as each volunteer of every stage sees it by itself: all see the same, and each its
    own place. Empty: all stay where they are."""
    seen = {peer.peer_id: better_group(peers, peer, stages) for peer in peers}
    assert len({group is None for group in seen.values()}) <= 1, "not all see that groups change"
    made: Groups = {}
    for peer in peers:
        group = seen[peer.peer_id]
        if group:
            assert group[peer.stage] == peer.peer_id, "who is in a group has its own stage there"
            assert made.setdefault(group[0], [*group]) == [*group], "two of a group see another one"
    seated = [member for group in made.values() for member in group]
    assert len({*seated}) == len(seated), "one is in two groups"
    free = {peer for peer, group in seen.items() if group is not None and not group}
    assert not free & {*seated}, "one has a seat, and does not see it"
    assert not made or free | {*seated} == {*names(peers)}
    return made


def pace(peers: Peers, groups: Groups) -> float:
    """How quick all groups are together."""
    speed = {peer.peer_id: peer.tokens_per_second for peer in peers}
    return sum(min(speed[member] for member in group) for group in groups.values())


groups_of_three = st.integers(1, 3).flatmap(
    lambda count: st.tuples(
        st.lists(
            st.lists(st.sampled_from([1.0, 1.5, 2.0, 4.0, 8.0]), min_size=3, max_size=3), min_size=count, max_size=count
        ),
        st.lists(st.lists(st.sampled_from([1.0, 3.0, 8.0]), max_size=1), min_size=2, max_size=2),
    )
)


@given(groups_of_three)
def test_together_the_groups_are_as_quick_as_they_can_be_or_nearly_so_and_nobody_is_in_two(
    made: tuple[list[list[float]], list[list[float]]],
):
    peers = grouped(*made)
    firsts, found = [peer.peer_id for peer in peers if peer.stage == 0], after(peers, 3)
    of_stage = [[peer.peer_id for peer in peers if peer.stage == stage] for stage in (1, 2)]
    best = max(
        pace(peers, {first: [first, one, other] for first, one, other in zip(firsts, *seating, strict=True)})
        for seating in product(*(permutations(of, len(firsts)) for of in of_stage))
    )
    if best >= MUCH_QUICKER * pace(peers, before(peers)):
        assert pace(peers, found) == best
        assert found.keys() == {*firsts}
    else:
        assert not found


odd = st.builds(
    volunteer,
    st.sampled_from("abcdefgh"),
    st.integers(0, 2),
    st.sampled_from(["", "a", "b", "g0-0", "g1-0", "nobody"]),
    st.sampled_from([0.0, 1.0, 8.0]),
)


@given(groups_of_three, st.lists(odd, max_size=5, unique_by=lambda peer: peer.peer_id), st.randoms())
def test_whatever_records_say_all_come_to_the_same_groups(
    made: tuple[list[list[float]], list[list[float]]], more: list[PeerRecord], order: Random
):
    """Groups without a first stage, with two of a stage, or not whole, as records come; in whatever order."""
    peers = [*grouped(*made), *more]
    found = after(tuple(peers), 3)
    order.shuffle(peers)
    assert after(tuple(peers), 3) == found


def test_groups_are_the_same_whether_or_not_a_peer_is_among_those_it_knows():
    peers = grouped([[8.0, 1.0], [1.0, 8.0]], [[]])
    for me in peers:
        others = tuple(peer for peer in peers if peer.peer_id != me.peer_id)
        assert better_group(others, me, 2) == better_group(peers, me, 2)


def test_nobody_is_exchanged_where_a_group_is_not_whole_or_somebody_has_no_speed():
    uneven = [[8.0, 1.0], [1.0, 8.0]]
    assert after(grouped(uneven, [[]]), 2) == {"g0-0": ["g0-0", "g1-1"], "g1-0": ["g1-0", "g0-1"]}
    assert after(grouped(uneven, [[]])[:3], 2) == {}
    assert after(grouped([[8.0, 1.0], [1.0, 0.0]], [[]]), 2) == {}


def test_a_quick_spare_takes_the_seat_of_a_slow_member_who_is_told_that_it_has_none():
    peers = grouped([[8.0, 1.0]], [[7.0]])
    assert after(peers, 2) == {"g0-0": ["g0-0", "s0-1"]}
    assert better_group(peers, peers[1], 2) == []


@pytest.mark.parametrize(("spare", "changes"), [(1.19, False), (1.21, True)])
def test_groups_change_only_where_that_makes_them_much_quicker(spare: float, changes: bool):
    assert bool(after(grouped([[8.0, 1.0]], [[spare]]), 2)) is changes


def test_a_first_stage_without_a_group_takes_no_part_in_it():
    peers = (*grouped([[8.0, 1.0], [1.0, 8.0]], [[]]), volunteer("alone", 0, "", 9.0))
    assert after(peers, 2) == {"g0-0": ["g0-0", "g1-1"], "g1-0": ["g1-0", "g0-1"]}
    assert better_group(peers, peers[-1], 2) == []
