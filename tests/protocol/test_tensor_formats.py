"""The one table of number formats: its numbers are on the wire, and its names in manifests, for ever."""

from typing import get_args

from protocol.schemas import pipeline_pb2
from protocol.tensor_formats import FORMATS, Codec, NumberFormatName


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
