"""What an honest contribution can be, and what it cannot."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from peer.optim import inner
from peer.optim.bounds import check_magnitudes, check_moments, largest_value
from peer.optim.inner import learning_rate
from protocol.codec.contribution import Contribution, SparseTensor
from protocol.errors import FormatError
from protocol.identity import EMBEDDING, ContributionName, PeerId, RunId, stage_part
from protocol.tensor_formats import UNITS_PER_ONE
from tests.reference.small_manifest import small_manifest


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
    assert error * UNITS_PER_ONE <= largest_value(run, stage_part(0), round)


def test_a_value_beyond_the_bound_is_refused_with_its_size():
    run = small_manifest()
    bound = largest_value(run, EMBEDDING, 3)
    name = ContributionName(EMBEDDING, 3, PeerId("QmA"))

    def made(value: int) -> Contribution:
        tensors = {"w": SparseTensor(np.array([0]), np.array([value]))}
        return Contribution(RunId("00" * 32), name, 1, tensors)

    check_magnitudes(made(-bound), run)
    with pytest.raises(FormatError, match="more than learning rate and error feedback allow"):
        check_magnitudes(made(bound + 1), run)


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
