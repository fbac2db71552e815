"""Packing integers into bits and back, vectorised. Bits fill each byte from the highest down; the last
byte is filled up with zeros, and a reader insists on it, so that one sequence has one byte string."""

import numpy as np
from numpy.typing import NDArray

from protocol.errors import FormatError

Integers = NDArray[np.int64]


def pack_fixed(values: Integers, width: int) -> bytes:
    """Each value in `width` bits (0 to 32), high bit first."""
    shifts = np.arange(width - 1, -1, -1, dtype=np.int64)
    bits = ((values[:, None] >> shifts) & 1).astype(np.uint8)
    return np.packbits(bits.reshape(-1)).tobytes()


def fixed_bytes(count: int, width: int) -> int:
    """The length of `count` packed values."""
    return (count * width + 7) // 8


def unpack_fixed(data: bytes, count: int, width: int) -> Integers:
    """Read `count` values of `width` bits.

    Raises:
        FormatError: there are more or fewer bytes, or bits beyond the last value.
    """
    if len(data) != fixed_bytes(count, width):
        raise FormatError(f"{len(data)} bytes for {count} values of {width} bits")
    bits = np.unpackbits(np.frombuffer(data, np.uint8))
    if bits[count * width :].any():
        raise FormatError("bits are set beyond the last value")
    values = np.zeros(count, np.int64)
    for column in bits[: count * width].reshape(count, width).T:
        values = (values << 1) | column
    return values


def pack_unary(values: Integers) -> bytes:
    """Each value as so many ones, then a zero."""
    ends = np.cumsum(values + 1)
    bits = np.ones(int(ends[-1]) if len(ends) else 0, np.uint8)
    bits[ends - 1] = 0
    return np.packbits(bits).tobytes()


def unpack_unary(data: bytes, count: int) -> Integers:
    """Read `count` (at least 1) unary values.

    Raises:
        FormatError: there are fewer, or bytes or bits beyond the last.
    """
    bits = np.unpackbits(np.frombuffer(data, np.uint8))
    zeros = np.flatnonzero(bits == 0)[:count]
    if len(zeros) < count:
        raise FormatError(f"{len(zeros)} unary values where {count} were due")
    used = int(zeros[-1]) + 1
    if len(data) != (used + 7) // 8 or bits[used:].any():
        raise FormatError("bits or bytes follow the last unary value")
    return np.diff(zeros, prepend=-1) - 1
