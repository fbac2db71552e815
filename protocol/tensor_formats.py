"""The number formats of tensors, in one table: what a run's manifest calls each, its bits, and its numbers on the wire.

A format serves what crosses the boundaries of a pipeline, the values of contributions, the weights of a checkpoint that
a run begins from, or several of these. Names and numbers are the protocol's: they never change.
"""

from dataclasses import dataclass
from typing import Literal

NumberFormatName = Literal["bf16", "fp32", "int8", "int4"]
"""A format of activations and gradients (`replicas.wire`); `protocol/codec/payloads.py` lays their bytes out."""

Codec = Literal["bf16", "2bit"]
"""A format of a contribution's values (`outer.values`); `protocol/codec/quantize.py` lays their bytes out."""


@dataclass(frozen=True, slots=True)
class TensorFormat:
    """How the values of a tensor are written.

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
"""By the names that manifests use. Checkpoints alone have fp16."""
