"""Prepared text: tokens in shards, cut into blocks that can be fetched, and checked, one by one.

A prepared folder has `data.json` (a `DataManifest`), `blocks.sha256` (the digests of all blocks), the tokenizer, and
flat files of little-endian tokens. `data.json` pins everything else, so blocks can be taken from anybody.

The tokens to train on are one *stream* over their shards, the held-out ones another. Block b of a stream is its tokens
[b·B, b·B + B], B + 1 of them: neighbours share one token, as neighbouring sequences do, so that a sequence whose length
divides B lies in a single block. Each shard but the last of a stream is whole blocks; its last token is also the next
one's first.
"""

import hashlib
import json
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Annotated, Literal
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, Field, model_validator

from protocol.errors import FormatError, ManifestError
from protocol.toml_tables import MOST_QUOTED_CHARACTERS, Section, validated

DATA = "data.json"
"""The manifest of prepared text."""

BLOCKS = "blocks.sha256"
"""The SHA-256 of every block, 32 bytes each: of the stream to train on, then of the held-out one."""

BLOCK_TOKENS = 2**18
"""The usual size of a block, 512 KiB of uint16: a round trip to a mirror brings a quarter of a million tokens, and a
few are little memory."""

STEP_BLOCKS = 4096
"""The most blocks that an inner step may take: of the usual size they are a thousand million tokens."""

MANIFEST_BYTES = 16 * 2**20
"""The size of the largest `data.json`: it names a hundred thousand shards."""

DIGEST_BYTES = 32

MOST_MIRRORS, MOST_URL_CHARACTERS = 16, 500


def checked_mirror(url: str) -> str:
    """Check a mirror's base URL: http or https, a host, no user name and no query. Returns it without its last slash.

    Raises:
        ValueError: it is none.
    """
    parts = urlsplit(url)
    plain = url.isascii() and url.isprintable() and " " not in url and len(url) <= MOST_URL_CHARACTERS
    web = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0 and "@" not in parts.netloc
    if not plain or "\\" in url or not web or parts.query or parts.fragment:
        raise ValueError(
            f"{url[:80]!r} is no mirror: give the http:// or https:// URL of the folder with {DATA}, and no user name"
        )
    return url.rstrip("/")


Mirror = Annotated[str, AfterValidator(checked_mirror)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class TokenShard(Section):
    """A flat file of tokens. `sha256` is of the whole file."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")
    tokens: int = Field(ge=2, le=2**40)
    sha256: Sha256


class DataManifest(Section):
    """The manifest of prepared text, `data.json`. `tokenizer` and `blocks` are the hashes of those files; every id is
    less than `vocabulary`; `end_of_text` stands after each document; shards begin with `header_bytes` that are no
    tokens."""

    version: Literal[1] = 1
    dtype: Literal["uint16", "uint32"]
    header_bytes: int = Field(0, ge=0, le=2**16)
    vocabulary: int = Field(ge=1, le=2**31)
    tokenizer: Sha256
    end_of_text: int = Field(ge=0)
    block_tokens: int = Field(BLOCK_TOKENS, ge=2, le=2**20, description="a peer holds some dozens of them")
    documents: int = Field(ge=0, description="in the shards to train on")
    shards: tuple[TokenShard, ...] = Field(min_length=1)
    held_out_documents: int = Field(ge=0)
    held_out: TokenShard
    blocks: Sha256
    mirrors: tuple[Mirror, ...] = Field((), max_length=MOST_MIRRORS)

    @model_validator(mode="after")
    def fits_together(self) -> "DataManifest":
        names = [shard.name for shard in (*self.shards, self.held_out)]
        if len(set(names)) < len(names) or {DATA, BLOCKS} & set(names):
            raise ValueError("two files have one name")
        if any((shard.tokens - 1) % self.block_tokens for shard in self.shards[:-1]):
            raise ValueError("a shard before the last is not whole blocks and one token")
        if (self.dtype == "uint16") != (self.vocabulary <= 2**16):
            raise ValueError(f"{self.dtype} is not what a vocabulary of {self.vocabulary} takes")
        if self.end_of_text >= self.vocabulary:
            raise ValueError(f"end_of_text = {self.end_of_text} is not in the vocabulary")
        return self

    @property
    def token_dtype(self) -> "np.dtype[np.unsignedinteger]":
        """The number format of the tokens in the shards, little-endian."""
        return np.dtype("<u2" if self.dtype == "uint16" else "<u4")

    def require_blocks(self, tokens: int) -> None:
        """Check that an inner step of so many tokens takes no more blocks than a peer can keep track of.

        Raises:
            FormatError: it takes more.
        """
        if tokens > STEP_BLOCKS * self.block_tokens:
            raise FormatError(
                f"the text is in blocks of {self.block_tokens} tokens: a step takes more than {STEP_BLOCKS} of them"
            )

    def canonical(self) -> bytes:
        """The bytes of `data.json`: JSON that people can read, and the same bytes each time."""
        return json.dumps(self.model_dump(mode="json"), indent=1).encode() + b"\n"


def parse_data_manifest(data: bytes) -> DataManifest:
    """Parse `data.json`.

    Raises:
        FormatError: it is none; the message names the field.
    """
    if len(data) > MANIFEST_BYTES:
        raise FormatError(f"{DATA} of {len(data)} bytes, where {MANIFEST_BYTES} are allowed")
    try:
        return validated(DataManifest, json.loads(data), DATA)
    except (ValueError, RecursionError, ManifestError) as error:
        raise FormatError(f"not prepared text: {error}"[:MOST_QUOTED_CHARACTERS]) from None


@dataclass(frozen=True, slots=True)
class Block:
    """A block: some tokens of a shard, where their bytes are, and their digest."""

    number: int
    shard: str
    offset: int
    size: int
    sha256: bytes

    def __str__(self) -> str:
        return f"block {self.number} (bytes {self.offset} to {self.offset + self.size - 1} of {self.shard})"


@dataclass(frozen=True, slots=True)
class BlockStream:
    """A stream of tokens in blocks of `block_tokens` + 1. `first` is the number of its first block."""

    shards: tuple[TokenShard, ...]
    block_tokens: int
    first: int
    ends: tuple[int, ...] = field(init=False, repr=False)
    """The place in the stream of each shard's last token: shards share those at their borders."""

    def __post_init__(self) -> None:
        """Compute the offsets of all shards once: there may be a hundred thousand shards, and a step may take thousands
        of blocks."""
        object.__setattr__(self, "ends", tuple(accumulate(shard.tokens - 1 for shard in self.shards)))

    @property
    def tokens(self) -> int:
        """The number of tokens in the stream."""
        return self.ends[-1] + 1

    @property
    def blocks(self) -> int:
        """The number of blocks in the stream."""
        return -(-(self.tokens - 1) // self.block_tokens)

    def block_of(self, number: int) -> tuple[TokenShard, int, int]:
        """Find a block. Returns (its shard, the place of its first token there, how many tokens it has).

        Raises:
            IndexError: the stream has no block of that number.
        """
        start = (number - self.first) * self.block_tokens
        shard_index = bisect_right(self.ends, start)
        if start < 0 or shard_index == len(self.ends):
            raise IndexError(f"no block {number}")
        shard, start = self.shards[shard_index], start - (self.ends[shard_index - 1] if shard_index else 0)
        return shard, start, min(self.block_tokens + 1, shard.tokens - start)


@dataclass(frozen=True, slots=True)
class Dataset:
    """Prepared text without its tokens: what and where every block is."""

    manifest: DataManifest
    digests: bytes
    train: BlockStream
    held_out: BlockStream

    @staticmethod
    def of(manifest: DataManifest, digests: bytes) -> "Dataset":
        """Read the digests that the manifest pins.

        Raises:
            FormatError: they are others, or not one for each block.
        """
        if hashlib.sha256(digests).hexdigest() != manifest.blocks:
            raise FormatError(f"{BLOCKS} is not the one that {DATA} names: it is damaged, or of other text")
        train = BlockStream(manifest.shards, manifest.block_tokens, 0)
        held_out = BlockStream((manifest.held_out,), manifest.block_tokens, train.blocks)
        if len(digests) != DIGEST_BYTES * (train.blocks + held_out.blocks):
            raise FormatError(f"{BLOCKS} has {len(digests)} bytes, not {DIGEST_BYTES} for each block")
        return Dataset(manifest, digests, train, held_out)

    @property
    def blocks(self) -> int:
        """The number of blocks, held-out ones included."""
        return self.train.blocks + self.held_out.blocks

    def block(self, number: int) -> Block:
        """The block of a number.

        Raises:
            IndexError: there is none.
        """
        stream = self.train if number < self.train.blocks else self.held_out
        shard, start, count = stream.block_of(number)
        item, digest = self.manifest.token_dtype.itemsize, DIGEST_BYTES * number
        offset = self.manifest.header_bytes + start * item
        return Block(number, shard.name, offset, count * item, self.digests[digest : digest + DIGEST_BYTES])

    def tokens_of(self, block: Block, data: bytes) -> NDArray[np.unsignedinteger]:
        """The tokens of a block whose digest was checked: uint16 or uint32 [count].

        Raises:
            FormatError: one is not in the vocabulary; the message names it.
        """
        tokens: NDArray[np.unsignedinteger] = np.frombuffer(data, self.manifest.token_dtype)
        wrong = np.flatnonzero(tokens >= self.manifest.vocabulary)
        if wrong.size:
            token_index = (block.offset - self.manifest.header_bytes) // tokens.itemsize + int(wrong[0])
            raise FormatError(
                f"{block.shard}: token {tokens[wrong[0]]} at place {token_index} is not in the vocabulary of "
                f"{self.manifest.vocabulary}: the text was prepared wrongly"
            )
        return tokens


def check_block(block: Block, data: bytes) -> None:
    """Check the bytes that came as a block.

    Raises:
        FormatError: they are not the block's.
    """
    if len(data) != block.size:
        raise FormatError(f"{block} came with {len(data)} bytes")
    if hashlib.sha256(data).digest() != block.sha256:
        raise FormatError(f"{block} has other bytes than were prepared (SHA-256)")


def base_urls(given: Sequence[str]) -> tuple[str, ...]:
    """Check the base URLs of mirrors. Returns each once, at most `MOST_MIRRORS`.

    Raises:
        FormatError: one is no mirror, or there are too many.
    """
    try:
        mirrors = tuple(dict.fromkeys(map(checked_mirror, given)))
    except ValueError as error:
        raise FormatError(str(error)) from None
    if len(mirrors) > MOST_MIRRORS:
        raise FormatError(f"{len(mirrors)} mirrors, where {MOST_MIRRORS} are allowed")
    return mirrors
