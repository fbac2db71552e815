"""Golomb–Rice coding of kept offsets: 8.47 bits each at 32 of 4096, where the bound is 8.32.

Inside a chunk the offsets rise, so their gaps (the first offset, then each difference less one) say it all.
A gap is q · 2ʳ + rest; all q go into one stream in unary, all rests into another in r bits. The order of
rising offsets cannot be broken by any bytes; that they stay inside their chunk is checked.
"""

import numpy as np

from protocol.bitstream import Integers, fixed_bytes, pack_fixed, pack_unary, unpack_fixed, unpack_unary
from protocol.chunks import ChunkGrid
from protocol.errors import FormatError


def parameter(grid: ChunkGrid) -> int:
    """r: the power of two next below ln 2 · size / k, the mean gap's optimum; 6 for 32 of 4096."""
    size, k = (grid.size, grid.k) if grid.full else (grid.tail, grid.tail_k)
    return max(0, (69 * size // (100 * k)).bit_length() - 1)


def encode(offsets: Integers, grid: ChunkGrid) -> tuple[bytes, bytes]:
    """Offsets [kept], rising in each chunk → (unary stream, stream of rests)."""
    previous = np.empty_like(offsets)
    previous[1:] = offsets[:-1]
    previous[grid.starts] = -1
    gaps = offsets - previous - 1
    r = parameter(grid)
    return pack_unary(gaps >> r), pack_fixed(gaps & ((1 << r) - 1), r)


def longest_unary_bytes(grid: ChunkGrid) -> int:
    """No valid unary stream is longer: gaps of a chunk sum to less than its size."""
    r = parameter(grid)
    return (grid.kept + int((grid.sizes >> r).sum()) + 7) // 8


def rest_bytes(grid: ChunkGrid) -> int:
    """The length of the stream of rests."""
    return fixed_bytes(grid.kept, parameter(grid))


def decode(unary: bytes, rests: bytes, grid: ChunkGrid) -> Integers:
    """The offsets [kept] in canonical order.

    Raises:
        FormatError: a stream has another length, or an offset lies outside its chunk.
    """
    if len(unary) > longest_unary_bytes(grid):
        raise FormatError(f"a unary stream of {len(unary)} bytes, at most {longest_unary_bytes(grid)} are possible")
    r = parameter(grid)
    steps = (unpack_unary(unary, grid.kept) << r) + unpack_fixed(rests, grid.kept, r) + 1
    reached = np.cumsum(steps)
    before = reached[grid.starts] - steps[grid.starts]
    offsets: Integers = reached - np.repeat(before, grid.counts) - 1
    last = grid.starts + grid.counts - 1
    if (offsets[last] >= grid.sizes).any():
        raise FormatError("an offset lies outside its chunk")
    return offsets
