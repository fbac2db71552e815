"""SparseLoCo, written as the papers write it: Python integers and loops, one coordinate after another."""

from collections.abc import Iterable
from fractions import Fraction
from math import floor, isqrt
from statistics import median_low

import numpy as np
from numpy.typing import NDArray

Grid = NDArray[np.int64]


def half_even(value: Fraction) -> int:
    """Python's `round` rounds a Fraction half to even, exactly."""
    return round(value)


def chunks(shape: tuple[int, ...], side: int) -> list[list[tuple[int, ...]]]:
    """The coordinates of each chunk, in order."""
    if len(shape) == 1:
        size = side**2
        return [[(i,) for i in range(s, min(s + size, shape[0]))] for s in range(0, shape[0], size)]
    h, w = (max(d for d in range(1, min(n, side) + 1) if n % d == 0) for n in shape)
    return [
        [(y + i, x + j) for i in range(h) for j in range(w)]
        for y in range(0, shape[0], h)
        for x in range(0, shape[1], w)
    ]


def top_k(e: Grid, side: int, k: int) -> list[tuple[int, ...]]:
    """TopK(e): in each chunk the largest magnitudes, the earliest of equals; chunk by chunk, in rising order."""
    kept = []
    for chunk in chunks(e.shape, side):
        count = max(1, round(len(chunk) * k / side**2))
        order = sorted(range(len(chunk)), key=lambda i: (-abs(int(e[chunk[i]])), i))
        kept += [chunk[i] for i in sorted(order[:count])]
    return kept


def clip(sent: list[dict[tuple[int, ...], int]], shape: tuple[int, ...], side: int) -> list[dict[tuple[int, ...], int]]:
    """In each chunk: largest values capped at their median over the set, then norms scaled down to theirs."""
    clipped: list[dict[tuple[int, ...], int]] = [{} for _ in sent]
    for chunk in chunks(shape, side):
        rows = [{where: each[where] for where in chunk if where in each} for each in sent]
        cap = median_low([max(map(abs, row.values())) for row in rows])
        rows = [{where: max(-cap, min(value, cap)) for where, value in row.items()} for row in rows]
        norms = [norm(row.values()) for row in rows]
        most = median_low(norms)
        for row, n, into in zip(rows, norms, clipped, strict=True):
            into |= row if n <= most else {where: toward_zero(value * most, n) for where, value in row.items()}
    return clipped


def norm(values: Iterable[int]) -> int:
    """‖v‖, rounded up."""
    square = sum(value**2 for value in values)
    return isqrt(square) + (isqrt(square) ** 2 < square)


def toward_zero(numerator: int, denominator: int) -> int:
    return numerator // denominator if numerator >= 0 else -(-numerator // denominator)


def rate(first: float, share: float, round_: int, rounds: int) -> Fraction:
    """η of a round: from `first` to `share` of it on a line, both ends in units of 2⁻¹⁶, and rounded down to them."""
    start, end = half_even(Fraction(first) * 2**16), half_even(Fraction(first * share) * 2**16)
    way = Fraction(round_ - 1, rounds - 1) if rounds > 1 else Fraction(0)
    return Fraction(floor(start + (end - start) * way), 2**16)


def outer_term(
    sent: list[dict[tuple[int, ...], int]],
    shape: tuple[int, ...],
    eta: Fraction,
    aggregate: str,
    weights: list[int] | None = None,
) -> Grid:
    """F(S) = η · Σ w Δ̂ / Σ w, over all or the senders of each coordinate; without weights HET's equation 2."""
    weights = weights or [1] * len(sent)
    term = np.zeros(shape, np.int64)
    for where in np.ndindex(shape):
        values = [weight * each[where] for each, weight in zip(sent, weights, strict=True) if where in each]
        senders = [weight for each, weight in zip(sent, weights, strict=True) if where in each]
        if values:
            term[where] = half_even(eta * sum(values) / sum(weights if aggregate == "all" else senders))
    return term
