"""The one table of number formats: its numbers are on the wire, and its names in manifests, for ever;
and weights as integers in units of 2⁻²⁶."""

from typing import get_args

import numpy as np
import pytest

from protocol.schemas import pipeline_pb2
from protocol.tensor_formats import FORMATS, UNITS_PER_ONE, Codec, NumberFormatName, array_to_units


def test_the_numbers_are_those_of_frames_and_of_contributions():
    frames = {name: each.frame for name, each in FORMATS.items() if each.frame}
    assert frames == {"bf16": 1, "fp32": 2, "int8": 3, "int4": 4}
    assert {name.lower(): number for name, number in pipeline_pb2.Format.items() if number} == frames
    contributions = {name: each.contribution for name, each in FORMATS.items() if each.contribution is not None}
    assert contributions == {"bf16": 0, "2bit": 1}


def test_the_names_are_those_that_a_manifest_takes():
    assert {name for name, each in FORMATS.items() if each.frame} == {*get_args(NumberFormatName)}
    assert {name for name, each in FORMATS.items() if each.contribution is not None} == {*get_args(Codec)}


def test_checkpoints_have_the_names_of_safetensors():
    assert {each.stored: each.bits for each in FORMATS.values() if each.stored} == {"F32": 32, "F16": 16, "BF16": 16}


def test_integers_alone_have_a_step():
    assert {name for name, each in FORMATS.items() if each.step} == {"int8", "int4"}


def test_one_is_two_to_the_26():
    assert array_to_units(np.ones((2, 3), np.float32)).tolist() == [[2**26] * 3] * 2


def test_ties_round_to_even():
    halves = np.array([0.5, 1.5, 2.5, -0.5, -1.5]) / UNITS_PER_ONE
    assert array_to_units(halves).tolist() == [0, 2, 2, 0, -2]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_agrees_with_python_on_every_float_format(dtype: type[np.floating]):
    values = np.random.default_rng(0).normal(size=100).astype(dtype)
    assert array_to_units(values).tolist() == [round(float(value) * 2**26) for value in values]


@pytest.mark.parametrize("value", [32.0, -32.0, np.inf, np.nan])
def test_a_value_that_does_not_fit_is_an_error(value: float):
    with pytest.raises(OverflowError):
        array_to_units(np.array([0.0, value], np.float32))


def test_nothing_is_nothing():
    assert array_to_units(np.empty((0, 4), np.float32)).shape == (0, 4)
