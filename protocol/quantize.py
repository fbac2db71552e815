"""Values on the wire. A value is an integer in units of 2⁻²⁶, |v| < 2³¹, before and after.

`bf16` keeps 8 significant bits of the integer. `2bit` sends a sign and one of two magnitudes, fitted to the
tensor: top-k values are bimodal, and statistical quantizers degenerate to one bit on them. The author
subtracts what was sent from its error feedback, so nothing is lost by either.
"""

import struct
from typing import Literal

import numpy as np

from protocol.bitstream import Integers, fixed_bytes, pack_fixed, unpack_fixed
from protocol.errors import FormatError

Codec = Literal["bf16", "2bit"]

LARGEST = 2**31 - 1
SIGNIFICANT_BITS = 8
LEVELS = struct.Struct("<II")


def payload_bytes(count: int, codec: Codec) -> int:
    """The length of `count` values on the wire."""
    return 2 * count if codec == "bf16" else LEVELS.size + fixed_bytes(count, 2)


def quantize(values: Integers, codec: Codec) -> tuple[bytes, Integers]:
    """(wire bytes, the integers they stand for)."""
    if codec == "bf16":
        rounded = _round_significant(values)
        return (rounded.astype(np.float32).view(np.uint32) >> 16).astype("<u2").tobytes(), rounded
    low, high = fit_levels(np.abs(values))
    large = 2 * np.abs(values) > low + high
    if large.all() or not large.any():  # one level is enough, and is then said in the one way there is
        low = high = high if large.all() else low
        large = np.zeros_like(large)
    magnitudes = np.where(large, high, low)
    negative = (values < 0) & (magnitudes > 0)
    payload = LEVELS.pack(low, high) + pack_fixed(2 * negative.astype(np.int64) + large, 2)
    return payload, np.where(negative, -magnitudes, magnitudes)


def dequantize(payload: bytes, count: int, codec: Codec) -> Integers:
    """The integers that wire bytes stand for.

    Raises:
        FormatError: the length is wrong, or a value is none that `quantize` makes.
    """
    if len(payload) != payload_bytes(count, codec):
        raise FormatError(f"{len(payload)} bytes for {count} values as {codec}")
    return _from_bf16(payload) if codec == "bf16" else _from_two_bits(payload, count)


def _round_significant(values: Integers) -> Integers:
    """Keep 8 significant bits, rounding half to even; never up to 2³¹."""
    magnitude = np.abs(values)
    _, bits = np.frexp(magnitude.astype(np.float64))
    shift = np.maximum(bits.astype(np.int64) - SIGNIFICANT_BITS, 0)
    head = magnitude >> shift
    rest, half = magnitude - (head << shift), (1 << shift) >> 1
    up = (shift > 0) & ((rest > half) | ((rest == half) & (head & 1 == 1)))
    rounded = (head + up) << shift
    rounded = np.where(rounded > LARGEST, head << shift, rounded)
    return np.where(values < 0, -rounded, rounded)


def _from_bf16(payload: bytes) -> Integers:
    patterns = np.frombuffer(payload, "<u2").astype(np.uint32)
    floats = (patterns << 16).view(np.float32)
    if (patterns == 0x8000).any() or not (np.abs(floats) < 2.0**31).all() or (floats != np.rint(floats)).any():
        raise FormatError("a value is not an integer of the grid")
    integers: Integers = floats.astype(np.int64)
    return integers


def _from_two_bits(payload: bytes, count: int) -> Integers:
    low, high = LEVELS.unpack_from(payload)
    if not low <= high <= LARGEST:
        raise FormatError(f"magnitudes {low} and {high} are out of order or range")
    codes = unpack_fixed(payload[LEVELS.size :], count, 2)
    large, negative = codes & 1 == 1, codes >> 1 == 1
    magnitudes: Integers = np.where(large, high, low).astype(np.int64)
    both = bool(large.any()) and not large.all()
    if (negative & (magnitudes == 0)).any() or both != (low < high) or (not both and large.any()):
        raise FormatError("a value is coded in another way than the one there is")
    values: Integers = np.where(negative, -magnitudes, magnitudes)
    return values


def fit_levels(magnitudes: Integers) -> tuple[int, int]:
    """The two levels of least squared error: 2-means in one dimension, exactly, over every split of the sorted
    magnitudes between different values. One value alone is both levels. Only the author computes this, so it
    may use floats; the sums are integers, since large magnitudes that lie close together cancel."""
    ordered = np.sort(magnitudes)
    below = np.flatnonzero(np.diff(ordered)) + 1  # how many values lie below each split
    if not len(below):
        return int(ordered[0]), int(ordered[0])
    sums, above = np.cumsum(ordered - ordered[0]), len(ordered) - below
    low, high = sums[below - 1] / below, (sums[-1] - sums[below - 1]) / above
    best = int(np.argmax(below * above * (high - low) ** 2))  # the variance between the two, times a constant
    return int(ordered[0]) + round(float(low[best])), int(ordered[0]) + round(float(high[best]))
