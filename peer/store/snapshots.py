"""The snapshots on a peer's disk: the states of its parts after their last closed rounds, in pieces that it serves."""

import hashlib
import io
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from protocol.codec.snapshot import PIECE_BYTES, Header, Values, parse_header, piece_bytes, pieces_of, tensors_of
from protocol.errors import FormatError, HetpeerError, ResourceError
from protocol.files import replacing, write_atomically
from protocol.identity import Part
from protocol.manifest import Manifest
from protocol.net.blobs import Slice
from protocol.outer.data_plan import Reading
from protocol.outer.history import History

SNAPSHOTS_KEPT = 3
"""Of each part the last states: peers are a round or two apart, and a newcomer begins with the last."""

ASKED_KEPT = 2
"""Of each part so many older states stay while somebody goes on to fetch them, those that were begun first: a newcomer
may take more rounds than a few. No peer makes others keep more."""

PARTIAL = ".part"
"""The suffix of a snapshot of which pieces are still missing."""


@dataclass(slots=True)
class SnapshotStore:
    """The snapshots on this peer's disk: files of bare bytes, and their headers."""

    directory: Path
    manifest: Manifest
    headers: dict[str, tuple[Header, Path]] = field(default_factory=dict)
    pieces: dict[str, Slice] = field(default_factory=dict)
    unasked: dict[Path, int] = field(default_factory=dict)
    """How many states have come since a piece of this one was asked for; of those that were."""

    def path(self, part: Part, round: int) -> Path:
        """Where the bytes of a state are, or belong."""
        return self.directory / f"{part}-{round:08d}.grid"

    def write(
        self, part: Part, round: int, history: History, tensors: Iterable[Values], reading: Reading | None = None
    ) -> Header:
        """Keep a state, durably, and serve it."""
        self.directory.mkdir(parents=True, exist_ok=True)
        hashes = []
        with replacing(self.path(part, round)) as file:
            for piece in pieces_of(tensors):
                hashes.append(hashlib.sha256(piece).hexdigest())
                file.write(piece)
        self.add(header := Header(part, round, history.copy(), tuple(hashes), reading))
        return header

    def resume(self, part: Part) -> tuple[Header, dict[str, Values]] | None:
        """The last state of a part on this disk that is whole. It is served from now on; what else there is of the part
        is removed, but for a later state that is on its way here."""
        for header, found in self.on_disk(part):
            self._serve(header)
            last = self.path(part, header.round).stem
            for partial in self.directory.glob(f"{part}-????????{PARTIAL}"):
                if partial.stem <= last:
                    partial.unlink()
            return header, found
        return None

    def on_disk(self, part: Part) -> Iterator[tuple[Header, dict[str, Values]]]:
        """The states of a part on this disk that are whole, the last first. Changes nothing."""
        for path in sorted(self.directory.glob(f"{part}-*.header"), reverse=True):
            try:
                header = parse_header(path.read_bytes(), self.manifest)
                found = self.read(header)
            except (OSError, HetpeerError):
                continue
            if path.stem == self.path(part, header.round).stem:
                yield header, found

    def read(self, header: Header) -> dict[str, Values]:
        """The tensors of a state, checked piece by piece.

        Raises:
            FormatError: the file is damaged.
            ResourceError: it cannot be read.
        """
        path = self.path(header.part, header.round)
        try:
            data = path.read_bytes()
        except OSError as error:
            raise ResourceError(f"cannot read {path}: {error.strerror}") from None
        if missing_pieces(io.BytesIO(data), header, self.manifest):
            raise FormatError(f"{path} is damaged")
        return tensors_of(data, self.manifest, header.part)

    def add(self, header: Header) -> None:
        """Serve a snapshot whose bytes are in place. Dropped are those of rounds long past, and those of later
        ones: they belong to a state that was given up for this one."""
        write_atomically(self.path(header.part, header.round).with_suffix(".header"), header.to_bytes())
        self._serve(header)

    def _serve(self, header: Header) -> None:
        path, mine = self.path(header.part, header.round), [each for each, _ in self.headers.values()]
        mine = sorted((each for each in mine if each.part == header.part), key=lambda each: each.round)
        past = [each for each in mine if each.round < header.round]
        older, recent = past[: 1 - SNAPSHOTS_KEPT], past[1 - SNAPSHOTS_KEPT :]
        since = {each.digest: self.unasked.get(kept, SNAPSHOTS_KEPT) for each, kept in self.headers.values()}
        asked = [each for each in older if since[each.digest] < SNAPSHOTS_KEPT]
        for old in mine:
            if old not in recent and old not in asked[:ASKED_KEPT]:
                self._drop(old)
        for file in self.unasked.keys() & {kept for each, kept in self.headers.values() if each.part == header.part}:
            self.unasked[file] += 1
        self.headers[header.digest] = header, path
        for index, sha256 in enumerate(header.pieces):
            size = piece_bytes(self.manifest, header.part, index)
            self.pieces[sha256] = Slice(path, index * PIECE_BYTES, size)
        served = {kept.stem for each, kept in self.headers.values() if each.part == header.part}
        for file in self.directory.glob(f"{header.part}-????????.*"):
            if file.stem not in served and file.suffix != PARTIAL:
                file.unlink(missing_ok=True)

    def _drop(self, header: Header) -> None:
        _, path = self.headers.pop(header.digest)
        self.unasked.pop(path, None)
        for sha256 in header.pieces:
            if sha256 in self.pieces and self.pieces[sha256].path == path:
                del self.pieces[sha256]

    def begin(self, header: Header) -> Path:
        """The file in which a snapshot grows that is on its way here. Others were given up, and are removed."""
        path = self.path(header.part, header.round).with_suffix(PARTIAL)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        for other in self.directory.glob(f"{header.part}-????????{PARTIAL}"):
            if other != path:
                other.unlink(missing_ok=True)
        return path

    def lookup(self, sha256: str) -> Slice | None:
        """Where the piece with this hash lies, for the blob service; None: it is not here."""
        found = self.pieces.get(sha256)
        if found is not None:
            self.unasked[found.path] = 0
        return found


def missing_pieces(file: BinaryIO, header: Header, manifest: Manifest) -> list[int]:
    """The indices of the pieces that are not in a file yet, or not whole."""
    missing = []
    for index, sha256 in enumerate(header.pieces):
        file.seek(index * PIECE_BYTES)
        if hashlib.sha256(file.read(piece_bytes(manifest, header.part, index))).hexdigest() != sha256:
            missing.append(index)
    return missing
