"""The two magnitudes that say a tensor's kept values with the least squared error.

Top-k values are bimodal, and statistical quantizers degenerate to one bit on them. Two levels of least squared error
are 2-means in one dimension: the magnitudes are split at a border, and each side's mean is its level. The best border
is found without sorting all: it lies in the middle between the two means, for else moving it there would be better
(Lloyd's condition). Both means rise with the border, so counts of magnitudes in buckets tell the few buckets where it
can lie; only what is there is sorted, and every split of it compared.
"""

import numpy as np
from numpy.typing import NDArray

from protocol.codec.bitstream import Int32Array
from protocol.codec.compiled import compiled

Naturals = NDArray[np.uint32]

BUCKET_BITS = 11
"""The number of buckets between the smallest and the largest magnitude, as a power of two: 2048 buckets."""

BLOCK = 32
"""The number of magnitudes that are looked at together: seldom one of them lies near the border."""


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
        start, here, lowest = bucket * width, np.int64(buckets[bucket]), middle
        # A border in this bucket has the lowest means if all of the bucket is above it, the highest if all is below.
        below += int(here)
        least += here * start
        middle = (least / below + ((whole - least) / (count - below) if below < count else start)) / 2
        if lowest <= start + width + 1 and middle + width + 1 >= start:
            first, last = previous if first < 0 else first, bucket
        if here > 0:
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
    base, low, span, found = np.uint32(smallest), np.uint32(smallest + start), np.uint32(end - start), np.uint64(0)
    for at in range(0, len(magnitudes), BLOCK):
        block, some = magnitudes[at : at + BLOCK], np.uint32(0)
        for i in range(len(block)):
            some |= np.uint32(np.uint32(block[i] - low) <= span)
        if some > 0:
            for i in range(len(block)):
                if np.uint32(block[i] - low) <= span:
                    near[found] = np.uint32(block[i] - base)
                    found += np.uint64(1)


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
