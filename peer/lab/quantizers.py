"""What a contribution's values become on their way, and the bytes that offsets and values take.

Each quantizer is a function of one tensor's kept values, in units of 2⁻²⁶, to what the receiver reads. The swarm's own
two are `protocol.codec.quantize`'s.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from protocol.codec import rice
from protocol.codec.bitstream import Int32Array
from protocol.codec.chunks import ChunkGrid, Offsets
from protocol.codec.quantize import payload_bytes, quantize
from protocol.tensor_formats import Codec

STATISTICAL_BINS = 4
STATISTICAL_RANGE = 6.0
"""Standard deviations that the bins cover (SparseLoCo's published code)."""


@dataclass(frozen=True, slots=True)
class Quantizer:
    """`apply`: values [n] → what the receiver reads [n]. `size`: bytes of n values."""

    apply: Callable[[Int32Array], Int32Array]
    size: Callable[[int], int]


def exact(values: Int32Array) -> Int32Array:
    """Every integer as it is."""
    return values


def sign(values: Int32Array) -> Int32Array:
    """The sign, times the mean magnitude; one bit has no zero, which becomes positive."""
    mean = np.abs(values).mean() if len(values) else 0.0
    read: Int32Array = np.rint(np.where(values < 0, -mean, mean)).astype(values.dtype)
    return read


def statistical(values: Int32Array) -> Int32Array:
    """Equal bins of 1.5 σ about the mean, each read as the mean of what fell into it: the field's "2-bit"."""
    mean = values.mean()
    centred = values - mean
    deviation = math.sqrt(float((centred**2).sum()) / max(1, len(values) - 1))
    width = STATISTICAL_RANGE * deviation / STATISTICAL_BINS or 1.0
    bins = np.clip(np.rint(centred / width) + STATISTICAL_BINS // 2, 0, STATISTICAL_BINS - 1).astype(int)
    counts = np.bincount(bins, minlength=STATISTICAL_BINS)
    sums = np.bincount(bins, weights=centred, minlength=STATISTICAL_BINS)
    means = np.divide(sums, counts, out=np.zeros(STATISTICAL_BINS), where=counts > 0)
    read: Int32Array = np.rint(means[bins] + mean).astype(values.dtype)
    return read


def of_the_protocol(codec: Codec) -> Quantizer:
    """A quantizer that a manifest may name."""
    return Quantizer(lambda values: quantize(values, codec)[1], lambda count: payload_bytes(count, codec))


QUANTIZERS = {
    "bf16": of_the_protocol("bf16"),
    "2bit": of_the_protocol("2bit"),
    "exact": Quantizer(exact, lambda count: 4 * count),
    "sign": Quantizer(sign, lambda count: 4 + math.ceil(count / 8)),
    "statistical": Quantizer(statistical, lambda count: 4 * (STATISTICAL_BINS + 1) + math.ceil(count / 4)),
}


def rice_bytes(offsets: Offsets, grid: ChunkGrid) -> int:
    """As the swarm codes them."""
    unary, rests = rice.encode(offsets, grid)
    return 4 + len(unary) + len(rests)


def plain_bytes(offsets: Offsets, grid: ChunkGrid) -> int:
    """⌈log₂ size⌉ bits each."""
    return math.ceil(sum(k * (size - 1).bit_length() for size, k in chunks(grid)) / 8)


def bound_bytes(offsets: Offsets, grid: ChunkGrid) -> int:
    """log₂ C(size, k) bits a chunk: no code needs fewer if all choices are equally likely."""
    return math.ceil(sum(math.log2(math.comb(size, k)) for size, k in chunks(grid)) / 8)


INDICES: dict[str, Callable[[Offsets, ChunkGrid], int]] = {
    "rice": rice_bytes,
    "plain": plain_bytes,
    "bound": bound_bytes,
}


def chunks(grid: ChunkGrid) -> list[tuple[int, int]]:
    """(size, kept) of every chunk."""
    return [(grid.size, grid.k)] * grid.full + [(grid.tail, grid.tail_k)] * bool(grid.tail)
