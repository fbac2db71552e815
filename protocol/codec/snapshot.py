"""A snapshot: the state of a part after its closed rounds, as bytes that newcomers fetch in pieces from several peers.

The bytes are the part's grid: int32 little-endian in units of 2⁻²⁶, the tensors in the layout's order, row-major, one
behind the other. The header names the round, what counted up to it, and the SHA-256 of each piece; the embedding's also
says what has been read of the text. Its digest is what peers announce as their state. So whoever knows the digest can
take header and pieces from anybody.
"""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from mmap import mmap

import msgpack
import numpy as np
from numpy.typing import NDArray

from protocol.errors import FormatError
from protocol.identity import EMBEDDING, Part
from protocol.layout import elements, model_layout
from protocol.manifest import Manifest
from protocol.outer.data_plan import Reading
from protocol.outer.history import MOST_RANGES, History

SNAPSHOT_VERSION = 2

PIECE_BYTES = 2**20
"""The length of a piece: small enough that many peers share in serving a snapshot, large enough that the list of pieces
is a thousandth of it."""

HEADER_BYTES = 2**26
"""The largest header: of a part of 2²¹ pieces of 32 bytes each, that is 2 TiB, with a long history."""

LISTS_AND_MAPS = {bytes([head]) for head in (*range(0x80, 0xA0), *range(0xDC, 0xE0))}
"""The first bytes of lists and maps in msgpack."""

Values = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Header:
    """The header of a snapshot. `pieces` are SHA-256 in hex, in order; only the embedding's has a `reading`."""

    part: Part
    round: int
    history: History
    pieces: tuple[str, ...]
    reading: Reading | None = None

    def to_bytes(self) -> bytes:
        """Encode the header in the one way there is: msgpack of [version, part, round, history, pieces joined,
        reading]."""
        joined = b"".join(map(bytes.fromhex, self.pieces))
        reading = self.reading.to_bytes() if self.reading is not None else b""
        packed: bytes = msgpack.packb(
            [SNAPSHOT_VERSION, self.part, self.round, self.history.to_wire(), joined, reading]
        )
        return packed

    @property
    def digest(self) -> str:
        """The name of this state: the hex SHA-256 of the encoding."""
        return hashlib.sha256(self.to_bytes()).hexdigest()


def piece_bytes(manifest: Manifest, part: Part, index: int) -> int:
    """The length in bytes of one piece: the last may be shorter."""
    return min(PIECE_BYTES, 4 * elements(model_layout(manifest)[part]) - index * PIECE_BYTES)


def pieces_of(tensors: Iterable[Values]) -> Iterator[bytes]:
    """Cut the bytes of a part into pieces."""
    rest = b""
    for tensor in tensors:
        data = np.ascontiguousarray(tensor, "<i4").data.cast("B")
        start = 0
        while start < len(data):
            piece = data[start : start + PIECE_BYTES - len(rest)]
            rest += bytes(piece)
            start += len(piece)
            if len(rest) == PIECE_BYTES:
                yield rest
                rest = b""
    if rest:
        yield rest


def parse_header(data: bytes, manifest: Manifest) -> Header:
    """Check a header that another peer sent.

    Raises:
        FormatError: it is none of a part of this run, in the one encoding there is.
    """
    if len(data) > HEADER_BYTES:
        raise FormatError(f"a snapshot's header of {len(data)} bytes")
    try:
        version, part, round, history, joined, read = _fields(data)
    except (ValueError, msgpack.UnpackException):
        raise FormatError("a snapshot's header that cannot be read") from None
    if version != SNAPSHOT_VERSION or not isinstance(part, str) or type(round) is not int:
        raise FormatError("not a snapshot's header")
    if not isinstance(joined, bytes) or not isinstance(read, bytes):
        raise FormatError("not a snapshot's header")
    layout = model_layout(manifest).get(Part(part))
    if layout is None or not 0 <= round <= manifest.outer.rounds:
        raise FormatError(f"a snapshot of {part[:40]!r} after round {round}, which the run does not have")
    size = 4 * elements(layout)
    if len(joined) != 32 * -(-size // PIECE_BYTES):
        raise FormatError(f"a snapshot of {part} with another number of pieces than its {size} bytes have")
    pieces = tuple(joined[start : start + 32].hex() for start in range(0, len(joined), 32))
    reading = Reading.from_bytes(read, round, manifest) if part == EMBEDDING else None
    header = Header(Part(part), round, History.from_wire(history, round), pieces, reading)
    if header.to_bytes() != data:
        raise FormatError("a snapshot's header in another encoding than the one there is")
    return header


def _fields(data: bytes) -> tuple[object, object, object, dict[object, list[list[object]]], object, object]:
    """Read the six fields of a header one after another: a header may be long, and msgpack makes what is in it a
    hundred times as large if it is lists within lists, as it is not here.

    Raises:
        ValueError or msgpack.UnpackException: it is not of this form.
    """
    unpacker = msgpack.Unpacker(max_buffer_size=len(data), strict_map_key=True)
    unpacker.feed(data)

    def plain() -> object:
        if data[unpacker.tell() : unpacker.tell() + 1] in LISTS_AND_MAPS:
            raise ValueError("a list or a map where a number, a name or bytes are due")
        return unpacker.unpack()

    def pair() -> list[object]:
        if unpacker.read_array_header() != 2:
            raise ValueError("a range has two ends")
        return [plain(), plain()]

    if unpacker.read_array_header() != 6:
        raise ValueError("a header has six fields")
    version, part, round = plain(), plain(), plain()
    history = {}
    ranges_left = MOST_RANGES
    for _ in range(unpacker.read_map_header()):
        author, ranges = plain(), unpacker.read_array_header()
        ranges_left -= ranges
        if ranges_left < 0:
            raise ValueError("a history of too many ranges")
        history[author] = [pair() for _ in range(ranges)]
    joined, read = plain(), plain()
    if unpacker.tell() != len(data):
        raise ValueError("bytes behind the header")
    return version, part, round, history, joined, read


def tensors_of(data: bytes | mmap, manifest: Manifest, part: Part) -> dict[str, Values]:
    """Read the tensors in a snapshot's bytes, whose length has been checked."""
    tensors: dict[str, Values] = {}
    start = 0
    for name, shape in model_layout(manifest)[part].items():
        count = int(np.prod(shape))
        tensors[name] = np.frombuffer(data, "<i4", count, start).reshape(shape).astype(np.int32)
        start += 4 * count
    return tensors
