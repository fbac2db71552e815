"""The values of contributions on the wire. A value is an integer in units of 2⁻²⁶, |v| < 2³¹, before and after.

`bf16` keeps 8 significant bits of the integer. `2bit` sends a sign and one of two magnitudes, the levels, which are
fitted to the tensor with the least squared error. The author subtracts what was sent from its error feedback, so
nothing is lost by either.

Top-k values are bimodal, and statistical quantizers degenerate to one bit on them. Two levels of least squared error
are 2-means in one dimension: the magnitudes are split at a border, and each side's mean is its level. The best border
is found without sorting all: it lies in the middle between the two means, for else moving it there would be better
(Lloyd's condition). Both means rise with the border, so counts of magnitudes in buckets tell the few buckets where it
can lie; only what is there is sorted, and every split of it compared.
"""

import struct

import numpy as np
from numpy.typing import NDArray

from protocol.codec.bitstream import Int32Array, Octets, packed_bytes
from protocol.codec.compiled import compiled
from protocol.errors import FormatError
from protocol.tensor_formats import FORMATS, Codec

LARGEST_UNITS = 2**31 - 1
SIGNIFICANT_BITS = 8
LEVELS = struct.Struct("<II")

Naturals = NDArray[np.uint32]

BUCKET_BITS = 11
"""The number of buckets between the smallest and the largest magnitude, as a power of two: 2048 buckets."""

BLOCK = 32
"""The number of magnitudes that are looked at together: seldom one of them lies near the border."""


def payload_bytes(count: int, codec: Codec) -> int:
    """The length in bytes of `count` values on the wire."""
    return (LEVELS.size if codec == "2bit" else 0) + packed_bytes(count, FORMATS[codec].bits)


def quantize(values: Int32Array, codec: Codec) -> tuple[bytes, Int32Array]:
    """Quantize values. Returns the bytes for the wire, and the integers that these stand for."""
    values = np.asarray(values, np.int32)
    sent = np.empty_like(values)
    if codec == "bf16":
        _round_significant(values, sent)
        return (sent.astype(np.float32).view(np.uint32) >> 16).astype("<u2").tobytes(), sent
    magnitudes, smallest, largest, total = absolute(values)
    low, high = fit_levels(magnitudes, smallest, largest, total)
    if 2 * largest <= low + high:  # one level is enough, and is then said in the one way there is
        high = low
    elif 2 * smallest > low + high:
        low = high
    packed = np.zeros(packed_bytes(len(values), 2), np.uint8)
    _encode(values, low, high, packed, sent)
    return LEVELS.pack(low, high) + packed.tobytes(), sent


def dequantize(payload: bytes, count: int, codec: Codec) -> Int32Array:
    """Read the integers that wire bytes stand for.

    Raises:
        FormatError: the length is wrong, or a value is none that `quantize` makes.
    """
    if len(payload) != payload_bytes(count, codec):
        raise FormatError(f"{len(payload)} bytes for {count} values as {codec}")
    if codec == "2bit":
        return _from_two_bits(payload, count)
    patterns = np.frombuffer(payload, "<u2").astype(np.uint32)
    floats = (patterns << 16).view(np.float32)
    if (patterns == 0x8000).any() or not (np.abs(floats) < 2.0**31).all() or (floats != np.rint(floats)).any():
        raise FormatError("a value is not an integer of the grid")
    return floats.astype(np.int32)


def _from_two_bits(payload: bytes, count: int) -> Int32Array:
    low, high = LEVELS.unpack_from(payload)
    if not low <= high <= LARGEST_UNITS:
        raise FormatError(f"magnitudes {low} and {high} are out of order or range")
    values = np.empty(count, np.int32)
    some_large, all_large, minus_low, beyond = _decode(
        np.frombuffer(payload, np.uint8)[LEVELS.size :], low, high, values
    )
    if beyond:
        raise FormatError("bits are set beyond the last value")
    used = some_large and not all_large if low < high else not some_large
    if not used or (minus_low and low == 0):
        raise FormatError("a value is coded in another way than the one there is")
    return values


@compiled
def _round_significant(values: Int32Array, rounded: Int32Array) -> None:
    """Keep 8 significant bits, rounding half to even; never up to 2³¹."""
    for i in range(len(values)):
        magnitude = abs(np.int64(values[i]))
        shift = 0
        while magnitude >> (shift + SIGNIFICANT_BITS):
            shift += 1
        head = magnitude >> shift
        rest, half = magnitude - (head << shift), (1 << shift) >> 1
        if rest > half or (shift > 0 and rest == half and head & 1 == 1):
            head += 1
        if head << shift > LARGEST_UNITS:
            head -= 1
        rounded[i] = -(head << shift) if values[i] < 0 else head << shift


@compiled
def _encode(values: Int32Array, low: int, high: int, packed: Octets, sent: Int32Array) -> None:
    """Encode each value as the nearer level, the lower of two equally near, and a sign, which zero has not: as fields
    of two bits (`protocol/codec/bitstream.py`), the higher one the sign, into bytes that are zero."""
    cut, smaller, larger = np.int32((low + high) // 2 if low < high else LARGEST_UNITS), np.int32(low), np.int32(high)
    for row in range(4):
        row_values, row_sent = values[row * len(packed) :][: len(packed)], sent[row * len(packed) :][: len(packed)]
        for i in range(len(row_values)):
            large = (row_values[i] > cut) | (row_values[i] < -cut)
            negative = (row_values[i] < 0) & ((low > 0) | large)
            magnitude = larger if large else smaller
            row_sent[i] = -magnitude if negative else magnitude
            code = (np.uint8(2) if negative else np.uint8(0)) | np.uint8(large)
            packed[i] |= np.uint8(code << np.uint8(2 * row))


@compiled
def _decode(packed: Octets, low: int, high: int, values: Int32Array) -> tuple[bool, bool, bool, bool]:
    """Decode what `_encode` packed. Returns whether some magnitudes are large, whether all are, whether some are `low`
    with a minus, and whether bits are set beyond the last value."""
    smaller, larger = np.int32(low), np.int32(high)
    some, every, minus_low, beyond = np.uint8(0), np.uint8(1), np.uint8(0), np.uint8(0)
    for row in range(4):
        row_out, down = values[row * len(packed) :][: len(packed)], np.uint8(2 * row)
        for i in range(len(row_out)):
            code = np.uint8(packed[i] >> down) & np.uint8(3)
            magnitude = larger if code & np.uint8(1) != 0 else smaller
            row_out[i] = -magnitude if code & np.uint8(2) != 0 else magnitude
            some |= code
            every &= code
            minus_low |= np.uint8(code == 2)
        for i in range(len(row_out), len(packed)):
            beyond |= np.uint8(packed[i] >> down) & np.uint8(3)
    return some & 1 != 0, every != 0, minus_low != 0, beyond != 0


# The two levels


def absolute(values: Int32Array) -> tuple[Naturals, int, int, int]:
    """The magnitudes |v| of some values. Returns (the magnitudes, the smallest, the largest, their sum)."""
    magnitudes = np.empty(len(values), np.uint32)
    return magnitudes, *_absolute(values, magnitudes)


def fit_levels(magnitudes: Naturals, smallest: int, largest: int, total: int) -> tuple[int, int]:
    """Fit the two levels of least squared error to magnitudes that go from `smallest` to `largest` and sum up to
    `total`. Where all are one value, both levels are that value.

    Only the author computes this, so it may use floats; the sums are integers, since large magnitudes that lie close
    together cancel.
    """
    if smallest == largest:
        return smallest, smallest
    count, shift = len(magnitudes), max(0, (largest - smallest).bit_length() - BUCKET_BITS)
    total -= count * smallest  # from here on a magnitude's height above the smallest
    buckets = np.zeros(1 << BUCKET_BITS, np.uint32)
    _count(magnitudes, smallest, shift, buckets)
    first, last = _around_the_border(buckets, float(1 << shift), count)
    below, near = int(buckets[:first].sum()), np.empty(int(buckets[first : last + 1].sum()), np.uint32)
    sum_below = _sum_below(magnitudes, smallest + (first << shift)) - below * smallest
    _gather(magnitudes, smallest, first << shift, (last + 1 << shift) - 1, near)
    low, high = _best_split(np.sort(near), largest - smallest, count, below, total, sum_below)
    return smallest + round(low), smallest + round(high)


@compiled
def _absolute(values: Int32Array, magnitudes: Naturals) -> tuple[int, int, int]:
    smallest, largest, total = np.uint32(0xFFFFFFFF), np.uint32(0), np.uint64(0)
    for i in range(len(values)):
        magnitudes[i] = np.uint32(abs(values[i]))
        smallest, largest = min(smallest, magnitudes[i]), max(largest, magnitudes[i])
        total += np.uint64(magnitudes[i])
    return int(smallest), int(largest), int(np.int64(total))


@compiled
def _count(magnitudes: Naturals, smallest: int, shift: int, buckets: Naturals) -> None:
    base, down = np.uint32(smallest), np.uint32(shift)
    for i in range(len(magnitudes)):
        buckets[np.uint32(magnitudes[i] - base) >> down] += np.uint32(1)


@compiled
def _around_the_border(buckets: Naturals, width: float, count: int) -> tuple[int, int]:
    """The first and the last bucket that may hold the largest value below the border.

    Heights are above the smallest value. The sum of a bucket's heights is known to within `width` a value, so bounds
    of the means are those with every height at its bucket's start, and `width` above. One is for the floats.
    """
    whole = 0.0
    for bucket in range(len(buckets)):
        whole += buckets[bucket] * (bucket * width)
    first, last, previous = -1, 0, 0
    below, least, middle = 0, 0.0, whole / count / 2
    for bucket in range(len(buckets)):
        if below == count:
            break
        start, position, lowest = bucket * width, np.int64(buckets[bucket]), middle
        # A border in this bucket has the lowest means if all of the bucket is above it, the highest if all is below.
        below += int(position)
        least += position * start
        middle = (least / below + ((whole - least) / (count - below) if below < count else start)) / 2
        if lowest <= start + width + 1 and middle + width + 1 >= start:
            first, last = previous if first < 0 else first, bucket
        if position > 0:
            previous = bucket
    return first, last


@compiled
def _sum_below(magnitudes: Naturals, start: int) -> int:
    total, low = np.uint64(0), np.uint32(start)
    for i in range(len(magnitudes)):
        total += np.uint64(magnitudes[i] if magnitudes[i] < low else np.uint32(0))
    return int(np.int64(total))


@compiled
def _gather(magnitudes: Naturals, smallest: int, start: int, end: int, near: Naturals) -> None:
    """Collect the heights from `start` to `end`."""
    base, low, span, inside = np.uint32(smallest), np.uint32(smallest + start), np.uint32(end - start), np.uint64(0)
    for at in range(0, len(magnitudes), BLOCK):
        block, some = magnitudes[at : at + BLOCK], np.uint32(0)
        for i in range(len(block)):
            some |= np.uint32(np.uint32(block[i] - low) <= span)
        if some > 0:
            for i in range(len(block)):
                if np.uint32(block[i] - low) <= span:
                    near[inside] = np.uint32(block[i] - base)
                    inside += np.uint64(1)


@compiled
def _best_split(
    near: Naturals, largest: int, count: int, below: int, total: int, sum_below: int
) -> tuple[float, float]:
    """The two means of the best split behind one of the sorted heights `near`, before which are `below` values."""
    best, levels = -1.0, (0.0, 0.0)
    for i in range(len(near)):
        below += 1
        sum_below += int(near[i])
        if near[i] != (near[i + 1] if i + 1 < len(near) else largest):  # only between different values
            low, high = sum_below / below, (total - sum_below) / (count - below)
            between = below * (count - below) * (high - low) ** 2  # the variance between the two, times a constant
            if between > best:
                best, levels = between, (low, high)
    return levels
