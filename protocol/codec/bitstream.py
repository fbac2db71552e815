"""Integers as streams of bits, laid out so that a processor packs and unpacks many at a time. Bits that fill the last
byte are zero, and a reader insists on it, so that one sequence has one byte string.

Fields of w bits: a field is cut, from its low bits up, into pieces of 8, 4, 2 or 1 bits, the widest that fit (6 = 4
+ 2). Each piece makes a stream of its own, and they follow one another. In the stream of pieces of p bits, which is
B = ⌈count · p / 8⌉ bytes long, that of field i is in byte i mod B, from bit p · ⌊i / B⌋ up.

Unary: each value as so many zeros, then a one, from the lowest bit of the first byte up.
"""

import functools
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from protocol.codec.compiled import compiled
from protocol.errors import FormatError

Int32Array = NDArray[np.int32]
Shorts = NDArray[np.uint16]
Octets = NDArray[np.uint8]


def pack_fixed(values: Shorts, width: int) -> bytes:
    """Pack the low `width` bits (0 to 16) of each value."""
    padded = values if len(values) % 8 == 0 else np.append(values, np.zeros(-len(values) % 8, np.uint16))
    packed = []
    for shift, bits in pieces(width):
        piece = np.empty(packed_bytes(len(values), bits), np.uint8)
        _packer(shift, bits)(padded, piece)
        packed.append(piece.tobytes())
    return b"".join(packed)


def pieces(width: int) -> list[tuple[int, int]]:
    """Cut a field of `width` bits: (lowest bit, number of bits) of each piece."""
    cut, shift = [], 0
    while shift < width:
        bits = next(bits for bits in (8, 4, 2, 1) if shift + bits <= width)
        cut.append((shift, bits))
        shift += bits
    return cut


def packed_bytes(count: int, width: int) -> int:
    """The length in bytes of `count` packed values."""
    return sum((count * bits + 7) // 8 for _, bits in pieces(width))


def unpack_fixed(data: bytes, width: int, values: Shorts) -> None:
    """Read as many values of `width` bits as there is room for. They come below the bits that are in `values` already.

    Raises:
        FormatError: there are more or fewer bytes, or bits beyond the last value.
    """
    if len(data) != packed_bytes(len(values), width):
        raise FormatError(f"{len(data)} bytes for {len(values)} values of {width} bits")
    packed, start = np.frombuffer(data, np.uint8), 0
    for shift, bits in pieces(width):
        end = start + packed_bytes(len(values), bits)
        if not _unpacker(shift, bits)(packed[start:end], values):
            raise FormatError("bits are set beyond the last value")
        start = end


def pack_unary(values: Shorts, shift: int) -> bytes:
    """Write each value, without its low `shift` bits, as so many zeros, then a one."""
    half = len(values) // 2
    middle = half + _total(values[:half], shift)
    bits = np.zeros(middle + len(values) - half + _total(values[half:], shift), np.uint8)
    _mark(values, shift, middle, bits)
    return np.packbits(bits, bitorder="little").tobytes()


def unpack_unary(data: bytes, count: int, most: int, shift: int) -> Shorts:
    """Read `count` (at least 1) unary values, of which those that pass are at most 14 above `most`; each comes with
    `shift` (at most 11) zero bits below it.

    Raises:
        FormatError: there are fewer, or bytes or bits beyond the last, or a value is larger than may be.
    """
    values = np.empty(8 * len(data) + 8, np.uint16)
    runs_found = _runs(np.frombuffer(data, np.uint8), most, shift, _runs_of_bytes(shift), values)
    if runs_found != count or not data[-1]:
        raise FormatError(f"not {count} unary values of which the last ends in the last byte")
    return values[:count]


@functools.cache
def _runs_of_bytes(shift: int) -> NDArray[np.uint64]:
    """The table of each byte [256, 4]: the zeros before each of its ones, 16 bits each, in two words; the number of
    ones; the zeros behind the last of them. Numbers of zeros are shifted."""
    table = np.zeros((256, 4), np.uint64)
    for byte in range(256):
        before = f"{byte:08b}"[::-1].split("1")
        ones, behind = [len(zeros) << shift for zeros in before[:-1]], len(before[-1]) << shift
        low, high = (sum(run << 16 * i for i, run in enumerate(half)) for half in (ones[:4], ones[4:]))
        table[byte] = low, high, len(ones), behind
    return table


@functools.cache
def _packer(shift: int, bits: int) -> Callable[[Shorts, Octets], None]:
    """Make the function that packs one kind of piece: with constant shifts, a processor does 64 bytes at a time."""
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
def _unpacker(shift: int, bits: int) -> Callable[[Octets, Shorts], bool]:
    """Make the function that unpacks one kind of piece, and returns whether all bits beyond the last field are zero."""
    rows, mask = 8 // bits, (1 << bits) - 1

    @compiled
    def unpack(packed: Octets, values: Shorts) -> bool:
        size, beyond = len(packed), np.uint8(0)
        for row in range(rows):
            fields = values[row * size : (row + 1) * size]
            for i in range(len(fields)):
                fields[i] |= np.uint16(((packed[i] >> (row * bits)) & mask) << shift)
            for i in range(len(fields), size):
                beyond |= np.uint8((packed[i] >> (row * bits)) & mask)
        return bool(beyond == 0)

    return unpack


@compiled
def _total(values: Shorts, shift: int) -> int:
    total, down = np.uint64(0), np.uint64(shift)
    for i in range(len(values)):
        total += np.uint64(values[i]) >> down
    return int(np.int64(total))


@compiled
def _mark(values: Shorts, shift: int, middle: int, bits: Octets) -> None:
    """Set the ones of both halves, of which the second begins at bit `middle`, side by side: within a half each place
    must wait for the one before."""
    half, down, one = len(values) // 2, np.uint64(shift), np.uint64(1)
    first, second = np.uint64(0), np.uint64(middle)
    for i in range(half):
        first += np.uint64(values[i]) >> down
        second += np.uint64(values[half + i]) >> down
        bits[first] = bits[second] = np.uint8(1)
        first += one
        second += one
    if 2 * half < len(values):
        bits[len(bits) - 1] = np.uint8(1)


@compiled
def _runs(data: Octets, most: int, shift: int, runs: NDArray[np.uint64], values: Shorts) -> int:
    """The zeros before each one, shifted. No question is asked about any one: eight places are written for each byte,
    and as many count as there are ones. Returns how many; −1 if a run of whole bytes is longer than `most`."""
    runs_found, zeros, byteful, limit = np.uint64(0), np.uint64(0), np.uint64(8 << shift), np.uint64(most << shift)
    for i in range(len(data)):
        byte = data[i]
        if byte == 0:
            zeros += byteful
            if zeros > limit:
                return -1
            continue
        first, others = runs[byte, 0] + zeros, runs[byte, 1]
        for j in range(4):
            values[runs_found + np.uint64(j)] = np.uint16(first >> np.uint64(16 * j))
        for j in range(4):
            values[runs_found + np.uint64(4 + j)] = np.uint16(others >> np.uint64(16 * j))
        runs_found += runs[byte, 2]
        zeros = runs[byte, 3]
    return int(np.int64(runs_found))
