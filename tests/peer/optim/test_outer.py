"""The outer step against the papers' equations, and its bits against one constant; top-k of chunks against the
plain reference."""

import os
import random
import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from peer.optim import kernels
from peer.optim.grid import grid_digest
from peer.optim.kernels import LARGEST_FACTOR
from peer.optim.outer import FACTOR_ONE, OuterState, decay_and_add, eta, outer_term, top_k, weights
from protocol.codec.chunks import chunk_grid
from protocol.codec.contribution import Contribution, decode
from protocol.errors import DivergedError
from protocol.identity import EMBEDDING, ContributionName, PeerId, RunId, stage_part
from protocol.layout import part_layout
from protocol.manifest import Manifest, check_manifest
from tests.reference import sparse_outer

RUN = RunId("ab" * 32)


def manifest(**outer: object) -> Manifest:
    sizes = {"layers": 2, "d": 16, "heads": 2, "kv_heads": 1, "ffn": 24, "context": 8, "vocabulary": 258}
    return check_manifest({"model": sizes, "outer": {"chunk_side": 4, "top_k": 2} | outer})


def genesis(run: Manifest, part=EMBEDDING, seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    layout = part_layout(run, part)
    return {
        name: torch.randint(-(2**24), 2**24, shape, generator=generator, dtype=torch.int32)
        for name, shape in layout.items()
    }


def moved(run: Manifest, part=EMBEDDING, seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.rand(shape, generator=generator) * 2e-3 - 1e-3 for name, shape in part_layout(run, part).items()
    }


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(1, 3000), min_size=1, max_size=5),
    st.booleans(),
    st.tuples(st.floats(0.01, 4), st.floats(0, 1), st.integers(1, 9), st.integers(0, 8)),
    st.sampled_from(["all", "senders"]),
    st.integers(0, 99),
)
def test_the_term_is_the_equation(
    steps: list[int], weighted: bool, rates: tuple[float, float, int, int], aggregate: str, seed: int
):
    shape, (first, share, rounds, passed) = (6, 9), rates
    round = 1 + passed % rounds
    counts = "steps" if weighted else "equal"
    run = manifest(learning_rate=first, final_learning_rate=share, rounds=rounds, aggregate=aggregate, weights=counts)
    grid = chunk_grid(shape, 4, 2)
    random_values = np.random.default_rng(seed)
    contributions, sent = [], []
    for number, count in enumerate(steps):
        values = random_values.integers(-(2**31) + 1, 2**31, shape)
        places = sparse_outer.top_k(values, 4, 2)
        picked = top_k(torch.from_numpy(values).to(torch.int32), grid)
        name = ContributionName(EMBEDDING, round, PeerId(f"R{number + 1}"))
        contributions.append(Contribution(RUN, name, count, {"w": picked}))
        sent.append({place: int(values[place]) for place in places})
    term = outer_term(contributions, {"w": shape}, run)["w"]
    factor = sparse_outer.rate(first, share, round, rounds)
    expected = sparse_outer.outer_term(sent, shape, factor, aggregate, steps if weighted else None)
    assert (term.numpy() == expected).all()


def test_eta_goes_from_the_first_rounds_to_the_last_ones():
    outer = manifest(rounds=5, learning_rate=2.0, final_learning_rate=0.25).outer
    assert [eta(outer, round) for round in range(1, 6)] == [2**17, 2**17 - 24576, 2**16 + 16384, 2**16 - 8192, 2**15]
    assert eta(manifest(rounds=1, final_learning_rate=0.0).outer, 1) == 2**16
    assert {eta(manifest().outer, round) for round in (1, 50, 100)} == {2**16}


def test_each_counts_as_often_as_it_has_taken_steps_and_once_at_least():
    by_steps, equally = manifest(weights="steps").outer, manifest().outer
    made = [Contribution(RUN, ContributionName(EMBEDDING, 1, PeerId(f"R{steps}")), steps, {}) for steps in (0, 1, 7)]
    assert weights(made, by_steps, 2**16) == [1, 1, 7]
    assert weights(made, equally, 2**16) == [1, 1, 1]


@given(st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=40), st.integers(1, 2**20))
def test_weights_are_halved_until_their_sum_is_exact(steps: list[int], eta: int):
    made = [
        Contribution(RUN, ContributionName(EMBEDDING, 1, PeerId(f"R{n}")), each, {}) for n, each in enumerate(steps)
    ]
    counted = weights(made, manifest(weights="steps").outer, eta)
    assert sum(counted) * eta <= LARGEST_FACTOR
    halved = next(shift for shift in range(32) if sum(max(1, each >> shift) for each in steps) * eta <= LARGEST_FACTOR)
    assert counted == [max(1, each >> halved) for each in steps]
    assert sorted(weights(made[::-1], manifest(weights="steps").outer, eta)) == sorted(counted)


def test_the_largest_values_and_weights_fit_into_the_sums():
    """Two of 2³¹ − 1 with all the weight that there may be, and one more step of each than that."""
    run, shape = manifest(weights="steps", learning_rate=16.0), (6, 9)
    picked = top_k(torch.full(shape, 2**31 - 1, dtype=torch.int32), chunk_grid(shape, 4, 2))

    def term(*steps: int) -> int:
        names = [ContributionName(EMBEDDING, 1, PeerId(f"R{number + 1}")) for number in range(len(steps))]
        made = [Contribution(RUN, name, count, {"w": picked}) for name, count in zip(names, steps, strict=True)]
        return int(outer_term(made, {"w": shape}, run)["w"].max())

    assert {term(2**11, 2**11), term(2**11 + 1, 2**11 + 1), term(2**31 - 1, 1)} == {16 * (2**31 - 1)}
    grid = chunk_grid(shape, 4, 2)
    for weight in (2**12 + 1, 0):  # what no weights are
        with pytest.raises(ValueError, match="weights of"):
            kernels.outer_term_kernel([picked.offsets], picked.values[None], grid, 2**20, [weight], False)


@pytest.mark.parametrize("values", ["bf16", "2bit"])
def test_nothing_is_lost_what_was_sent_and_what_is_left_is_what_was_computed(values: str):
    """β = 1: Σ Δ = Σ Δ̂ + e, in integers."""
    run = manifest(beta=1.0, values=values)
    state = OuterState.begin(run, EMBEDDING, genesis(run), author=True)
    total = {name: np.zeros(shape, np.int64) for name, shape in part_layout(run, EMBEDDING).items()}
    for round in range(1, 6):
        delta = moved(run, seed=round)
        blob, _ = state.contribute(RUN, round, PeerId("Qm"), 1, delta)
        for name, sparse in decode(blob, run).tensors.items():
            grid = chunk_grid(tuple(delta[name].shape), 4, 2)
            total[name] += np.rint(delta[name].double().numpy() * 2**26).astype(np.int64)
            total[name].reshape(-1)[grid.positions(sparse.offsets)] -= sparse.values
    for name, left in state.error_feedback.items():
        assert (left.numpy() == total[name]).all()


units = st.one_of(st.integers(-(2**31) + 1, 2**31 - 1), st.integers(-3, 3), st.integers(-(2**20), 2**20))


@given(
    st.lists(st.tuples(units, st.floats(-33, 33, width=32)), min_size=1, max_size=20),
    st.one_of(st.floats(0, 1), st.just(0.5)),
)
def test_the_error_feedback_is_the_equation_or_leaves_its_range_loudly(pairs: list[tuple[int, float]], beta: float):
    error = torch.tensor([e for e, _ in pairs], dtype=torch.int32)
    delta = torch.tensor([d for _, d in pairs], dtype=torch.float32)
    factor = Fraction(round(beta * FACTOR_ONE), FACTOR_ONE)
    moved = [round(Fraction(d) * 2**26) for _, d in pairs]
    expected = [round(e * factor) + units for (e, _), units in zip(pairs, moved, strict=True)]
    if any(abs(Fraction(d)) * 2**26 > 2**31 - 1 for _, d in pairs):
        with pytest.raises(DivergedError, match="in one round"):
            decay_and_add(error, delta, beta)
    elif max(map(abs, expected)) > 2**31 - 1:
        with pytest.raises(DivergedError, match="the error feedback left"):
            decay_and_add(error, delta, beta)
    else:
        assert decay_and_add(error, delta, beta).tolist() == expected


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 32.0])
def test_a_replica_that_diverged_is_told(value: float):
    delta = torch.zeros(5000)
    delta[4321] = value
    with pytest.raises(DivergedError, match="in one round"):
        decay_and_add(torch.zeros(5000, dtype=torch.int32), delta, 0.95)


def outer_state(run: Manifest, part) -> OuterState:
    return OuterState.begin(run, part, genesis(run, part), author=False)


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all((one[name] == other[name]).all() for name in one)


@pytest.mark.parametrize("aggregate", ["all", "senders"])
@pytest.mark.parametrize("clip", ["none", "median"])
@pytest.mark.parametrize(("before", "after"), [(0, 3), (2, 5), (5, 2), (3, 0), (4, 4)])
def test_the_sparse_change_is_the_dense_one(aggregate: str, clip: str, before: int, after: int):
    run = manifest(aggregate=aggregate, clip=clip, learning_rate=0.7)
    part = stage_part(1)
    made, state = contributions(run, part, 5), outer_state(run, part)
    layout = part_layout(run, part)
    removed, added = (outer_term(made[:count], layout, run) if count else None for count in (before, after))
    expected = {
        name: tensor + (removed[name] if removed else 0) - (added[name] if added else 0)
        for name, tensor in state.grid.items()
    }
    state.replace(made[:before], made[:after])
    assert same(state.grid, expected)


def test_whoever_has_taken_the_tensors_of_theta_keeps_that_theta():
    run, part = manifest(), stage_part(1)
    made, state = contributions(run, part, 3), outer_state(run, part)
    taken = dict(state.grid)
    ahead = state.with_own(made[0])
    ahead_before = {name: tensor.clone() for name, tensor in ahead.items()}
    state.replace([], made)
    state.replace(made, made[:1])
    assert same(taken, genesis(run, part))
    assert same(ahead, ahead_before)
    assert same(ahead, state.grid)
    assert not same(ahead, taken)


@pytest.mark.parametrize("clip", ["none", "median"])
def test_the_closed_rounds_are_theta_without_the_open_ones(clip: str):
    run, part = manifest(clip=clip), stage_part(1)
    made, state = contributions(run, part, 6), outer_state(run, part)
    sets = [made[:3], made[3:4], [], made[4:]]
    found = [dict(state.grid)]
    for each in sets:
        state.replace([], each)
        found.append(dict(state.grid))
    theta = dict(state.grid)
    for open in range(len(sets) + 1):
        assert same(state.closed(reversed(sets[len(sets) - open :])), found[len(sets) - open])
    assert same(state.grid, theta)


def test_a_term_that_leaves_the_grid_changes_nothing():
    run, part = manifest(learning_rate=1.0), stage_part(1)
    made = contributions(run, part, 1)
    last = list(part_layout(run, part))[-1]
    sparse = made[0].tensors[last]
    state = outer_state(run, part)
    sign = 1 if sparse.values[0] < 0 else -1
    state.grid[last] = torch.full_like(state.grid[last], sign * (2**31 - 1))
    before = {name: tensor.clone() for name, tensor in state.grid.items()}
    for change in (lambda: state.replace([], made), lambda: state.with_own(made[0])):
        with pytest.raises(DivergedError, match="left the grid's range"):
            change()
        assert same(state.grid, before)
    state.grid[last] = -state.grid[last]
    with pytest.raises(DivergedError, match="left the grid's range"):
        state.closed([made])


def test_error_feedback_decays_by_beta():
    run = manifest(beta=0.5)
    state = OuterState.begin(run, EMBEDDING, genesis(run), author=True)
    state.contribute(RUN, 1, PeerId("Qm"), 1, moved(run, seed=1))
    before = {name: tensor.clone() for name, tensor in state.error_feedback.items()}
    nothing = {name: torch.zeros_like(tensor) for name, tensor in moved(run).items()}
    _, sent = state.contribute(RUN, 2, PeerId("Qm"), 1, nothing)
    for name, sparse in sent.tensors.items():
        grid = chunk_grid(tuple(before[name].shape), 4, 2)
        expected = np.array([round(Fraction(int(each), 2)) for each in before[name].flatten()])
        expected[grid.positions(sparse.offsets)] -= sparse.values
        assert (state.error_feedback[name].flatten().numpy() == expected).all()


def contributions(run: Manifest, part, replicas: int) -> list[Contribution]:
    made = []
    for number in range(replicas):
        state = OuterState.begin(run, part, genesis(run, part), author=True)
        name = PeerId(f"R{number + 1}")
        made.append(state.contribute(RUN, 1, name, 1, moved(run, part, seed=number))[1])
    return made


@pytest.mark.parametrize("aggregate", ["all", "senders"])
def test_a_set_has_no_order(aggregate: str):
    run = manifest(aggregate=aggregate)
    made = contributions(run, stage_part(1), 4)
    states = []
    for seed in range(5):
        shuffled = random.Random(seed).sample(made, len(made))
        state = OuterState.begin(run, stage_part(1), genesis(run, stage_part(1)), author=False)
        state.replace([], shuffled)
        states.append(state.grid)
    for grid in states[1:]:
        assert all((grid[name] == tensor).all() for name, tensor in states[0].items())


def test_a_round_without_contributions_changes_nothing():
    run = manifest()
    state = OuterState.begin(run, EMBEDDING, genesis(run), author=False)
    state.replace([], [])
    assert all((state.grid[name] == tensor).all() for name, tensor in genesis(run).items())


GOLDEN = {
    "none": "2adee85f8d70ecec43da04f300a22ef5b7878ad58eafe6044e401885139b222b",
    "median": "5b18b9423a7992591d38f68d04ff2b8422131fb9d7c94a97ace6b32e15b39126",
}
"""The digests of `golden_update`, wherever and however it is computed."""

PROGRAM = """
from tests.peer.optim.test_outer import GOLDEN, golden_update
print(*map(golden_update, GOLDEN), end="")
"""


def golden_update(clip: str) -> str:
    """A fixed outer update, from integers alone, in an order that the clock decides."""
    run = check_manifest(
        {
            "model": {"preset": "nano", "d": 64},  # large enough for torch to use its threads
            "outer": {"learning_rate": 0.7, "aggregate": "senders", "values": "2bit", "top_k": 32, "clip": clip},
        }
    )
    state = OuterState.begin(run, EMBEDDING, _integers(run, 0), author=True)
    made = []
    for number in range(1, 5):
        author = OuterState.begin(run, EMBEDDING, _integers(run, 0), author=True)
        delta = {name: tensor.float() * 2.0**-40 for name, tensor in _integers(run, number).items()}
        made.append(author.contribute(RUN, 1, PeerId(f"R{number}"), 1, delta)[1])
    random.SystemRandom().shuffle(made)
    state.replace([], made)
    return grid_digest(state.grid)


def _integers(run: Manifest, seed: int) -> dict[str, torch.Tensor]:
    """A linear congruential sequence: the same integers on every machine."""
    tensors = {}
    for name, shape in part_layout(run, EMBEDDING).items():
        count = int(np.prod(shape))
        x = np.arange(1 + seed * 7919, 1 + seed * 7919 + count, dtype=np.uint64)
        mixed = (x * np.uint64(6364136223846793005) + np.uint64(1442695040888963407)) >> np.uint64(38)
        tensors[name] = torch.from_numpy(mixed.astype(np.int64) - 2**25).to(torch.int32).view(shape)
    return tensors


@pytest.mark.parametrize("threads", ["1", "2"])
@pytest.mark.parametrize(("capability", "processor"), [("default", "generic"), ("avx2", "haswell"), ("avx512", "")])
def test_the_bits_are_the_same_on_every_instruction_set_and_thread_count(capability: str, processor: str, threads: str):
    environment = os.environ | {"ATEN_CPU_CAPABILITY": capability, "OMP_NUM_THREADS": threads}
    if processor:  # for the compiled loops; without it they use all that this machine has
        environment |= {"NUMBA_CPU_NAME": processor}
    output = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, check=True, capture_output=True, text=True, timeout=120
    )
    assert output.stdout.split() == list(GOLDEN.values())


shapes = st.one_of(st.tuples(st.integers(1, 90)), st.tuples(st.integers(1, 24), st.integers(1, 24)))
sides = st.integers(1, 8)


@settings(max_examples=60, deadline=None)
@given(shapes, sides, st.data())
def test_the_kept_coordinates_are_the_references(shape: tuple[int, ...], side: int, data: st.DataObject):
    k = data.draw(st.integers(1, side**2))
    seed = data.draw(st.integers(0, 2**16))
    few = data.draw(st.sampled_from([3, 10**9]))  # few distinct values: many ties
    values = np.random.default_rng(seed).integers(-few, few, shape, dtype=np.int64)
    grid = chunk_grid(shape, side, k)
    kept = top_k(torch.from_numpy(values).to(torch.int32), grid)
    expected = sparse_outer.top_k(values, side, k)
    assert len(expected) == grid.kept
    positions = grid.positions(kept.offsets)
    assert [np.unravel_index(place, shape) for place in positions] == expected
    assert (kept.values == values.reshape(-1)[positions]).all()


def test_the_smallest_integer_has_the_largest_magnitude():
    values = torch.tensor([1, -(2**31) + 1, 2**31 - 1, 0], dtype=torch.int32)
    assert top_k(values, chunk_grid((4,), 2, 1)).values.tolist() == [-(2**31) + 1]
