"""What crosses a boundary of a pipeline, as bytes: one tensor of a frame, in one of four number formats.

Floats are IEEE float32 or its upper half. Integers have 8 or 4 bits: numbers of cells of one width, with a scale for
each token, its root mean square in bf16. A value is (cell + ½) · step · scale, and the step is that of the uniform
quantizer of least squared error for a normal distribution (Max, 1960), which coordinates in a random basis nearly have.

    a token in int8:  scale (2 bytes) · cell + 128 (a byte each)
    a token in int4:  scale (2 bytes) · cell + 8, two in a byte, the first in its lower half
"""

from dataclasses import dataclass

import numpy as np

from protocol.limits import CHUNK_BYTES

BITS: dict[str, int] = {"bf16": 16, "fp32": 32, "int8": 8, "int4": 4}
STEPS: dict[str, float] = {"int8": 0.0308, "int4": 0.3352}
"""Between two cells, in scales."""

SCALE_BYTES = 2

LARGEST = 65504.0
"""Of a frame's values: fp16's largest. Models of this kind are trained in half precision, so activations and gradients
keep well within it, while a number near bf16's largest, 3 · 10³⁸, overflows in the first sum of squares it meets."""

_WORDS = {"bf16": "<u2", "fp32": "<u4"}
_SIGN = {"bf16": 0x8000, "fp32": 0x8000_0000}


@dataclass(frozen=True, slots=True)
class Payload:
    """Activations or gradients of a microbatch: `sequences` × `context` tokens of `width` values in a format."""

    wire: str
    sequences: int
    context: int
    width: int

    @property
    def shape(self) -> tuple[int, int, int]:
        """[b, L, k]."""
        return self.sequences, self.context, self.width

    @property
    def scaled(self) -> bool:
        """Whether values are integers."""
        return self.wire in STEPS

    @property
    def token_bytes(self) -> int:
        """Of one token."""
        packed = -(-self.width * BITS[self.wire] // 8)
        return SCALE_BYTES + packed if self.scaled else packed

    @property
    def size(self) -> int:
        """In bytes."""
        return self.sequences * self.context * self.token_bytes

    @property
    def messages(self) -> int:
        """So many a frame takes."""
        return -(-self.size // CHUNK_BYTES)

    def in_range(self, data: bytes) -> bool:
        """Whether all values are numbers within ±`LARGEST`. Without its sign, a float's bits grow with it, and those of
        infinity and of what is no number are above all others."""
        if not self.scaled:
            return _in_range(data, self.wire, LARGEST)
        rows = np.frombuffer(data, np.uint8).reshape(-1, self.token_bytes)
        half = 1 << (BITS[self.wire] - 1)
        scales = rows[:, :SCALE_BYTES].tobytes()
        padding = self.wire == "int4" and self.width % 2 == 1 and bool((rows[:, -1] >> 4).any())
        return not padding and _in_range(scales, "bf16", LARGEST / (half * STEPS[self.wire]))


def _in_range(data: bytes, wire: str, largest: float) -> bool:
    bits = np.frombuffer(data, _WORDS[wire]) & np.array(_SIGN[wire] - 1, _WORDS[wire])
    bound = int(np.array(largest, "<f4").view("<u4")) >> (16 if wire == "bf16" else 0)
    return int(bits.max()) <= bound
