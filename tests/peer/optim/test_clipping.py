"""`outer.clip = "median"` against a reference in Python's integers, and what it holds against attackers."""

import random
from fractions import Fraction
from itertools import chain, pairwise
from statistics import median_low

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from peer.optim.clipping import clip_to_medians
from peer.optim.outer import FACTOR_ONE, OuterState, outer_term
from protocol.codec.chunks import ChunkGrid, chunk_grid
from protocol.codec.contribution import Contribution, SparseTensor
from protocol.identity import EMBEDDING, ContributionName, PeerId, RunId
from protocol.layout import part_layout
from protocol.manifest import Manifest, check_manifest
from tests.reference import sparse_outer

Rows = NDArray[np.int64]
"""The values of each contribution to one tensor [M, kept]."""

RUN = RunId("ab" * 32)
SIDE = 4
LARGEST = 2**31 - 1
SHAPES = [(1,), (3,), (16,), (37,), (4, 4), (6, 9), (8, 12)]
SIZES = [0, 1, 3, 40, 2**20, LARGEST - 1, LARGEST]


def manifest(**outer: object) -> Manifest:
    sizes = {"layers": 2, "d": 16, "heads": 2, "kv_heads": 1, "ffn": 24, "context": 8, "vocabulary": 258}
    return check_manifest({"model": sizes, "outer": {"chunk_side": SIDE, "top_k": 3, "clip": "median"} | outer})


def largest(row: list[int]) -> int:
    return max(map(abs, row))


def somewhere(grid: ChunkGrid, chance: random.Random) -> list[int]:
    """Offsets in canonical order."""
    chunks = zip(grid.sizes.tolist(), grid.counts.tolist(), strict=True)
    return list(chain.from_iterable(sorted(chance.sample(range(size), count)) for size, count in chunks))


def contribution(number: int, values: Rows, offsets: list[int], tensor: str = "w") -> Contribution:
    sparse = SparseTensor(np.array(offsets, np.int16), np.array(values, np.int64))
    return Contribution(RUN, ContributionName(EMBEDDING, 1, PeerId(f"R{number}")), 1, {tensor: sparse})


def by_place(sent: Contribution, grid: ChunkGrid) -> dict[tuple[int, ...], int]:
    """A contribution as the reference has it."""
    places = np.unravel_index(grid.positions(sent.tensors["w"].offsets), grid.shape)
    coordinates = zip(*(each.tolist() for each in places), strict=True)
    return dict(zip(coordinates, sent.tensors["w"].values.tolist(), strict=True))


@st.composite
def sets(draw: st.DrawFn) -> tuple[int, ChunkGrid, Rows]:
    """K, a tensor cut with it, and what up to seven authors sent: each by a size of its own, but for one value."""
    top_k = draw(st.sampled_from([1, 3, 16]))
    grid = chunk_grid(draw(st.sampled_from(SHAPES)), SIDE, top_k)
    chance, rows = np.random.default_rng(draw(st.integers(0, 2**16))), []
    for size in draw(st.lists(st.sampled_from(SIZES), min_size=1, max_size=7)):
        row = chance.integers(-size, size, grid.kept, endpoint=True)
        row[draw(st.integers(0, grid.kept - 1))] = draw(st.sampled_from(SIZES)) * draw(st.sampled_from([-1, 1]))
        rows.append(row)
    return top_k, grid, np.stack(rows)


def contributions(grid: ChunkGrid, rows: Rows, seed: int = 0) -> list[Contribution]:
    chance = random.Random(seed)
    return [contribution(number, row, somewhere(grid, chance)) for number, row in enumerate(rows)]


def clipped(grid: ChunkGrid, rows: Rows) -> Rows:
    """What is left of values [M, kept]."""
    found = rows.astype(np.int32)
    clip_to_medians(found, grid.k)
    return found.astype(np.int64)


def by_chunk(grid: ChunkGrid, row: Rows) -> list[list[int]]:
    """[kept] as the values of each chunk."""
    return [row[start : start + count].tolist() for start, count in zip(grid.starts, grid.counts, strict=True)]


@settings(deadline=None)
@given(sets(), st.floats(0.01, 16), st.sampled_from(["all", "senders"]), st.integers(0, 99))
def test_the_term_is_that_of_the_reference_whatever_was_sent(found, eta: float, aggregate: str, seed: int):
    top_k, grid, rows = found
    made = contributions(grid, rows, seed)
    sent = sparse_outer.clip([by_place(each, grid) for each in made], grid.shape, SIDE)
    factor = Fraction(round(eta * FACTOR_ONE), FACTOR_ONE)
    expected = sparse_outer.outer_term(sent, grid.shape, factor, aggregate)
    run = manifest(top_k=top_k, learning_rate=eta, aggregate=aggregate)
    assert (outer_term(made, {"w": grid.shape}, run)["w"].numpy() == expected).all()


@settings(deadline=None)
@given(sets(), st.randoms(use_true_random=False))
def test_a_set_has_no_order(found, order: random.Random):
    top_k, grid, rows = found
    made = contributions(grid, rows)
    shuffled = order.sample(made, len(made))
    terms = [outer_term(each, {"w": grid.shape}, manifest(top_k=top_k))["w"] for each in (made, shuffled)]
    assert (terms[0] == terms[1]).all()


@settings(deadline=None)
@given(sets(), st.integers(1, 5))
def test_equals_are_left_as_they_are_and_so_is_one_alone(found, times: int):
    """Equal in magnitudes: signs and places may differ."""
    _, grid, rows = found
    equals = np.random.default_rng(times).choice([-1, 1], (times, grid.kept)) * rows[0]
    assert (clipped(grid, equals) == equals).all()


@settings(deadline=None)
@given(sets())
def test_nothing_grows_turns_round_or_passes_the_medians(found):
    _, grid, before = found
    after = clipped(grid, before)
    assert (np.abs(after) <= np.abs(before)).all()
    assert (after * before >= 0).all()
    for chunk in range(len(grid.counts)):
        was, left = ([by_chunk(grid, row)[chunk] for row in rows] for rows in (before, after))
        assert max(map(largest, left)) <= median_low(map(largest, was))
        assert max(map(sparse_outer.norm, left)) <= median_low(map(sparse_outer.norm, was))


@settings(deadline=None)
@given(sets(), st.data())
def test_half_of_a_set_has_no_more_weight_than_the_largest_of_the_others(found, data: st.DataObject):
    _, grid, before = found
    numbers = range(len(before))
    attackers = data.draw(st.sets(st.sampled_from(numbers), max_size=len(before) // 2))
    after = clipped(grid, before)
    for attacker in attackers:
        for chunk, left in enumerate(by_chunk(grid, after[attacker])):
            others = [by_chunk(grid, before[number])[chunk] for number in numbers if number not in attackers]
            assert largest(left) <= max(map(largest, others))
            assert sparse_outer.norm(left) <= max(map(sparse_outer.norm, others))


def test_the_largest_chunks_of_the_largest_values_do_not_overflow():
    """4096 values of 2³¹ − 1 have a norm just below 2³⁷, and it times a value is near 2⁶⁸."""
    run = np.full((3, 4096), LARGEST, np.int32)
    run[0], run[1, 1:] = 3, 0
    run[2, ::2] *= -1
    clip_to_medians(run, 4096)
    half = LARGEST * LARGEST // (64 * LARGEST)  # of the largest, scaled from 64 (2³¹ − 1) to 2³¹ − 1
    assert (run[0] == 3).all()
    assert (run[1, 0], run[1, 1:].any()) == (LARGEST, False)
    assert (np.abs(run[2]) == half).all()


def attack(kind: str, honest: Rows, grid: ChunkGrid) -> Rows:
    """An attacker's values against the sum of the honest ones', in the places of the first of them."""
    row = -honest[0]
    if kind == "a hundredfold":
        return row * 100
    if kind == "all in one chunk":
        one = np.zeros_like(row)
        one[grid.starts[1] : grid.starts[2]] = row[grid.starts[1] : grid.starts[2]] * 100
        return one
    one = np.zeros_like(row)
    one[grid.starts] = np.sign(row[grid.starts]) * 100 * np.abs(honest).max()
    return one


ATTACKS = ["a hundredfold", "all in one chunk", "one coordinate of a chunk"]


@pytest.mark.parametrize("kind", ATTACKS)
@pytest.mark.parametrize("aggregate", ["all", "senders"])
def test_an_attacker_moves_a_round_by_no_more_than_an_honest_author_could(kind: str, aggregate: str):
    """All in the same places, so that F of either aggregate is the mean; in each chunk, in units of M F."""
    grid = chunk_grid((16, 32), 4, 3)
    seed, offsets = np.random.default_rng(1), somewhere(grid, random.Random(1))
    places = grid.positions(np.array(offsets))
    honest = seed.integers(-(2**18), 2**18, (4, grid.kept))
    everybody = np.vstack([honest, attack(kind, honest, grid)[None]])
    pull = {}
    for clip in ("median", "none"):
        run = manifest(clip=clip, aggregate=aggregate)
        made = [contribution(number, row, offsets) for number, row in enumerate(everybody)]
        total = len(made) * outer_term(made, {"w": grid.shape}, run)["w"].numpy().reshape(-1)[places]
        others = clipped(grid, everybody)[:4].sum(0) if clip == "median" else honest.sum(0)
        pull[clip] = by_chunk(grid, total - others)
    rounding = len(everybody) / 2  # half a unit of F, times M
    beyond = 0
    for chunk, (by, unclipped) in enumerate(zip(pull["median"], pull["none"], strict=True)):
        rows = [by_chunk(grid, row)[chunk] for row in honest]
        most = max(map(sparse_outer.norm, rows))
        assert np.linalg.norm(by) <= most + rounding * len(by)
        assert np.abs(by).max() <= max(map(largest, rows)) + rounding
        beyond += np.linalg.norm(unclipped) > 10 * most
    assert beyond == (1 if kind == "all in one chunk" else len(grid.counts))  # without clipping it does


def test_one_large_value_of_an_honest_author_costs_what_is_beyond_the_cap_and_no_more():
    """Why the cap comes first: by its norm alone, the other values would be scaled down a hundredfold as well."""
    row = np.array([[100, -90, 80], [100, 90, -80], [80, 10**4, -90]])
    assert clipped(chunk_grid((16,), 4, 3), row)[2].tolist() == [80, 100, -90]


def test_a_chunk_in_which_most_are_silent_does_not_move():
    row = np.array([[0, 0, 0], [0, 0, 0], [5, -6, 10**6]])
    assert not clipped(chunk_grid((16,), 4, 3), row).any()


def test_who_is_clipped_to_nothing_has_sent_still():
    """With `senders`, a sum is divided by all who sent something there: 6 by two at the first place."""
    sent = [([6, 0, 0], [1, 2, 3]), ([6, 0, 0], [2, 3, 4]), ([1, 90, -90], [1, 5, 6])]
    made = [contribution(number, np.array(values), offsets) for number, (values, offsets) in enumerate(sent)]
    term = outer_term(made, {"w": (16,)}, manifest(aggregate="senders"))["w"]
    assert term.tolist()[:7] == [0, 3, 3, 0, 0, 4, -4]


@pytest.mark.parametrize("aggregate", ["all", "senders"])
def test_a_late_contribution_makes_the_state_that_it_would_have_made_in_time(aggregate: str):
    """One more changes the medians, and so what is left of all the others."""
    run = manifest(aggregate=aggregate)
    ((tensor, shape),) = part_layout(run, EMBEDDING).items()
    grid, seed, chance = chunk_grid(shape, SIDE, 3), np.random.default_rng(0), random.Random(0)
    made = [
        contribution(number, seed.integers(-size, size, grid.kept), somewhere(grid, chance), tensor)
        for number, size in enumerate([2**10, 2**14, 2**12, 2**13])
    ]
    states = []
    for sets in ([[], made], [[], made[:1], made[:3], made], [[], made[2:], made[1:], made]):
        state = OuterState.begin(run, EMBEDDING, {tensor: torch.zeros(shape, dtype=torch.int32)}, author=False)
        for before, after in pairwise(sets):
            state.replace(before, after)
        states.append(state.grid[tensor])
    assert states[0].any()
    assert all((state == states[0]).all() for state in states[1:])
