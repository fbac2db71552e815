"""Prepared text as if it were one flat array, of which only the blocks that are read need be here."""

from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from peer.data.tokens import Tokens
from protocol.run.dataset import BlockStream, Dataset
from protocol.run.prepared import read_block

BLOCKS_KEPT = 64
"""In memory at once, where they are read from a disk: 32 or 64 MiB."""

OpenBlock = Callable[[int], Tokens]
"""From a block's number to its tokens, which were checked."""


class BlockedTokens:
    """The tokens of a stream. `tokens[positions]` reads rows of neighbouring positions, as `batch` asks for them."""

    def __init__(self, stream: BlockStream, open_block: OpenBlock) -> None:
        self.stream, self.open_block = stream, open_block

    def __len__(self) -> int:
        return self.stream.tokens

    def __getitem__(self, positions: NDArray[np.int64]) -> Tokens:
        """int64 [n, m], each row one more than the number before → uint16 or uint32 [n, m]."""
        return np.stack([self._row(int(start), positions.shape[1]) for start in positions[:, 0]])

    def _row(self, start: int, length: int) -> Tokens:
        """A block's last token is the next one's first: who goes on there begins with its second."""
        block, offset = divmod(start, self.stream.block_tokens)
        row = self.open_block(block + self.stream.first)[offset : offset + length]
        while len(row) < length:
            block += 1
            row = np.append(row, self.open_block(block + self.stream.first)[1 : 1 + length - len(row)])
        return row

    def needed(self, positions: NDArray[np.int64]) -> list[int]:
        """The numbers of the blocks in which these positions are."""
        first = positions[:, 0] // self.stream.block_tokens
        last = (positions[:, -1] - 1) // self.stream.block_tokens
        spans = [np.arange(start, max(start, end) + 1) for start, end in zip(first, last, strict=True)]
        return [int(block) + self.stream.first for block in np.unique(np.concatenate(spans))]


def local_blocks(dataset: Dataset, folder: Path) -> OpenBlock:
    """Blocks of a prepared folder on this machine, each checked when it is opened.

    Raises (when called):
        FormatError: a shard is damaged; the message names it.
        ResourceError: it cannot be read.
    """
    opened: OrderedDict[int, Tokens] = OrderedDict()

    def open_block(number: int) -> Tokens:
        if number not in opened:
            block = dataset.block(number)
            opened[number] = dataset.tokens_of(block, read_block(folder, block))
        opened.move_to_end(number)
        if len(opened) > BLOCKS_KEPT:
            opened.popitem(last=False)
        return opened[number]

    return open_block
