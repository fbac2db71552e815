"""The chunks of a tensor, of each of which a replica sends the largest values (SparseLoCo, arXiv 2508.15706).

A matrix is cut into blocks, each side the largest divisor of the tensor's that is at most `chunk_side`; a
vector into runs of `chunk_side²`, of which the last may be short. Chunks are numbered row by row; an offset
counts row by row inside its chunk. Every chunk keeps the same density, and at least one value.

The canonical order of what is kept: by chunk, then by offset. A contribution's values come in this order,
so neither chunk numbers nor names go over the wire.
"""

import functools
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Int64Array = NDArray[np.int64]
Offsets = NDArray[np.int16]
"""Positions inside a chunk, counted row by row."""

CHUNK_SIZE = 64 * 64
"""No chunk has more values: the manifest's `chunk_side` is at most 64."""


@dataclass(frozen=True, slots=True)
class ChunkGrid:
    """The chunks of one tensor: `full` of `size` values that keep `k` each, then perhaps one of `tail`."""

    shape: tuple[int, ...]
    rows: int
    columns: int
    full: int
    k: int
    tail: int
    tail_k: int

    @property
    def size(self) -> int:
        """The number of values in a full chunk."""
        return self.rows * self.columns

    @property
    def elements(self) -> int:
        """The number of values in the tensor."""
        return math.prod(self.shape)

    @property
    def kept(self) -> int:
        """The number of values that a contribution sends of this tensor: always exactly so many."""
        return self.full * self.k + self.tail_k

    @property
    def starts(self) -> Int64Array:
        """The index, in canonical order, of the first kept value of each chunk."""
        full = np.arange(self.full, dtype=np.int64) * self.k
        return np.append(full, self.full * self.k) if self.tail else full

    @property
    def counts(self) -> Int64Array:
        """The number of values that each chunk keeps."""
        full = np.full(self.full, self.k, dtype=np.int64)
        return np.append(full, self.tail_k) if self.tail else full

    @property
    def sizes(self) -> Int64Array:
        """The number of values that each chunk has."""
        full = np.full(self.full, self.size, dtype=np.int64)
        return np.append(full, self.tail) if self.tail else full

    def positions(self, offsets: Offsets | Int64Array) -> Int64Array:
        """Offsets [kept] in canonical order → row-major positions in the tensor [kept]."""
        chunk = np.repeat(np.arange(len(self.counts), dtype=np.int64), self.counts)
        if len(self.shape) == 1:
            return chunk * self.size + offsets
        width = self.shape[1]
        down, across = np.divmod(chunk, width // self.columns)
        y, x = np.divmod(offsets, self.columns)
        positions: Int64Array = (down * self.rows + y) * width + across * self.columns + x
        return positions


@functools.lru_cache(maxsize=4096)
def chunk_grid(shape: tuple[int, ...], chunk_side: int, top_k: int) -> ChunkGrid:
    """Cut a tensor of this shape into chunks, where `top_k` of `chunk_side²` values are kept.

    Raises:
        ValueError: the tensor is neither a vector nor a matrix, or is empty, or the chunks are too large.
    """
    if len(shape) not in (1, 2) or math.prod(shape) < 1 or chunk_side**2 > CHUNK_SIZE:
        raise ValueError(f"no chunks for a tensor of shape {shape}")

    def density(size: int) -> int:
        return max(1, round(size * top_k / chunk_side**2)) if size else 0

    if len(shape) == 1:
        size = chunk_side**2
        full, tail = divmod(shape[0], size)
        return ChunkGrid(shape, 1, size, full, density(size), tail, density(tail))
    rows, columns = (largest_divisor(side, chunk_side) for side in shape)
    blocks = (shape[0] // rows) * (shape[1] // columns)
    return ChunkGrid(shape, rows, columns, blocks, density(rows * columns), 0, 0)


def largest_divisor(side: int, most: int) -> int:
    """The largest divisor of `side` that is at most `most`."""
    return next(divisor for divisor in range(min(side, most), 0, -1) if side % divisor == 0)
