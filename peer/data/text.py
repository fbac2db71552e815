"""A run's text: a file of tokens, read in place, or prepared blocks as if they were one flat array, of which only the
blocks that are read need be here."""

from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from protocol.errors import FormatError, ResourceError
from protocol.run.dataset import BlockStream, Dataset
from protocol.run.prepared import linked, open_folder, read_block
from protocol.run.run_files import HELD_OUT, TRAIN, Descriptor, token_dtype

Tokens = NDArray[np.unsignedinteger]

CHUNK_TOKENS = 2**22
"""Tokens checked at once: 8 or 16 MiB in memory, whatever the size of the file."""

BLOCKS_KEPT = 64
"""The number of blocks in memory at once, where they are read from a disk: 32 or 64 MiB."""

OpenBlock = Callable[[int], Tokens]
"""A function from a block's number to its tokens, which were checked."""


def open_tokens(path: Path, vocabulary: int) -> Tokens:
    """Map `train.bin` or `heldout.bin` into memory, read-only: uint16 or uint32 [tokens].

    Every id is checked here, once, so that nobody who indexes an embedding with one need doubt it.

    Raises:
        FormatError: it is empty, ends within a token, or holds an id that is not below `vocabulary`.
        ResourceError: it cannot be read.
    """
    dtype = token_dtype(vocabulary)
    try:
        size = path.stat().st_size
        if size == 0 or size % dtype.itemsize:
            raise FormatError(f"{path}: {size} bytes are not tokens of {dtype.itemsize} bytes each")
        tokens: Tokens = np.memmap(path, dtype=dtype, mode="r")
    except OSError as error:
        raise ResourceError(f"cannot read {path}: {error.strerror}") from None
    for start in range(0, len(tokens), CHUNK_TOKENS):
        largest = int(tokens[start : start + CHUNK_TOKENS].max())
        if largest >= vocabulary:
            raise FormatError(f"{path}: token {largest} is not in a vocabulary of {vocabulary}")
    return tokens


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


Text = Tokens | BlockedTokens
"""All tokens in one file, or in blocks."""


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


def open_text(descriptor: Descriptor, directory: Path) -> tuple[Text, Text]:
    """The text of a run, where all of it is on this machine: what is trained on, and what is held out.

    Raises:
        FormatError: a file is damaged, or holds an id that is not in the vocabulary.
        ResourceError: a file cannot be read, or the prepared folder is gone.
    """
    vocabulary = descriptor.manifest.model.vocabulary
    if not descriptor.prepared:
        return open_tokens(directory / TRAIN, vocabulary), open_tokens(directory / HELD_OUT, vocabulary)
    folder = linked(directory)
    if folder is None:
        raise ResourceError("the prepared text of this run is not where it was on this machine: name it with --data")
    dataset = open_folder(folder)
    blocks = local_blocks(dataset, folder)
    return BlockedTokens(dataset.train, blocks), BlockedTokens(dataset.held_out, blocks)
