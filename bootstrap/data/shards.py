"""Documents in a random order, though they may be more than memory holds; and the shards that they are written to.

Each document goes to one of 256 files, drawn at random; then the files are read one after the other, each in a random
order of its documents. That is a uniformly random order of all, and each file is read while it is in the page cache.

Hours may go into it. What is kept now and then is where another one goes on, whatever became of this one.
"""

import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ValidationError

from protocol.errors import FormatError, ResourceError
from protocol.files import write_atomically
from protocol.run.dataset import TokenShard

Ids = NDArray[np.unsignedinteger]

FILES = 256

BUFFERED_TOKENS = 2**24
"""The tokens in memory before they are written: 32 or 64 MiB."""

DRAWS = 4096
"""Made at once."""

KEPT = "kept.json"


class FileCounts(BaseModel):
    """The content of the files: so many documents and tokens, and so many bytes of each file, by its name."""

    documents: int = 0
    tokens: int = 0
    sizes: dict[str, int] = {}


class Shuffle:
    """Takes tokens of one document after the other, and gives the documents back in another order. `folder` is its own,
    and may hold what another one of the same `dtype` and `seed` has kept: `documents` of them are there from the start.
    The same documents and seed give the same order."""

    def __init__(self, folder: Path, dtype: "np.dtype[np.unsignedinteger]", seed: int) -> None:
        folder.mkdir(exist_ok=True)
        self.folder, self.dtype, self.seed = folder, dtype, seed
        kept = self._recall()
        self.documents, self.tokens = kept.documents, kept.tokens
        self._waiting: list[list[Ids]] = [[] for _ in range(FILES)]
        self._lengths: list[list[int]] = [[] for _ in range(FILES)]
        self._buffered, self._length = 0, 0
        self._files = islice(_numbers(_random(seed, "files")), self.documents, None)
        self._file = next(self._files)

    def add(self, tokens: Ids, ends: bool) -> None:
        """Add more of a document; `ends` if that is all.

        Raises:
            ResourceError: the disk is full.
        """
        self._waiting[self._file].append(tokens.astype(self.dtype))
        self._length += len(tokens)
        self._buffered += len(tokens)
        self.tokens += len(tokens)
        if ends:
            self._lengths[self._file].append(self._length)
            self._length, self._file = 0, next(self._files)
            self.documents += 1
            self._buffered += 1
        if self._buffered >= BUFFERED_TOKENS:
            self._write()

    def keep(self) -> None:
        """Whatever happens from now on, the documents until here are on disk. Between two documents.

        Raises:
            ResourceError: the disk is full.
        """
        self._write()
        sizes = {path.name: path.stat().st_size for path in self.folder.iterdir() if path.name != KEPT}
        for name in sizes:
            with (self.folder / name).open("rb") as file:
                os.fsync(file.fileno())
        counts = FileCounts(documents=self.documents, tokens=self.tokens, sizes=sizes)
        write_atomically(self.folder / KEPT, counts.model_dump_json().encode())

    def shuffled(self) -> Iterator[Ids]:
        """The documents, each [tokens], in their new order. The files go as they are read: nothing is kept any more."""
        self._write()
        (self.folder / KEPT).unlink(missing_ok=True)
        for number in range(FILES):
            tokens_path, lengths_path = self._paths(number)
            if lengths_path.exists():
                lengths = np.fromfile(lengths_path, "<u8").astype(np.int64)
                tokens = np.memmap(tokens_path, self.dtype, "r")
                starts = np.cumsum(lengths) - lengths
                for document in _random(self.seed, f"file {number}").permutation(len(lengths)):
                    yield tokens[starts[document] : starts[document] + lengths[document]]
                del tokens
                tokens_path.unlink()

    def _recall(self) -> FileCounts:
        """Read what is kept here; whatever else there is goes."""
        sizes_there = {path.name: path.stat().st_size for path in self.folder.iterdir()}
        try:
            counts = FileCounts.model_validate_json((self.folder / KEPT).read_bytes())
        except (OSError, ValidationError):
            counts = FileCounts()
        if any(sizes_there.get(name, 0) < size for name, size in counts.sizes.items()):
            counts = FileCounts()
        for name in sizes_there.keys() - {KEPT}:
            if name in counts.sizes:
                os.truncate(self.folder / name, counts.sizes[name])
            else:
                (self.folder / name).unlink()
        return counts

    def _paths(self, number: int) -> tuple[Path, Path]:
        return self.folder / f"{number}.tokens", self.folder / f"{number}.lengths"

    def _write(self) -> None:
        try:
            for number, (waiting, lengths) in enumerate(zip(self._waiting, self._lengths, strict=True)):
                for path, data in zip(self._paths(number), (waiting, [np.array(lengths, "<u8")]), strict=True):
                    if waiting or lengths:
                        with path.open("ab") as file:
                            file.writelines(piece.data for piece in data)
                waiting.clear()
                lengths.clear()
        except OSError as error:
            raise ResourceError(f"cannot write in {self.folder}: {error.strerror}") from None
        self._buffered = 0


def _numbers(random: np.random.Generator) -> Iterator[int]:
    while True:
        yield from random.integers(0, FILES, DRAWS).tolist()


def _random(seed: int, what: str) -> np.random.Generator:
    key = hashlib.sha256(f"hetpeer shuffle {seed} {what}".encode()).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(key[:16], "little")))


# Shards

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
                    # The first shard has room for one token more: the next begin with the last token before them.
                    self.close()
                    self.paths.append(self.name(len(self.paths)))
                    self._file = self.paths[-1].open("wb")
                    self._file.write(self._last.tobytes())
                    self._room = self.shard_tokens + 1 - len(self._last)
                some, tokens = tokens[: self._room], tokens[self._room :]
                assert self._file is not None
                self._file.write(some.tobytes())
                self._room -= len(some)
                self._last = np.array(some[-1:])
        except OSError as error:
            raise ResourceError(f"cannot write {self.paths[-1]}: {error.strerror}") from None

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
