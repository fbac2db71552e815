"""Integers in units of 2⁻²⁶."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from peer.optim.grid import grid_digest, to_float, to_int32, to_units
from protocol.errors import DivergedError


@given(st.lists(st.integers(-(2**23), 2**23), min_size=1))
def test_what_fits_in_24_bits_goes_through_float32_and_back(units: list[int]):
    grid = torch.tensor(units, dtype=torch.int32)
    assert (to_units(to_float(grid)) == grid).all()


@pytest.mark.parametrize("value", [32.0, -32.0, float("nan"), float("inf")])
def test_leaving_the_range_is_loud(value: float):
    with pytest.raises(DivergedError):
        to_units(torch.tensor([0.0, value]))


def test_int32_is_never_wrapped():
    assert to_int32(torch.tensor([2**31 - 1]), "it").item() == 2**31 - 1
    with pytest.raises(DivergedError, match="the sum left"):
        to_int32(torch.tensor([2**31]), "the sum")


def test_a_digest_knows_names_shapes_and_values():
    one = {"w": torch.arange(6, dtype=torch.int32).view(2, 3)}
    assert grid_digest(one) == grid_digest({"w": torch.arange(6, dtype=torch.int32).view(2, 3)})
    assert grid_digest(one) != grid_digest({"v": one["w"]})
    assert grid_digest(one) != grid_digest({"w": one["w"].view(3, 2)})
    assert grid_digest(one) != grid_digest({"w": one["w"] + 1})
    assert grid_digest(one) == grid_digest({"w": one["w"].T.contiguous().T})
