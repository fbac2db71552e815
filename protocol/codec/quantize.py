"""The values of contributions on the wire. A value is an integer in units of 2⁻²⁶, |v| < 2³¹, before and after.

`bf16` keeps 8 significant bits of the integer. `2bit` sends a sign and one of two magnitudes, fitted to the
tensor (`protocol/codec/levels.py`). The author subtracts what was sent from its error feedback, so nothing is lost by
either.
"""

import struct

import numpy as np

from protocol.codec.bitstream import Int32Array, Octets, fixed_bytes
from protocol.codec.compiled import compiled
from protocol.codec.levels import absolute, fit_levels
from protocol.errors import FormatError
from protocol.tensor_formats import FORMATS, Codec

LARGEST = 2**31 - 1
SIGNIFICANT_BITS = 8
LEVELS = struct.Struct("<II")


def payload_bytes(count: int, codec: Codec) -> int:
    """The length in bytes of `count` values on the wire."""
    return (LEVELS.size if codec == "2bit" else 0) + fixed_bytes(count, FORMATS[codec].bits)


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
    packed = np.zeros(fixed_bytes(len(values), 2), np.uint8)
    _encode(values, low, high, packed, sent)
    return LEVELS.pack(low, high) + packed.tobytes(), sent


def dequantize(payload: bytes, count: int, codec: Codec) -> Int32Array:
    """Read the integers that wire bytes stand for.

    Raises:
        FormatError: the length is wrong, or a value is none that `quantize` makes.
    """
    if len(payload) != payload_bytes(count, codec):
        raise FormatError(f"{len(payload)} bytes for {count} values as {codec}")
    return _from_bf16(payload) if codec == "bf16" else _from_two_bits(payload, count)


def _from_bf16(payload: bytes) -> Int32Array:
    patterns = np.frombuffer(payload, "<u2").astype(np.uint32)
    floats = (patterns << 16).view(np.float32)
    if (patterns == 0x8000).any() or not (np.abs(floats) < 2.0**31).all() or (floats != np.rint(floats)).any():
        raise FormatError("a value is not an integer of the grid")
    return floats.astype(np.int32)


def _from_two_bits(payload: bytes, count: int) -> Int32Array:
    low, high = LEVELS.unpack_from(payload)
    if not low <= high <= LARGEST:
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
        if head << shift > LARGEST:
            head -= 1
        rounded[i] = -(head << shift) if values[i] < 0 else head << shift


@compiled
def _encode(values: Int32Array, low: int, high: int, packed: Octets, sent: Int32Array) -> None:
    """Encode each value as the nearer level, the lower of two equally near, and a sign, which zero has not: as fields
    of two bits (`protocol/codec/bitstream.py`), the higher one the sign, into bytes that are zero."""
    cut, smaller, larger = np.int32((low + high) // 2 if low < high else LARGEST), np.int32(low), np.int32(high)
    for row in range(4):
        given, made = values[row * len(packed) :][: len(packed)], sent[row * len(packed) :][: len(packed)]
        for i in range(len(given)):
            large = (given[i] > cut) | (given[i] < -cut)
            negative = (given[i] < 0) & ((low > 0) | large)
            magnitude = larger if large else smaller
            made[i] = -magnitude if negative else magnitude
            code = (np.uint8(2) if negative else np.uint8(0)) | np.uint8(large)
            packed[i] |= np.uint8(code << np.uint8(2 * row))


@compiled
def _decode(packed: Octets, low: int, high: int, values: Int32Array) -> tuple[bool, bool, bool, bool]:
    """Decode what `_encode` packed. Returns whether some magnitudes are large, whether all are, whether some are `low`
    with a minus, and whether bits are set beyond the last value."""
    smaller, larger = np.int32(low), np.int32(high)
    some, every, minus_low, beyond = np.uint8(0), np.uint8(1), np.uint8(0), np.uint8(0)
    for row in range(4):
        made, down = values[row * len(packed) :][: len(packed)], np.uint8(2 * row)
        for i in range(len(made)):
            code = np.uint8(packed[i] >> down) & np.uint8(3)
            magnitude = larger if code & np.uint8(1) != 0 else smaller
            made[i] = -magnitude if code & np.uint8(2) != 0 else magnitude
            some |= code
            every &= code
            minus_low |= np.uint8(code == 2)
        for i in range(len(made), len(packed)):
            beyond |= np.uint8(packed[i] >> down) & np.uint8(3)
    return some & 1 != 0, every != 0, minus_low != 0, beyond != 0
