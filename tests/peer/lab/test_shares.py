"""Which chunks each of the lab's replicas reads in a round, and how many steps it takes: in proportion to its speed,
or, with `inner.most_steps`, as many as it can while the slowest takes H."""

from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer.lab.shares import Shares, in_proportion
from protocol.manifest import Manifest
from protocol.outer.data_plan import Reading, chunks, first_chunks
from tests.reference.small_manifest import small_manifest

H, ROUNDS = 5, 12


def manifest(most_steps: int = 0) -> Manifest:
    return small_manifest(
        replicas={"groups": 2, "datacenters": 1},
        inner={"steps": H, "most_steps": most_steps},
        outer={"rounds": ROUNDS, "weights": "steps"},
    )


def test_the_slowest_takes_h_steps_and_the_others_as_many_as_they_can_meanwhile():
    shares = Shares(manifest(13), [2, 3, 9])
    assert shares.steps(4) == [5, 7, 13]
    assert Shares(manifest(13)).steps(4) == [5, 5, 5]
    assert Shares(manifest(), [1, 1, 3]).steps(4) == [3, 3, 9]


def test_what_a_swarm_has_taken_is_played_again():
    shares = Shares(manifest(13), [1, 1, 2], {(2, 0): 3, (2, 2): 12})
    assert shares.steps(2) == [3, 5, 12]
    assert shares.steps(3) == [5, 5, 10]


def test_every_chunk_is_read_once_and_as_a_swarm_gives_them_out():
    """A swarm plans a round long before it begins, from what counted in those that are closed by then."""
    run, taken = (
        manifest(13),
        {(round, slot): 1 + (3 * round + 4 * slot) % 13 for round in range(1, 9) for slot in (0, 2)},
    )
    shares, reading = Shares(run, taken=taken), Reading.begin(run)
    read: list[int] = []
    for round in range(1, 9):
        for slot in range(3):
            own = shares.chunks(round, slot)
            assert own == list(chunks(first_chunks(reading.share(round, slot, run), len(own))))
            assert len(own) == taken.get((round, slot), H)
            read += own
        reading = reading.fold(dict(enumerate(shares.steps(round))), run)
    assert len({*read}) == len(read)
    given = (
        {*range(reading.fresh)} - {*chunks(reading.free)} - {*chain(*(chunks(plan.spans) for plan in reading.plans))}
    )
    assert given == {*read}


@given(st.lists(st.integers(1, 9), min_size=1, max_size=8), st.integers(0, 300))
def test_inner_steps_are_shared_out_by_speed_and_none_is_left(shares: list[int], more: int):
    total = len(shares) + more
    steps = in_proportion(total, shares)
    assert sum(steps) == total
    assert min(steps) >= 1
    for mine, speed in zip(steps, shares, strict=True):
        exact = total * speed / sum(shares)
        assert mine <= max(1, exact + 1)


def test_steps_in_proportion_are_exact_where_they_can_be():
    assert in_proportion(80, [1, 1, 2, 4]) == [10, 10, 20, 40]
    assert in_proportion(80, [1, 1, 1, 1]) == [20] * 4
    with pytest.raises(ValueError, match="too few"):
        in_proportion(3, [1, 1, 1, 1])
