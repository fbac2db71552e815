"""A run's file of tokens, read in place."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from protocol.errors import FormatError, ResourceError
from protocol.run.run_files import token_dtype

Tokens = NDArray[np.unsignedinteger]

CHUNK_TOKENS = 2**22
"""Tokens checked at once: 8 or 16 MiB in memory, whatever the size of the file."""


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
