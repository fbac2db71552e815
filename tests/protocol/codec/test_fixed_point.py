"""Weights as integers in units of 2⁻²⁶."""

import numpy as np
import pytest

from protocol.codec.fixed_point import UNITS_PER_ONE, to_units


def test_one_is_two_to_the_26() -> None:
    assert to_units(np.ones((2, 3), np.float32)).tolist() == [[2**26] * 3] * 2


def test_ties_round_to_even() -> None:
    halves = np.array([0.5, 1.5, 2.5, -0.5, -1.5]) / UNITS_PER_ONE
    assert to_units(halves).tolist() == [0, 2, 2, 0, -2]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_agrees_with_python_on_every_float_format(dtype: type[np.floating]) -> None:
    values = np.random.default_rng(0).normal(size=100).astype(dtype)
    assert to_units(values).tolist() == [round(float(value) * 2**26) for value in values]


@pytest.mark.parametrize("value", [32.0, -32.0, np.inf, np.nan])
def test_a_value_that_does_not_fit_is_an_error(value: float) -> None:
    with pytest.raises(OverflowError):
        to_units(np.array([0.0, value], np.float32))


def test_nothing_is_nothing() -> None:
    assert to_units(np.empty((0, 4), np.float32)).shape == (0, 4)
