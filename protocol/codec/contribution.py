"""A contribution: one author's Δ̂ of one part in one round, as integers in units of 2⁻²⁶, and its bytes.

    magic "HPC2" · run id (32 bytes) · round u32 · inner steps u32 · slot u32 · part u16 · codec u8 · author length u8
    author (a peer id, ASCII)
    for each tensor of the part, in the layout's order:
        length of the unary stream u32 · unary stream · stream of rests · values

All numbers are little-endian. Counts, shapes and names follow from the manifest, so none is on the wire, and
the bytes of a contribution are the only ones: decoding and encoding again gives them back. Its address is
their SHA-256. `docs/wire.md` is the specification.
"""

import hashlib
import struct
from collections.abc import Mapping
from dataclasses import dataclass

import base58

from protocol.codec import rice
from protocol.codec.bitstream import Int32Array
from protocol.codec.chunks import ChunkGrid, Offsets, chunk_grid
from protocol.codec.quantize import dequantize, payload_bytes, quantize
from protocol.errors import FormatError
from protocol.identity import EMBEDDING, ContributionName, Part, PeerId, RunId, stage_part
from protocol.layout import part_layout
from protocol.manifest import Manifest
from protocol.tensor_formats import FORMATS, Codec

MAGIC = b"HPC2"
HEADER = struct.Struct("<4s32sIIIHBB")
LENGTH = struct.Struct("<I")
MOST_AUTHOR_BYTES = 64
"""The longest author's name; a peer id in base58 has 46 characters."""


@dataclass(frozen=True, slots=True)
class SparseTensor:
    """The kept values of one tensor, in canonical order: offsets [kept] in their chunks, and values [kept]."""

    offsets: Offsets
    values: Int32Array


@dataclass(frozen=True, slots=True)
class Contribution:
    """A contribution, decoded. `steps` is the number of inner steps of its author behind it; `tensors` are in the
    layout's order; `slot` is the author's place: with the steps, that of the embedding's tells what was read for it
    (`protocol/outer/data_plan.py`)."""

    run: RunId
    name: ContributionName
    steps: int
    tensors: dict[str, SparseTensor]
    slot: int = 0


def contribution_digest(blob: bytes) -> str:
    """A contribution's address: the hex SHA-256 of its bytes."""
    return hashlib.sha256(blob).hexdigest()


def slot_of(blob: bytes) -> int:
    """The slot that a contribution names as its author's.

    Raises:
        FormatError: it is too short to say one.
    """
    slot: int = HEADER.unpack(ByteReader(blob).take(HEADER.size, "header"))[4]
    return slot


def grids(manifest: Manifest, part: Part) -> dict[str, ChunkGrid]:
    """The chunks of each tensor of a part."""
    outer = manifest.outer
    return {
        name: chunk_grid(shape, outer.chunk_side, outer.top_k) for name, shape in part_layout(manifest, part).items()
    }


def compose(
    name: ContributionName,
    run: RunId,
    steps: int,
    picked: Mapping[str, SparseTensor],
    manifest: Manifest,
    slot: int = 0,
) -> tuple[bytes, Contribution]:
    """Quantize and encode what a replica picked. Returns the bytes, and the contribution that they decode to.

    The author takes the returned contribution's values, not the picked ones, out of its error feedback.
    """
    codec: Codec = manifest.outer.values
    author = name.author.encode()
    part = 0 if name.part == EMBEDDING else 1 + int(name.part.removeprefix("stage-"))
    code = FORMATS[codec].contribution
    header = HEADER.pack(MAGIC, bytes.fromhex(run), name.round, steps, slot, part, code, len(author))
    pieces = [header, author]
    sent: dict[str, SparseTensor] = {}
    for tensor, grid in grids(manifest, name.part).items():
        unary, rests = rice.encode_offsets(picked[tensor].offsets, grid)
        payload, values = quantize(picked[tensor].values, codec)
        pieces += [LENGTH.pack(len(unary)), unary, rests, payload]
        sent[tensor] = SparseTensor(picked[tensor].offsets, values)
    return b"".join(pieces), Contribution(run, name, steps, sent, slot)


def max_bytes(manifest: Manifest, part: Part) -> int:
    """The length in bytes that no valid contribution to this part exceeds: a bound to refuse by before fetching."""
    total = HEADER.size + MOST_AUTHOR_BYTES
    for grid in grids(manifest, part).values():
        total += LENGTH.size + rice.longest_unary_bytes(grid) + rice.rest_bytes(grid)
        total += payload_bytes(grid.kept, manifest.outer.values)
    return total


def expected_bytes(manifest: Manifest, part: Part) -> float:
    """The length in bytes of a contribution to this part, near enough to plan by."""
    return sum(
        grid.kept * rice.expected_bits(grid) / 8 + payload_bytes(grid.kept, manifest.outer.values)
        for grid in grids(manifest, part).values()
    )


def decode(blob: bytes, manifest: Manifest) -> Contribution:
    """Parse and check a contribution that a peer sent.

    Raises:
        FormatError: it is not exactly what `compose` makes for some author of a run of this manifest.
    """
    reader = ByteReader(blob)
    magic, run, round, steps, slot, part_code, codec, length = HEADER.unpack(reader.take(HEADER.size, "header"))
    if magic != MAGIC:
        raise FormatError("not a contribution: it does not begin with HPC2")
    if part_code > manifest.replicas.stages:
        raise FormatError(f"a contribution to part {part_code} of a model of {manifest.replicas.stages} stages")
    if codec != FORMATS[manifest.outer.values].contribution:
        raise FormatError(f"values in codec {codec}, the run's is {manifest.outer.values}")
    if not 1 <= round <= manifest.outer.rounds or not 0 <= steps <= manifest.inner.steps_at_most:
        raise FormatError(f"round {round} with {steps} inner steps, which the run does not have")
    part = EMBEDDING if part_code == 0 else stage_part(part_code - 1)
    name = ContributionName(part, round, _author(reader, length))
    tensors = {tensor: _tensor(reader, tensor, grid, manifest) for tensor, grid in grids(manifest, part).items()}
    if reader.left:
        raise FormatError(f"{reader.left} bytes follow the contribution's last tensor")
    return Contribution(RunId(run.hex()), name, steps, tensors, slot)


def _author(reader: "ByteReader", length: int) -> PeerId:
    if not 1 <= length <= MOST_AUTHOR_BYTES:
        raise FormatError(f"an author's name of {length} bytes")
    raw = reader.take(length, "author")
    if not set(raw) <= set(base58.BITCOIN_ALPHABET):
        raise FormatError("the author's name is not base58")
    return PeerId(raw.decode("ascii"))


def _tensor(reader: "ByteReader", name: str, grid: ChunkGrid, manifest: Manifest) -> SparseTensor:
    (unary_bytes,) = LENGTH.unpack(reader.take(LENGTH.size, name))
    if unary_bytes > rice.longest_unary_bytes(grid):
        raise FormatError(f"{name}: a unary stream of {unary_bytes} bytes, more than possible")
    unary = reader.take(unary_bytes, name)
    rests = reader.take(rice.rest_bytes(grid), name)
    payload = reader.take(payload_bytes(grid.kept, manifest.outer.values), name)
    try:
        offsets = rice.decode_offsets(unary, rests, grid)
        values = dequantize(payload, grid.kept, manifest.outer.values)
    except FormatError as error:
        raise FormatError(f"{name}: {error}") from None
    return SparseTensor(offsets, values)


@dataclass(slots=True)
class ByteReader:
    """A reader that takes bytes from front to back."""

    data: bytes
    at: int = 0

    @property
    def left(self) -> int:
        """The number of bytes not yet taken."""
        return len(self.data) - self.at

    def take(self, count: int, what: str) -> bytes:
        """Take the next `count` bytes, which errors call `what`.

        Raises:
            FormatError: there are not so many.
        """
        if count > self.left:
            raise FormatError(f"the contribution ends inside {what}")
        self.at += count
        return self.data[self.at - count : self.at]
