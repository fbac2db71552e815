"""The number formats of tensors, in one table: what a run's manifest calls each, its bits, and its numbers on the wire.

A format serves what crosses the boundaries of a pipeline, the values of contributions, the weights of a checkpoint that
a run begins from, or several of these. Names and numbers are the protocol's: they never change.

The outer state has a format of its own: weights and pseudo-gradients are integers in units of 2⁻²⁶.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

NumberFormatName = Literal["bf16", "fp32", "int8", "int4"]
"""A format of activations and gradients (`replicas.wire`); `protocol/codec/frames.py` lays their bytes out."""

Codec = Literal["bf16", "2bit"]
"""A format of a contribution's values (`outer.values`); `protocol/codec/quantize.py` lays their bytes out."""


@dataclass(frozen=True, slots=True)
class TensorFormat:
    """The encoding of a tensor's values.

    `bits` is what one value takes. `frame` is the format's number in a frame (`protocol/schemas/pipeline.proto`; 0: it
    is none of a frame's), `contribution` its number in a contribution's header (None: none of a contribution's), and
    `stored` its name in safetensors files (empty: none is read from there). `step` is the distance between two cells of
    an integer format, in scales of the token; 0: values have no scale.
    """

    bits: int
    frame: int = 0
    contribution: int | None = None
    stored: str = ""
    step: float = 0.0


FORMATS: dict[str, TensorFormat] = {
    "fp32": TensorFormat(32, frame=2, stored="F32"),
    "fp16": TensorFormat(16, stored="F16"),
    "bf16": TensorFormat(16, frame=1, contribution=0, stored="BF16"),
    "int8": TensorFormat(8, frame=3, step=0.0308),
    "int4": TensorFormat(4, frame=4, step=0.3352),
    "2bit": TensorFormat(2, contribution=1),
}
"""The formats by the names that manifests use. Checkpoints alone have fp16."""

INT32_MAX = 2**31 - 1

UNITS_PER_ONE = 2**26
"""The number of units in 1.0. An int32 then holds ±32, far beyond any weight, in steps of 1.5e-8: finer than float32
from 0.25 on."""


def array_to_units(values: NDArray[np.floating]) -> NDArray[np.int32]:
    """Convert a float array of any shape to int32 units of the same shape, rounded half to even.

    Raises:
        OverflowError: a value is outside ±32, or is not a number.
    """
    scaled = values.astype(np.result_type(values, np.float32)) * UNITS_PER_ONE
    np.rint(scaled, out=scaled)
    if scaled.size and not (scaled.min() > -(2**31) and scaled.max() < 2**31):
        raise OverflowError("a weight is outside ±32, or is not a number")
    return scaled.astype(np.int32)
