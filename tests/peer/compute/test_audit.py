"""Audits: silencing against the papers' equation, gains in a real training, overlap against sets of places."""

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from peer.compute.audit import WORST_NATS, gain, held_out_loss, overlap, silence, silenced
from peer.lab.reference_run import Lab
from peer.lab.replicas import Grids
from peer.optim.outer import FACTOR_ONE, OuterState, outer_term
from protocol.codec.contribution import Contribution, SparseTensor, grids
from protocol.events.event import Listener
from protocol.identity import EMBEDDING, ContributionName, Part, PeerId
from protocol.layout import part_layout
from protocol.manifest import Manifest
from protocol.tensor_formats import INT32_MAX
from tests.reference import sparse_outer
from tests.reference.small_lab import RUN, small_lab
from tests.reference.small_manifest import small_manifest

AUTHORS = [PeerId(f"R{number}") for number in range(1, 5)]


def manifest(**outer: object) -> Manifest:
    return small_manifest(
        outer={"chunk_side": 4, "top_k": 2} | outer, inner={"learning_rate": 1e-2, "warmup": 2, "steps": 6}
    )


def contribution(run: Manifest, author: PeerId, seed: int, largest: int = 2**20) -> Contribution:
    """Random values at random places of the embedding."""
    chance, tensors = np.random.default_rng(seed), {}
    for name, grid in grids(run, EMBEDDING).items():
        places = [
            np.sort(chance.choice(size, count, False)) for size, count in zip(grid.sizes, grid.counts, strict=True)
        ]
        values = chance.integers(-largest, largest + 1, grid.kept)
        tensors[name] = SparseTensor(np.concatenate(places).astype(np.int16), values)
    return Contribution(RUN, ContributionName(EMBEDDING, 1, author), 1, tensors)


def as_places(run: Manifest, made: Contribution) -> list[dict[tuple[int, ...], int]]:
    """Of each tensor: coordinate → value."""
    return [
        {np.unravel_index(place, grid.shape): int(value) for place, value in zip(*pair, strict=True)}
        for name, grid in grids(run, made.name.part).items()
        for pair in [(grid.positions(made.tensors[name].offsets), made.tensors[name].values)]
    ]


# Silence


@settings(max_examples=15)
@given(st.integers(1, 4), st.sampled_from(["all", "senders"]), st.floats(0.1, 2), st.integers(0, 99))
def test_silencing_is_the_outer_step_with_zeros_in_place_of_the_values(
    replicas: int, aggregate: str, eta: float, seed: int
):
    run = manifest(aggregate=aggregate, learning_rate=eta)
    made = [contribution(run, author, 10 * seed + number) for number, author in enumerate(AUTHORS[:replicas])]
    (name, shape), *_ = part_layout(run, EMBEDDING).items()
    before = torch.randint(-(2**24), 2**24, shape, dtype=torch.int32)
    state = OuterState.begin(run, EMBEDDING, {name: before}, author=False)
    state.replace([], made)
    sent = [as_places(run, each)[0] for each in made]
    sent[0] = dict.fromkeys(sent[0], 0)
    term = sparse_outer.outer_term(sent, shape, Fraction(round(eta * FACTOR_ONE), FACTOR_ONE), aggregate)
    found = silenced(state.grid, made, AUTHORS[0], run)[name]
    assert found.dtype == torch.int32
    assert (found.numpy() == before.numpy() - term).all()


def test_silencing_leaves_the_set_and_the_state_as_they_are():
    run = manifest()
    made = [contribution(run, author, number) for number, author in enumerate(AUTHORS)]
    state = OuterState.begin(
        run, EMBEDDING, {name: torch.zeros(s) for name, s in part_layout(run, EMBEDDING).items()}, False
    )
    state.replace([], made)
    kept = {name: tensor.clone() for name, tensor in state.grid.items()}
    silenced(state.grid, made, AUTHORS[1], run)
    assert all((tensor == kept[name]).all() for name, tensor in state.grid.items())
    assert all(each.tensors[name].values.any() for each in made for name in kept)
    assert not any(silence(made[0]).tensors[name].values.any() for name in kept)


def test_who_sends_little_is_not_blamed_for_the_mean_as_it_would_be_if_it_were_taken_out():
    """Three senders of the same, and one of almost nothing: without it the others' mean is larger."""
    run = manifest()
    made = [contribution(run, author, 1) for author in AUTHORS[:3]] + [contribution(run, AUTHORS[3], 2, largest=1)]
    layout = part_layout(run, EMBEDDING)
    state = OuterState.begin(run, EMBEDDING, {name: torch.zeros(shape) for name, shape in layout.items()}, False)
    state.replace([], made)
    for name, tensor in state.grid.items():
        without = -outer_term(made[:3], layout, run)[name]
        assert (silenced(state.grid, made, AUTHORS[3], run)[name] - tensor).abs().max() <= 1
        assert (without - tensor).abs().max() > 2**16


def test_two_that_push_a_weight_beyond_the_grid_in_opposite_directions_do_not_stop_an_audit():
    run = manifest()
    largest = {name: np.full(grid.kept, 2**31 - 1) for name, grid in grids(run, EMBEDDING).items()}
    one = contribution(run, AUTHORS[0], 1)
    up = replace(one, tensors={n: SparseTensor(s.offsets, -largest[n]) for n, s in one.tensors.items()})
    down = replace(up, name=replace(up.name, author=AUTHORS[1]))
    down = replace(down, tensors={n: SparseTensor(s.offsets, largest[n]) for n, s in one.tensors.items()})
    grid = {name: torch.full(shape, INT32_MAX - 1) for name, shape in part_layout(run, EMBEDDING).items()}
    found = silenced(grid, [up, down], AUTHORS[1], run)
    assert all(int(tensor.max()) == INT32_MAX for tensor in found.values())


# Gains

Change = Callable[[Contribution], Contribution]


def flipped(made: Contribution) -> Contribution:
    return replace(made, tensors={n: SparseTensor(s.offsets, -s.values) for n, s in made.tensors.items()})


def trained(change: Change, rounds: int = 3) -> tuple[Lab, Grids, dict[Part, list[Contribution]]]:
    """A small swarm whose first replica sends what `change` makes of its work; and the last round's set."""
    run = small_manifest(
        outer={"rounds": rounds, "chunk_side": 8, "top_k": 16},
        inner={"steps": 8, "sequences": 8, "learning_rate": 1e-2, "warmup": 2},
        evaluation={"sequences": 32, "held_out": 0.2},
    )
    lab, sets = small_lab(run), {}
    method = lab.method
    honest = method._contribute

    def contribute(replica, part, round, steps, moved):
        made = honest(replica, part, round, steps, moved)
        made = change(made) if replica.slot == 0 else made
        sets.setdefault(part, []).append(made)
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(method), "_contribute", lambda self, *args: contribute(*args))
        for round in range(1, rounds + 1):
            sets.clear()
            lab.round(round, quiet)
    return lab, lab.swarm.grids, sets


quiet: Listener = lambda event: None  # noqa: E731


def gains(change: Change) -> list[float]:
    """Of each replica, over all parts, by slot."""
    lab, at, sets = trained(change)
    loss = held_out_loss(lab.evaluator, at)
    return [gain(lab.evaluator, at, sets, replica.id, loss) for replica in lab.swarm.replicas]


def test_honest_contributions_gain():
    assert min(gains(lambda made: made)) > 0.01


def test_a_contribution_with_flipped_signs_does_harm_and_the_others_still_gain():
    attacker, *honest = gains(flipped)
    assert attacker < -0.01
    assert min(honest) > 0.01


def test_a_gain_is_finite_where_the_model_is_destroyed():
    lab, at, _ = trained(lambda made: made, rounds=1)
    broken = {part: {n: torch.full_like(t, INT32_MAX) for n, t in grid.items()} for part, grid in at.items()}

    class NoNumber:
        def evaluate(self, grids: object) -> tuple[float, float]:
            return float("nan"), 1.0

    assert held_out_loss(lab.evaluator, broken) <= WORST_NATS
    assert held_out_loss(NoNumber(), broken) == WORST_NATS  # type: ignore[arg-type]


# Copies


@settings(max_examples=20)
@given(st.integers(0, 999), st.integers(0, 999))
def test_overlap_is_the_share_of_places_in_both(first: int, second: int):
    run = manifest()
    one, other = contribution(run, AUTHORS[0], first), contribution(run, AUTHORS[1], second)
    mine, theirs = as_places(run, one)[0], as_places(run, other)[0]
    both = mine.keys() & theirs.keys()
    found = overlap(one, other, run)
    assert found.places == pytest.approx(len(both) / len(mine))
    same = [place for place in both if np.sign(mine[place]) == np.sign(theirs[place])]
    assert found.signs == pytest.approx(len(same) / len(mine))
    assert found == overlap(other, one, run)


def test_random_places_overlap_by_chance_and_a_copy_wholly():
    run = manifest()
    one, other = contribution(run, AUTHORS[0], 1), contribution(run, AUTHORS[1], 2)
    by_chance = overlap(one, other, run)
    assert by_chance.chance == pytest.approx(2 / 16, abs=0.01)
    assert by_chance.beyond_chance < 0.05
    copy = replace(one, name=replace(one.name, author=AUTHORS[1]))
    assert overlap(one, copy, run).beyond_chance == 1
    mirrored = overlap(one, flipped(copy), run)
    assert mirrored.places == 1
    assert mirrored.signs < 0.01


def test_where_everything_is_sent_places_say_nothing():
    run = manifest(chunk_side=4, top_k=16)
    one, other = contribution(run, AUTHORS[0], 1), contribution(run, AUTHORS[1], 2)
    found = overlap(one, other, run)
    assert (found.places, found.chance, found.beyond_chance) == (1, 1, 0)
