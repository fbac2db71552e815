"""The outer step's inner loops on a CPU, compiled. Integers in units of 2⁻²⁶, tensors flat and row-major."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from protocol.codec.chunks import ChunkGrid, Offsets
from protocol.codec.compiled import compiled
from protocol.tensor_formats import INT32_MAX, UNITS_PER_ONE

Units = NDArray[np.int32]
Positions = NDArray[np.int64]
Terms = NDArray[np.int64]

HALF = np.int64(2**15)
"""Half of 2¹⁶, in which β and η are counted."""

LARGEST_FACTOR = 2**32
"""The largest sum of all weights times η in units of 2⁻¹⁶: times a value it is below 2⁶³."""


@compiled
def decay_and_add_kernel(error: Units, delta: NDArray[np.float32], out: Units, beta: int) -> tuple[bool, bool]:
    """out ← β e + Δ, both rounded half to even; (whether all of Δ is in ±32, whether all sums are)."""
    far, wide = np.int64(0), np.int64(0)
    limit, one = float(INT32_MAX), float(UNITS_PER_ONE)
    for i in range(len(error)):
        scaled = np.float64(delta[i]) * one
        inside = abs(scaled) <= limit  # false for what is not a number
        far |= np.int64(not inside)
        product = np.int64(error[i]) * beta
        # Half to even: adding a half less one rounds down at a tie, and the quotient's last bit makes up for it.
        decayed = (product + (HALF - 1) + ((product >> 16) & 1)) >> 16
        total = decayed + np.int64(np.rint(scaled if inside else 0.0))
        wide |= np.int64(abs(total) > INT32_MAX)
        out[i] = np.int32(total)
    return far == 0, wide == 0


def largest(values: Units, grid: ChunkGrid) -> tuple[Offsets, Units]:
    """(offsets, values) of the k largest magnitudes of each chunk, in canonical order; ties to the lowest offset."""
    offsets, kept = np.empty(grid.kept, np.int16), np.empty(grid.kept, np.int32)
    full, width = grid.full * grid.k, grid.shape[-1] if len(grid.shape) == 2 else grid.columns
    _largest(values, grid.full, grid.columns, grid.size, grid.k, width, offsets[:full], kept[:full])
    if grid.tail:
        _largest(values[-grid.tail :], 1, grid.tail, grid.tail, grid.tail_k, grid.tail, offsets[full:], kept[full:])
    return offsets, kept


@compiled
def _largest(
    values: Units, chunks: int, columns: int, size: int, k: int, width: int, offsets: Offsets, kept: Units
) -> None:
    rows, across = size // columns, width // columns
    magnitudes, counts = np.empty(size, np.uint32), np.empty(size + 1, np.int16)
    for chunk in range(chunks):
        corner = (chunk // across) * rows * width + (chunk % across) * columns
        for row in range(rows):
            source = values[corner + row * width : corner + row * width + columns]
            target = magnitudes[row * columns : (row + 1) * columns]
            for i in range(columns):
                target[i] = np.uint32(abs(np.int64(source[i])))
        least, ties = _kth_largest(magnitudes, k)
        places = np.uint64(0)
        for i in range(size):
            counts[places] = i
            places += np.uint64(magnitudes[i] >= least)
        at = chunk * k
        for i in range(places):
            offset = np.int64(counts[i])
            if magnitudes[offset] == least:
                ties -= 1
                if ties < 0:
                    continue
            offsets[at] = offset
            kept[at] = values[corner + offset // columns * width + offset % columns]
            at += 1


@compiled
def _kth_largest(magnitudes: NDArray[np.uint32], k: int) -> tuple[np.uint32, int]:
    """A bound that the k largest reach, and how many of those that equal it are among them.

    Found bit by bit from the highest, as the largest bound that k reach; sooner if it is no more than k.
    """
    most = np.uint32(0)
    for i in range(len(magnitudes)):
        most = max(most, magnitudes[i])
    least, bits = np.uint32(0), 0
    while most >> bits != 0:
        bits += 1
    for step in range(bits - 1, -1, -1):
        candidate, reached = np.uint32(least | np.uint32(1 << step)), np.uint32(0)
        for i in range(len(magnitudes)):
            reached += np.uint32(magnitudes[i] >= candidate)
        if reached >= k:
            least = candidate
        if reached == k:
            break
    above = 0
    for i in range(len(magnitudes)):
        above += magnitudes[i] > least
    return least, k - above


def flat_positions(offsets: Offsets, grid: ChunkGrid) -> Positions:
    """Return the result of `grid.positions`."""
    width = grid.shape[-1] if len(grid.shape) == 2 else grid.columns
    places = np.empty(len(offsets), np.int64)
    _positions(np.asarray(offsets, np.int16), grid.k, grid.rows, grid.columns, width, places)
    return places


@compiled
def _positions(offsets: Offsets, k: int, rows: int, columns: int, width: int, places: Positions) -> None:
    across = width // columns
    for start in range(0, len(offsets), k):  # the short chunk, too, begins at a multiple of k
        chunk = start // k
        corner = (chunk // across) * rows * width + (chunk % across) * columns
        for i in range(start, min(start + k, len(offsets))):
            offset = np.int64(offsets[i])
            places[i] = corner + (offset if rows == 1 else offset // columns * width + offset % columns)


def outer_term_kernel(
    offsets: Sequence[Offsets], values: Units, grid: ChunkGrid, eta: int, weights: Sequence[int], senders: bool
) -> tuple[Positions, Terms]:
    """F(S) of one tensor where anybody sent something: (distinct places, terms there). Elsewhere it is zero.

    `values` are [M, kept], `eta` is in units of 2⁻¹⁶. Each value counts `weights` times; sums are divided by the sum of
    all weights, or with `senders` by those of the senders of each coordinate.

    Raises:
        ValueError: a weight is not positive, or sums would not fit into 64 bits.
    """
    total = sum(weights)
    if min(weights, default=1) < 1 or total * eta > LARGEST_FACTOR:
        raise ValueError(f"weights of {total} together are more than can be summed up exactly, or one is not positive")
    sent = sum(map(len, offsets))
    places, terms = np.empty(sent, np.int64), np.empty(sent, np.int64)
    if not sent:
        return places, terms
    size, width = max(grid.size, grid.tail), grid.shape[-1] if len(grid.shape) == 2 else grid.columns
    stacked = np.asarray(offsets, np.int16)
    counts, over = np.asarray(weights, np.int64), 0 if senders else total
    terms_found = _term(stacked, values, counts, grid.k, grid.rows, grid.columns, width, size, eta, over, places, terms)
    return places[:terms_found], terms[:terms_found]


@compiled
def _term(
    offsets: Offsets,
    values: Units,
    weights: Terms,
    k: int,
    rows: int,
    columns: int,
    width: int,
    size: int,
    eta: int,
    total: int,
    places: Positions,
    terms: Terms,
) -> int:
    senders, totals, touched = np.zeros(size, np.int64), np.zeros(size, np.int64), np.empty(size, np.int64)
    across, filled = width // columns, 0
    for start in range(0, offsets.shape[1], k):
        chunk, position = start // k, 0
        corner = (chunk // across) * rows * width + (chunk % across) * columns
        for one in range(len(offsets)):
            for i in range(start, min(start + k, offsets.shape[1])):
                offset = np.int64(offsets[one, i])
                if senders[offset] == 0:
                    touched[position] = offset
                    position += 1
                totals[offset] += weights[one] * np.int64(values[one, i])
                senders[offset] += weights[one]
        for i in range(position):
            offset = touched[i]
            over = np.int64(total if total > 0 else senders[offset]) << 16
            places[filled] = corner + (offset if rows == 1 else offset // columns * width + offset % columns)
            terms[filled] = _divide_half_even(int(totals[offset] * eta), int(over))
            filled += 1
            totals[offset], senders[offset] = 0, 0
    return filled


@compiled
def _divide_half_even(numerator: int, denominator: int) -> int:
    quotient = numerator // denominator
    twice_rest = 2 * (numerator - quotient * denominator)
    return quotient + (twice_rest > denominator or (twice_rest == denominator and quotient & 1 == 1))


@compiled
def fits(values: Units, places: Positions, terms: Terms) -> bool:
    """Whether values less terms stay within ±INT32_MAX."""
    outside = np.int64(0)
    for i in range(len(places)):
        outside |= np.int64(abs(np.int64(values[places[i]]) - terms[i]) > INT32_MAX)
    return bool(outside == 0)


@compiled
def take_out(values: Units, places: Positions, terms: Terms) -> None:
    """Subtract terms in place."""
    for i in range(len(places)):
        values[places[i]] = np.int32(values[places[i]] - terms[i])
