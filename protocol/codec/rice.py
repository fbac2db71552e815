"""Golomb–Rice coding of kept offsets: 8.47 bits each at 32 of 4096, where the bound is 8.32.

Inside a chunk the offsets rise, so their gaps (the first offset, then each difference less one) say it all.
A gap is q · 2ʳ + rest; all q go into one stream in unary, all rests into another in r bits. The order of
rising offsets cannot be broken by any bytes; that they stay inside their chunk is checked.
"""

import numpy as np

from protocol.codec.bitstream import Shorts, pack_fixed, pack_unary, packed_bytes, unpack_fixed, unpack_unary
from protocol.codec.chunks import CHUNK_SIZE, ChunkGrid, Offsets
from protocol.codec.compiled import compiled
from protocol.errors import FormatError


def parameter(grid: ChunkGrid) -> int:
    """The parameter r: 2ʳ is the power of two next below ln 2 · size / k, the mean gap's optimum; 6 for 32 of 4096."""
    size, k = (grid.size, grid.k) if grid.full else (grid.tail, grid.tail_k)
    return max(0, (69 * size // (100 * k)).bit_length() - 1)


def encode_offsets(offsets: Offsets, grid: ChunkGrid) -> tuple[bytes, bytes]:
    """Encode offsets [kept], which rise in each chunk, as (unary stream, stream of rests)."""
    gaps = np.empty(grid.kept, np.uint16)
    _gaps(np.asarray(offsets, np.int16), grid.k, gaps)
    r = parameter(grid)
    return pack_unary(gaps, r), pack_fixed(gaps, r)


def expected_bits(grid: ChunkGrid) -> float:
    """The expected bits of an offset, if each is kept with equal chance: a geometric gap, in unary above the lowest r
    bits."""
    size, k = (grid.size, grid.k) if grid.full else (grid.tail, grid.tail_k)
    r = parameter(grid)
    above = (1 - k / size) ** (1 << r)
    return 1 + r + above / (1 - above)


def longest_unary_bytes(grid: ChunkGrid) -> int:
    """The length in bytes that no valid unary stream exceeds: gaps of a chunk sum to less than its size."""
    r = parameter(grid)
    return (grid.kept + grid.full * (grid.size >> r) + (grid.tail >> r) + 7) // 8


def rest_bytes(grid: ChunkGrid) -> int:
    """The length in bytes of the stream of rests."""
    return packed_bytes(grid.kept, parameter(grid))


def decode_offsets(unary: bytes, rests: bytes, grid: ChunkGrid) -> Offsets:
    """Decode the offsets [kept], in canonical order.

    Raises:
        FormatError: a stream has another length, or an offset lies outside its chunk.
    """
    if len(unary) > longest_unary_bytes(grid):
        raise FormatError(f"a unary stream of {len(unary)} bytes, at most {longest_unary_bytes(grid)} are possible")
    r = parameter(grid)
    steps = unpack_unary(unary, grid.kept, CHUNK_SIZE >> r, r)
    unpack_fixed(rests, r, steps)
    steps += np.uint16(1)  # from a place to the next: 16 bits hold it, since r is at most 11
    offsets = np.empty(grid.kept, np.int16)
    if not _offsets(steps, grid.full, grid.k, grid.size, grid.tail, offsets):
        raise FormatError("an offset lies outside its chunk")
    return offsets


@compiled
def _gaps(offsets: Offsets, k: int, gaps: Shorts) -> None:
    """Write the gaps before each offset. The short chunk, too, begins at a multiple of k."""
    for i in range(1, len(offsets)):
        gaps[i] = np.uint16(offsets[i] - offsets[i - 1] - 1)
    for start in range(0, len(offsets), k):
        gaps[start] = np.uint16(offsets[start])


@compiled
def _offsets(steps: Shorts, full: int, k: int, size: int, tail: int, offsets: Offsets) -> bool:
    """Sum up the steps of each chunk to offsets. Returns whether all offsets lie inside their chunks."""
    inside, position = True, np.uint64(0)
    for chunk in range(full + (tail > 0)):
        end, limit = (position + np.uint64(k), size) if chunk < full else (np.uint64(len(steps)), tail)
        offset = np.int32(-1)
        while position < end:
            offset += np.int32(steps[position])
            offsets[position] = np.int16(offset)
            position += np.uint64(1)
        inside = inside and bool(offset < limit)
    return inside
