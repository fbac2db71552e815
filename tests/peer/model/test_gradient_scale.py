"""A scale is a power of two that brings the largest gradient to 1 or above."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from peer.model.gradient_scale import GradientScale, power_to_one


@given(st.floats(2.0**-99, 2.0**99))
def test_the_scale_is_a_power_of_two_that_brings_the_largest_to_one(largest: float) -> None:
    scale = power_to_one(largest)
    assert math.frexp(scale)[0] == 0.5
    assert 1 <= largest * scale < 2


@pytest.mark.parametrize("none", [0.0, math.inf, math.nan])
def test_nothing_is_scaled_by_what_is_no_size(none: float) -> None:
    assert power_to_one(none) == 1


@pytest.mark.parametrize("tiny", [1e-45, 1e-38])
def test_the_smallest_of_fp32_can_be_scaled_back(tiny: float) -> None:
    assert power_to_one(tiny) == 2.0**100


def test_what_is_between_has_the_gradient_scaled_and_what_is_outside_has_it_as_it_was() -> None:
    scale, seen = GradientScale(), list[torch.Tensor]()
    entered = torch.ones(3, requires_grad=True)
    within = scale.before_layers(entered) * 1
    within.register_hook(seen.append)
    scale.behind_layers(within).backward(torch.tensor([0.0, 3e-9, -1e-9]))
    assert 1 <= seen[0].abs().max().item() < 2
    assert entered.grad is not None
    assert torch.equal(entered.grad, torch.tensor([0.0, 3e-9, -1e-9]))
