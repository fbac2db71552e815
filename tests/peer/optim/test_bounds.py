"""What an honest contribution can be, and what it cannot."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from peer.optim import inner
from peer.optim.bounds import check_magnitudes, check_moments, largest_step, largest_value
from peer.optim.handover_state import added
from peer.optim.inner import learning_rate
from peer.optim.muon import Muon
from protocol.codec.contribution import Contribution, SparseTensor
from protocol.errors import FormatError
from protocol.identity import EMBEDDING, ContributionName, Part, PeerId, RunId, stage_part
from protocol.layout import EMBEDDING_TENSOR, part_layout
from protocol.tensor_formats import UNITS_PER_ONE
from tests.reference.small_manifest import small_manifest

NORM, UP = "model.layers.0.input_layernorm.weight", "model.layers.0.mlp.up_proj.weight"


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 40), st.floats(1e-5, 0.01), st.integers(0, 200), st.sampled_from([0.0, 0.9, 0.95, 1.0]))
def test_steps_of_twice_the_learning_rate_kept_back_in_every_round_stay_below(
    round: int, rate: float, warmup: int, beta: float
):
    run = small_manifest(
        inner={"steps": 5, "learning_rate": rate, "warmup": warmup}, outer={"rounds": 40, "beta": beta, "grace": 2}
    )
    error = 0.0
    for each in range(1, round + 1):
        moved = sum(2 * learning_rate(run, (each - 1) * 5 + step) for step in range(5))
        error = beta * error + moved
    assert error * UNITS_PER_ONE <= largest_value(run, NORM, (16,), round)


def test_who_may_take_four_times_as_many_steps_moves_four_times_as_far():
    run, more = (
        small_manifest(inner={"steps": 5, "most_steps": most, "weight_decay": 0.0}, outer={"weights": "steps"})
        for most in (0, 20)
    )
    assert largest_value(more, NORM, (16,), 3) == pytest.approx(4 * largest_value(run, NORM, (16,), 3), rel=1e-6)


def test_a_value_beyond_the_bound_is_refused_with_its_size():
    run = small_manifest()
    bound = largest_value(run, EMBEDDING_TENSOR, part_layout(run, EMBEDDING)[EMBEDDING_TENSOR], 3)
    name = ContributionName(EMBEDDING, 3, PeerId("QmA"))

    def made(value: int) -> Contribution:
        tensors = {EMBEDDING_TENSOR: SparseTensor(np.array([0]), np.array([value]))}
        return Contribution(RunId("00" * 32), name, 1, tensors)

    check_magnitudes(made(-bound), run)
    with pytest.raises(FormatError, match="more than learning rate and error feedback allow"):
        check_magnitudes(made(bound + 1), run)


GROWING = small_manifest(inner={"warmup": 4}, outer={"rounds": 40, "beta": 1.0})
"""What an honest peer may hold grows with each round: nothing of it is put back before it is sent."""


@given(st.integers(1, 40))
def test_what_is_sent_and_what_is_handed_over_may_be_as_large_as_in_their_own_round(round: int):
    layout = part_layout(GROWING, stage_part(0))
    bound, before = (largest_value(GROWING, NORM, layout[NORM], each) for each in (round, max(1, round - 1)))
    assert bound > before or round == 1

    def sent(value: int) -> Contribution:
        name = ContributionName(stage_part(0), round, PeerId("QmA"))
        return Contribution(RunId("00" * 32), name, 1, {NORM: SparseTensor(np.array([0]), np.array([value]))})

    def handed_over(value: int) -> int:
        given = {NORM: torch.full(layout[NORM], value, dtype=torch.int32)}
        own = {NORM: torch.zeros(layout[NORM], dtype=torch.int32)}
        return int(added(own, given, GROWING, stage_part(0), round)[NORM][0])

    check_magnitudes(sent(bound), GROWING)
    assert handed_over(-(bound // 2)) == -(bound // 2)
    with pytest.raises(FormatError, match="more than learning rate"):
        check_magnitudes(sent(-bound - 1), GROWING)
    with pytest.raises(FormatError, match="larger than honest work"):
        handed_over(bound // 2 + 1)


MUON = small_manifest(inner={"optimizer": "muon", "steps": 5, "warmup": 3})
LONG = small_manifest(inner={"optimizer": "muon"}, model={"ffn": 2048})


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1000), st.sampled_from(["one entry", "one row", "one rank", "noise"]))
def test_no_step_of_muon_moves_an_entry_further_than_its_bound(seed: int, kind: str):
    """One entry alone has one singular value, and all of its step: in a long matrix far more than one of AdamW's."""
    chance = torch.Generator().manual_seed(seed)
    shape = part_layout(LONG, stage_part(0))[UP]
    gradient = torch.randn(shape, generator=chance)
    if kind == "one entry":
        gradient = torch.zeros(shape)
        gradient[seed % shape[0], seed % shape[1]] = 1e-3
    elif kind == "one row":
        gradient[1:] = 0.0
    elif kind == "one rank":
        gradient = torch.outer(gradient[:, 0], gradient[0])
    parameter = torch.nn.Parameter(torch.zeros(shape))
    parameter.grad = gradient
    Muon([parameter], MUON.inner, hidden=frozenset({0})).update(1.0, 1.0)
    assert 0 < parameter.abs().max().item() <= largest_step(LONG, UP, shape)


@pytest.mark.parametrize(("tensor", "part"), [(NORM, stage_part(0)), (EMBEDDING_TENSOR, EMBEDDING)])
def test_what_muon_does_not_move_has_adamws_bound(tensor: str, part: Part):
    adamw = small_manifest(inner={"steps": 5, "warmup": 3})
    shape, up = part_layout(MUON, part)[tensor], part_layout(MUON, stage_part(0))[UP]
    assert largest_value(MUON, tensor, shape, 3) == largest_value(adamw, tensor, shape, 3)
    assert largest_value(MUON, UP, up, 3) != largest_value(adamw, UP, up, 3)


MUON_SHAPES = {"0.step": (), "0.exp_avg": (4, 3), "0.exp_avg_sq": (0,)}


def momentum(gradients: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    """Muon's state after these gradients, each clipped."""
    parameter = torch.nn.Parameter(torch.zeros(4, 3))
    own = Muon([parameter], MUON.inner, hidden=frozenset({0}))
    for gradient in gradients:
        parameter.grad = gradient.clone()
        own.update(inner.clip_factor([inner.squared_norm([parameter])], MUON.inner.clip), 1e-3)
    return own.tensors()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(-40, 15), min_size=1, max_size=9), st.integers(0, 1000))
def test_no_clipped_gradients_make_a_momentum_that_is_refused(magnitudes: list[int], seed: int):
    chance = torch.Generator().manual_seed(seed)
    same = torch.randn(4, 3, generator=chance)
    check_moments(momentum([same * 10.0**magnitude for magnitude in magnitudes]), MUON_SHAPES, MUON)


@pytest.mark.parametrize(
    "change",
    [
        {"0.exp_avg": torch.full((4, 3), 1.0)},
        {"0.exp_avg": torch.full((4, 3), float("nan"))},
        {"0.exp_avg": torch.full((4, 3), float("inf"))},
        {"0.exp_avg_sq": torch.zeros(4, 3)},
        {"0.step": torch.tensor(0.0)},
        {"0.step": torch.tensor(1e9)},
    ],
)
def test_a_momentum_that_no_clipped_gradients_make_is_refused(change: dict[str, torch.Tensor]):
    with pytest.raises(FormatError):
        check_moments(momentum([torch.ones(4, 3)]) | change, MUON_SHAPES, MUON)


MANIFEST = small_manifest()
SHAPES = {"0.step": (), "0.exp_avg": (4, 3), "0.exp_avg_sq": (4, 3)}


def moments(gradients: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    """AdamW's state after these gradients."""
    parameter = torch.nn.Parameter(torch.zeros(4, 3))
    optimizer = inner.AdamW([parameter], MANIFEST.inner)
    for gradient in gradients:
        parameter.grad = gradient.clone()
        optimizer.update(1.0, MANIFEST.inner.learning_rate)
    return optimizer.tensors()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(-40, 15), min_size=1, max_size=9), st.integers(0, 1000))
def test_no_gradients_make_moments_that_are_refused(magnitudes: list[int], seed: int):
    chance = torch.Generator().manual_seed(seed)
    gradients = [torch.randn(4, 3, generator=chance) * 10.0**magnitude for magnitude in magnitudes]
    check_moments(moments(gradients), SHAPES, MANIFEST)


@pytest.mark.parametrize(
    "change",
    [
        {"0.exp_avg": torch.full((4, 3), 100.0)},
        {"0.exp_avg": torch.full((4, 3), float("nan"))},
        {"0.exp_avg": torch.full((4, 3), float("inf"))},
        {"0.exp_avg_sq": torch.full((4, 3), -1.0)},
        {"0.exp_avg_sq": torch.full((4, 3), float("inf"))},
        {"0.exp_avg_sq": torch.zeros(3, 4)},
        {"0.exp_avg_sq": torch.zeros(4, 3, dtype=torch.float64)},
        {"0.step": torch.tensor(0.0)},
        {"0.step": torch.tensor(1.5)},
        {"0.step": torch.tensor(float("nan"))},
        {"0.step": torch.tensor(1e9)},
        {"1.step": torch.tensor(1.0)},
    ],
)
def test_moments_that_no_gradients_make_are_refused(change: dict[str, torch.Tensor]):
    with pytest.raises(FormatError):
        check_moments(moments([torch.ones(4, 3)]) | change, SHAPES, MANIFEST)
