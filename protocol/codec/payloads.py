"""The tensor of a frame as bytes: what crosses a boundary of a pipeline, in one of four number formats.

Floats are IEEE float32 or its upper half. Integers have 8 or 4 bits: numbers of cells of one width, with a scale for
each token, its root mean square in bf16. A value is (cell + ½) · step · scale, and the step is that of the uniform
quantizer of least squared error for a normal distribution (Max, 1960), which coordinates in a random basis nearly have.

    a token in int8:  scale (2 bytes) · cell + 128 (a byte each)
    a token in int4:  scale (2 bytes) · cell + 8, two in a byte, the first in its lower half
"""

from dataclasses import dataclass

import numpy as np

from protocol.limits import CHUNK_BYTES
from protocol.tensor_formats import FORMATS

SCALE_BYTES = 2

LARGEST = 65504.0
"""The largest value in a frame: fp16's largest. Models of this kind are trained in half precision, so activations and
gradients keep well within it, while a number near bf16's largest, 3 · 10³⁸, overflows in the first sum of squares it
meets."""


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
        """Whether values are integers, with a scale for each token."""
        return FORMATS[self.wire].step > 0.0

    @property
    def token_bytes(self) -> int:
        """The size of one token in bytes."""
        packed = -(-self.width * FORMATS[self.wire].bits // 8)
        return SCALE_BYTES + packed if self.scaled else packed

    @property
    def size(self) -> int:
        """The size of the whole tensor in bytes."""
        return self.sequences * self.context * self.token_bytes

    @property
    def messages(self) -> int:
        """The number of messages that a frame takes."""
        return -(-self.size // CHUNK_BYTES)

    def in_range(self, data: bytes) -> bool:
        """Whether all values are numbers within ±`LARGEST`. Without its sign, a float's bits grow with it, and the bits
        of infinity and of NaN are above all others."""
        if not self.scaled:
            return _in_range(data, self.wire, LARGEST)
        rows = np.frombuffer(data, np.uint8).reshape(-1, self.token_bytes)
        half = 1 << (FORMATS[self.wire].bits - 1)
        scales = rows[:, :SCALE_BYTES].tobytes()
        padding = self.wire == "int4" and self.width % 2 == 1 and bool((rows[:, -1] >> 4).any())
        return not padding and _in_range(scales, "bf16", LARGEST / (half * FORMATS[self.wire].step))


def _in_range(data: bytes, wire: str, largest: float) -> bool:
    bits = FORMATS[wire].bits
    word = f"<u{bits // 8}"
    unsigned = np.frombuffer(data, word) & np.array((1 << bits - 1) - 1, word)
    bound = int(np.array(largest, "<f4").view("<u4")) >> (32 - bits)
    return int(unsigned.max()) <= bound
