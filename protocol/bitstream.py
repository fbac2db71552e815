"""Integers as streams of bits, laid out so that a processor packs and unpacks many at a time. What fills the last
bytes up is zero, and a reader insists on it, so that one sequence has one byte string.

Fields of w bits: a field is cut, from its low bits up, into pieces of 8, 4, 2 or 1 bits, the widest that fit (6 = 4
+ 2). Each piece makes a stream of its own, and they follow one another. In the stream of pieces of p bits, which is
B = ⌈count · p / 8⌉ bytes long, that of field i is in byte i mod B, from bit p · ⌊i / B⌋ up.

Unary: each value as so many zeros, then a one, from the lowest bit of the first byte up.
"""

import functools
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from protocol.compiled import compiled
from protocol.errors import FormatError

Integers = NDArray[np.int32]
Shorts = NDArray[np.uint16]
Octets = NDArray[np.uint8]


def pack_fixed(values: Shorts, width: int) -> bytes:
    """The low `width` bits (0 to 16) of each value."""
    padded = values if len(values) % 8 == 0 else np.append(values, np.zeros(-len(values) % 8, np.uint16))
    packed = []
    for shift, bits in pieces(width):
        piece = np.empty(fixed_bytes(len(values), bits), np.uint8)
        _packer(shift, bits)(padded, piece)
        packed.append(piece.tobytes())
    return b"".join(packed)


def pieces(width: int) -> list[tuple[int, int]]:
    """How a field is cut: (lowest bit, number of bits) of each piece."""
    cut, shift = [], 0
    while shift < width:
        bits = next(bits for bits in (8, 4, 2, 1) if shift + bits <= width)
        cut.append((shift, bits))
        shift += bits
    return cut


def fixed_bytes(count: int, width: int) -> int:
    """The length of `count` packed values."""
    return sum((count * bits + 7) // 8 for _, bits in pieces(width))


def unpack_fixed(data: bytes, count: int, width: int) -> Shorts:
    """Read `count` values of `width` bits.

    Raises:
        FormatError: there are more or fewer bytes, or bits beyond the last value.
    """
    if len(data) != fixed_bytes(count, width):
        raise FormatError(f"{len(data)} bytes for {count} values of {width} bits")
    packed, values = np.frombuffer(data, np.uint8), np.empty(count + -count % 8, np.uint16)
    values[count if width else 0 :] = 0
    start = 0
    for shift, bits in pieces(width):
        end = start + fixed_bytes(count, bits)
        _unpacker(shift, bits)(packed[start:end], values)
        start = end
    if values[count:].any():
        raise FormatError("bits are set beyond the last value")
    return values[:count]


def pack_unary(values: Shorts) -> bytes:
    """Each value as so many zeros, then a one."""
    bits = np.zeros(len(values) + _total(values), np.uint8)
    _mark(values, bits)
    return np.packbits(bits, bitorder="little").tobytes()


def unpack_unary(data: bytes, count: int, most: int) -> Shorts:
    """Read `count` (at least 1) unary values, of which those that pass are at most 14 above `most`.

    Raises:
        FormatError: there are fewer, or bytes or bits beyond the last, or a value is larger than may be.
    """
    values = np.empty(8 * len(data) + 8, np.uint16)
    found = _runs(np.frombuffer(data, np.uint8), most, _RUNS, values)
    if found != count or not data[-1]:
        raise FormatError(f"not {count} unary values of which the last ends in the last byte")
    return values[:count]


def _runs_of_bytes() -> NDArray[np.uint64]:
    """For each byte [256, 4]: the zeros before each of its ones, 16 bits each, in two words; how many ones; the zeros
    behind the last of them."""
    table = np.zeros((256, 4), np.uint64)
    for byte in range(256):
        before = f"{byte:08b}"[::-1].split("1")
        ones, behind = [len(zeros) for zeros in before[:-1]], len(before[-1])
        low, high = (sum(run << 16 * i for i, run in enumerate(half)) for half in (ones[:4], ones[4:]))
        table[byte] = low, high, len(ones), behind
    return table


_RUNS = _runs_of_bytes()


@functools.cache
def _packer(shift: int, bits: int) -> Callable[[Shorts, Octets], None]:
    """A function made for one kind of piece: with constant shifts, a processor does 64 bytes at a time."""
    rows, mask = 8 // bits, (1 << bits) - 1

    @compiled
    def pack(values: Shorts, packed: Octets) -> None:
        size = len(packed)
        for i in range(size):
            byte = np.uint8(0)
            for row in range(rows):
                byte |= np.uint8(((values[row * size + i] >> shift) & mask) << (row * bits))
            packed[i] = byte

    return pack


@functools.cache
def _unpacker(shift: int, bits: int) -> Callable[[Octets, Shorts], None]:
    rows, mask, known = 8 // bits, (1 << bits) - 1, (1 << shift) - 1

    @compiled
    def unpack(packed: Octets, values: Shorts) -> None:
        size = len(packed)
        for i in range(size):
            for row in range(rows):
                piece = np.uint16(((packed[i] >> (row * bits)) & mask) << shift)
                values[row * size + i] = piece | (values[row * size + i] & known)

    return unpack


@compiled
def _total(values: Shorts) -> int:
    total = np.uint64(0)
    for i in range(len(values)):
        total += np.uint64(values[i])
    return int(np.int64(total))


@compiled
def _mark(values: Shorts, bits: Octets) -> None:
    end = np.uint64(0)
    for i in range(len(values)):
        end += np.uint64(values[i])
        bits[end] = np.uint8(1)
        end += np.uint64(1)


@compiled
def _runs(data: Octets, most: int, runs: NDArray[np.uint64], values: Shorts) -> int:
    """The zeros before each one. No question is asked about any one: eight places are written for each byte, and as
    many count as there are ones. Returns how many; −1 if a run of whole bytes is longer than `most`."""
    found, zeros = np.uint64(0), np.uint64(0)
    for i in range(len(data)):
        byte = data[i]
        if byte == 0:
            zeros += np.uint64(8)
            if zeros > np.uint64(most):
                return -1
            continue
        first, others = runs[byte, 0] + zeros, runs[byte, 1]
        for j in range(4):
            values[found + np.uint64(j)] = np.uint16(first >> np.uint64(16 * j))
        for j in range(4):
            values[found + np.uint64(4 + j)] = np.uint16(others >> np.uint64(16 * j))
        found += runs[byte, 2]
        zeros = runs[byte, 3]
    return int(np.int64(found))
