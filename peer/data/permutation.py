"""A keyed permutation of [0, N) that keeps no list: any member of any epoch in O(1), the same everywhere.

A Feistel network permutes the pairs of half-words whatever its round function is; four rounds of a good one
are as good as random (Luby & Rackoff, 1988). Numbers it takes outside [0, N) are moved on until they are
inside ("cycle walking": Black & Rogaway, 2002), which is again a permutation.
"""

import hashlib

import numpy as np
from numpy.typing import NDArray

UInt64Array = NDArray[np.uint64]

LARGEST_SIZE = 2**62
"""Both halves and their sum stay within 64 bits."""


def permute(numbers: NDArray[np.int64], size: int, seed: int, epoch: int | str) -> NDArray[np.int64]:
    """Where the permutation of [0, size) named (seed, epoch) takes each number: int64 [n] → int64 [n].

    Raises:
        ValueError: a number is outside [0, size), or size outside [1, 2**62].
    """
    if not 1 <= size <= LARGEST_SIZE:
        raise ValueError(f"no permutation of {size} numbers")
    if numbers.size and not (numbers.min() >= 0 and numbers.max() < size):
        raise ValueError(f"a number is outside [0, {size})")
    half = max(1, ((size - 1).bit_length() + 1) // 2)
    keys = np.frombuffer(hashlib.sha256(f"hetpeer order {seed} {epoch}".encode()).digest(), dtype="<u8")
    moved = _feistel(numbers.astype(np.uint64), half, keys)
    outside = np.flatnonzero(moved >= size)
    while outside.size:
        moved[outside] = _feistel(moved[outside], half, keys)
        outside = outside[moved[outside] >= size]
    return moved.astype(np.int64)


def _feistel(words: UInt64Array, half: int, keys: UInt64Array) -> UInt64Array:
    """A permutation of [0, 2^(2·half)), one round for each key. uint64 [n] → uint64 [n]."""
    mask, shift = np.uint64(2**half - 1), np.uint64(half)
    left, right = words >> shift, words & mask
    for key in keys:
        left, right = right, left ^ (_mix(right + key) & mask)
    return left << shift | right


def _mix(words: UInt64Array) -> UInt64Array:
    """The finalizer of SplitMix64 (Steele, Lea & Flood, 2014): every bit depends on all bits."""
    words = (words ^ words >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ words >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return words ^ words >> np.uint64(31)
