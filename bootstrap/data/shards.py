"""Shards on disk: written, and measured."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from bootstrap.data.shuffle import Ids
from protocol.errors import FormatError, ResourceError
from protocol.run.dataset import TokenShard

SHARD_BLOCKS = 512
"""256 MiB of uint16: few files, and each is quickly copied to a mirror, or copied again."""


class ShardWriter:
    """Writes a stream of tokens into shards of whole blocks, each with the next one's first token at its end."""

    def __init__(self, name: Callable[[int], Path], dtype: "np.dtype[np.unsignedinteger]", shard_tokens: int) -> None:
        """`name` is where the shards go, by number; `shard_tokens` those of its blocks."""
        self.name, self.dtype, self.shard_tokens = name, dtype, shard_tokens
        self.paths: list[Path] = []
        self.tokens = 0
        self._file: BinaryIO | None = None
        self._room = 0
        self._last = np.empty(0, dtype)

    def write(self, tokens: Ids) -> None:
        """Raises ResourceError: the disk is full."""
        tokens = tokens.astype(self.dtype, copy=False)
        self.tokens += len(tokens)
        try:
            while len(tokens):
                if self._room == 0:
                    self._begin()
                some, tokens = tokens[: self._room], tokens[self._room :]
                assert self._file is not None
                self._file.write(some.tobytes())
                self._room -= len(some)
                self._last = np.array(some[-1:])
        except OSError as error:
            raise ResourceError(f"cannot write {self.paths[-1]}: {error.strerror}") from None

    def _begin(self) -> None:
        """The first shard has room for one token more: the next ones begin with the last token of the one before."""
        self.close()
        self.paths.append(self.name(len(self.paths)))
        self._file = self.paths[-1].open("wb")
        self._file.write(self._last.tobytes())
        self._room = self.shard_tokens + 1 - len(self._last)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


@dataclass(frozen=True, slots=True)
class Measured:
    """A shard as it is on a disk: its SHA-256 is the shard's, `digests` those of its blocks, one after the other."""

    shard: TokenShard
    digests: bytes


def measure(path: Path, dtype: "np.dtype[np.unsignedinteger]", header_bytes: int, block_tokens: int) -> Measured:
    """Hash a shard and its blocks in one reading.

    Raises:
        FormatError: it ends within a token, or has less than two.
        ResourceError: it cannot be read.
    """
    item = dtype.itemsize
    whole, digests = hashlib.sha256(), bytearray()
    try:
        with path.open("rb") as file:
            size = path.stat().st_size - header_bytes
            if size < 2 * item or size % item:
                raise FormatError(f"{path}: {size} bytes are no tokens of {item} bytes each, two at least")
            whole.update(file.read(header_bytes))
            data = file.read((block_tokens + 1) * item)
            whole.update(data)
            while len(data) > item:
                digests += hashlib.sha256(data).digest()
                more = file.read(block_tokens * item)
                whole.update(more)
                data = data[-item:] + more
    except OSError as error:
        raise ResourceError(f"cannot read {path}: {error.strerror}") from None
    return Measured(TokenShard(name=path.name, tokens=size // item, sha256=whole.hexdigest()), bytes(digests))
