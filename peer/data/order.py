"""In which order an epoch reads its sequences: number k → sequence.

Random, but sequences whose tokens come together are read together: over the internet a sequence alone costs a round
trip. So the blocks are permuted, and the sequences within each block.
"""

import numpy as np
from numpy.typing import NDArray

from peer.data.permutation import permute


def in_order(numbers: NDArray[np.int64], sequences: int, together: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """Where the order named (seed, epoch) takes each number of [0, sequences): int64 [n] → int64 [n], a permutation.

    Of every `together` sequences in a row, those of one block, the numbers are in a row, too. With 1 it is one
    permutation of all sequences. Those after the last whole block come last in every epoch.

    Raises:
        ValueError: a number is outside [0, sequences), or `together` is less than 1.
    """
    if together < 1:
        raise ValueError(f"no blocks of {together} sequences")
    if numbers.size and not (numbers.min() >= 0 and numbers.max() < sequences):
        raise ValueError(f"a number is outside [0, {sequences})")
    blocks = sequences // together
    place = numbers // together
    moved = np.empty_like(numbers)
    whole = place < blocks
    if whole.any():
        moved[whole] = permute(place[whole], blocks, seed, epoch) * together
    moved[~whole] = blocks * together
    if together > 1:
        for each in np.unique(place):
            here = place == each
            size = together if each < blocks else sequences - blocks * together
            name = f"{epoch} block {int(each)}"  # of the order within the block that is read at this place of the epoch
            moved[here] += permute(numbers[here] - each * together, size, seed, name)
    return moved
