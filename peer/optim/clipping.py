"""The clipping of disproportionate values of a round's set before F sums it (`outer.clip = "median"`). Integers only.

In every chunk, over all contributions c of the set, of which v_c are the values that c sent there:

    cap  = median of max |v_c|        v_c ← min(max(v_c, −cap), cap)
    n_c  = ⌈‖v_c‖⌉, m = median n_c    v_c ← ± ⌊|v_c| m / n_c⌋   where n_c > m

The median of M numbers is the ⌈M/2⌉-th smallest, the lower one of two: so with half of the set against them, no
contribution has in any chunk a larger norm, or a larger value, than the largest of the others'.

The cap comes first, lest one large value scale down all that its author has to say besides. Who sent only zeros counts
with a norm of 0: else who is alone in a chunk would be its own measure. `docs/design/outer-state.md` says more.
"""

import numpy as np
from numpy.typing import NDArray

from peer.optim.kernels import Units
from protocol.codec.compiled import compiled

Norms = NDArray[np.int64]

LOW_HALF = np.int64(2**32 - 1)
"""The lower half of a square."""


def clip_to_medians(values: Units, k: int) -> None:
    """Clip what M contributions sent of one tensor, in place.

    `values` [M, kept] are in units of 2⁻²⁶ and canonical order, with |v| < 2³¹; each chunk has `k` of them, at most
    4096, and the last may have fewer. Which coordinates were sent does not matter.
    """
    if not values.size:
        return
    measured = np.empty((len(values), -(-values.shape[1] // k)), np.int64)
    _largest(values, k, measured)
    _cap(values, k, _lower_median(measured))
    _norms(values, k, measured)
    _scale_down(values, k, measured, _lower_median(measured))


def _lower_median(measured: Norms) -> Norms:
    """[M, chunks] → [chunks]."""
    middle = (len(measured) - 1) // 2
    found: Norms = np.partition(measured, middle, axis=0)[middle]
    return found


@compiled
def _largest(values: Units, k: int, largest: Norms) -> None:
    for one in range(len(values)):
        for chunk in range(largest.shape[1]):
            most = np.int64(0)
            for i in range(chunk * k, min((chunk + 1) * k, values.shape[1])):
                most = max(most, abs(np.int64(values[one, i])))
            largest[one, chunk] = most


@compiled
def _cap(values: Units, k: int, caps: Norms) -> None:
    for one in range(len(values)):
        for i in range(values.shape[1]):
            cap = caps[i // k]
            values[one, i] = np.int32(min(max(np.int64(values[one, i]), -cap), cap))


@compiled
def _norms(values: Units, k: int, norms: Norms) -> None:
    """Rounded up. 4096 squares below 2⁶² are more than an int64 holds, so their halves are summed apart."""
    for one in range(len(values)):
        for chunk in range(norms.shape[1]):
            high, low = np.int64(0), np.int64(0)
            for i in range(chunk * k, min((chunk + 1) * k, values.shape[1])):
                square = np.int64(values[one, i]) * np.int64(values[one, i])
                high += square >> 32
                low += square & LOW_HALF
            norms[one, chunk] = _root(int(high + (low >> 32)), int(low & LOW_HALF))


@compiled
def _root(high: int, low: int) -> int:
    """⌈√(2³² high + low)⌉ of less than 2⁷⁴, by digits in base 2: the root stays below 2³⁷, the rest below 2⁴⁰."""
    root, rest, shift = 0, 0, 72
    while shift >= 32 and high >> (shift - 32) == 0:
        shift -= 2
    while shift >= 0:
        digits = (high >> (shift - 32)) & 3 if shift >= 32 else (low >> shift) & 3
        rest, root = 4 * rest + digits, 2 * root
        if rest > 2 * root:
            rest -= 2 * root + 1
            root += 1
        shift -= 2
    return root + (rest > 0)


@compiled
def _scale_down(values: Units, k: int, norms: Norms, medians: Norms) -> None:
    """|v| m / n towards zero, so that no norm stays above m. |v| m can pass 2⁶³: |v| goes in two pieces of 16 bits."""
    for one in range(len(values)):
        for chunk in range(norms.shape[1]):
            norm, median = norms[one, chunk], medians[chunk]
            if norm <= median:
                continue
            for i in range(chunk * k, min((chunk + 1) * k, values.shape[1])):
                value = np.int64(values[one, i])
                upper = (abs(value) >> 16) * median
                whole = upper // norm
                lower = ((upper - whole * norm) << 16) + (abs(value) & 0xFFFF) * median
                scaled = (whole << 16) + lower // norm
                values[one, i] = np.int32(scaled if value >= 0 else -scaled)
