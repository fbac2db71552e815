"""The files that a peer keeps on its disk and serves to others by hash: contributions to the open rounds; and
snapshots, the states of its parts after their last closed rounds, in pieces.

    <contributions>/<part>/<round>-<sha256>    [proof, [receipt, …]] in msgpack, then the bytes, if they are here
    <snapshots>/<part>-<round>.grid            the bytes of a state; `.part` while pieces are missing
    <snapshots>/<part>-<round>.header          what the state is of, and the SHA-256 of each piece

A contribution is one file, so that it and what is signed about it are durable in one write. Of one's own it is before
anybody hears of it: published twice with different bytes it would void itself. Of another's it is, with this peer's
receipt, before the receipt goes out: others rely on it.
"""

import hashlib
import mmap
import threading
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO

import msgpack

from protocol.codec.snapshot import PIECE_BYTES, Header, Values, parse_header, piece_bytes, pieces_of, tensors_of
from protocol.errors import FormatError, HetpeerError, ResourceError
from protocol.files import replacing, sync_folder, write_atomically
from protocol.identity import Part
from protocol.manifest import Manifest
from protocol.net.blobs import Slice
from protocol.outer.data_plan import Reading
from protocol.outer.history import History
from protocol.outer.ledger import Entry
from protocol.wording import size

BLOCK_BYTES = 4096
"""The bytes of a disk's block: a file takes whole blocks."""

SNAPSHOTS_KEPT = 3
"""The last states of each part that are kept: peers are a round or two apart, and a newcomer begins with the last."""

ASKED_KEPT = 2
"""The older states of each part that stay while somebody goes on to fetch them, those that were begun first: a newcomer
may take more rounds than a few. No peer makes others keep more."""

PARTIAL = ".part"
"""The suffix of a snapshot of which pieces are still missing."""


# Contributions


@dataclass(slots=True)
class ContributionStore:
    """The contributions on this peer's disk: blobs and their entries, by hash."""

    directory: Path
    most_bytes: int | None = None
    """The bytes that it may hold in all; None: no limit. An open run may have any number of authors."""
    slices: dict[str, Slice] = field(default_factory=dict)
    sizes: dict[Path, int] = field(default_factory=dict)
    """The bytes that each file takes on the disk, in whole blocks; of one being written, those it will take."""
    _reserving: threading.Lock = field(default_factory=threading.Lock)

    def put(self, entry: Entry, blob: bytes = b"") -> None:
        """Keep a contribution, or only what is signed about one that is void; when this returns, it outlives a power
        cut.

        Raises:
            ResourceError: there is no room for it.
        """
        folder = self.directory / entry.name.part
        if not folder.exists():
            folder.mkdir(parents=True, exist_ok=True)
            sync_folder(self.directory)
        path = self._path(entry)
        signed: bytes = msgpack.packb([entry.proof, list(entry.receipts.values())])
        self._write(path, signed + blob)
        if blob:
            self.slices[entry.sha256] = Slice(path, -len(blob), len(blob))

    def put_unproven(self, entry: Entry, blob: bytes) -> None:
        """Keep a contribution of this peer's own for its error feedback alone: without the proof by which it would be
        taken for accepted after a restart."""
        self.put(replace(entry, proof=b"", receipts={}), blob)

    def lookup(self, sha256: str) -> Slice | None:
        """Return the file and the range of the bytes with this hash, for the blob service; None: they are not here."""
        return self.slices.get(sha256)

    def read(self, sha256: str) -> bytes:
        """The bytes of a contribution that is here."""
        where = self.slices[sha256]
        return where.path.read_bytes()[where.offset :]  # the file may just be replaced by one with more receipts

    def found(self, part: str = "*") -> Iterator[tuple[bytes, list[bytes], bool]]:
        """(proof, receipts, whether its bytes are here) of every contribution on disk, or of those to one part, to be
        verified again. What is damaged is passed over. Changes nothing: another process may write here."""
        for path in sorted(self.directory.glob(f"{part}/????????-*")):
            sha256 = path.name.partition("-")[2]
            try:
                data = path.read_bytes()
                proof, receipts, start = _signed(data)
            except (OSError, ValueError, msgpack.UnpackException):
                continue
            if hashlib.sha256(data[start:]).hexdigest() == sha256:
                self.slices[sha256] = Slice(path, start - len(data), len(data) - start)
            if start == len(data) or sha256 in self.slices:
                yield proof, receipts, sha256 in self.slices

    def _write(self, path: Path, data: bytes) -> None:
        before = self._reserve(path, len(data))
        try:
            write_atomically(path, data)
        except BaseException:
            with self._reserving:
                if before is None:
                    self.sizes.pop(path, None)
                else:
                    self.sizes[path] = before
            raise

    def _reserve(self, path: Path, count: int) -> int | None:
        """Count a file's bytes before they are written: contributions are written in several threads at once. Returns
        what the file took until now; None: there was none.

        Raises:
            ResourceError: there is no room for them.
        """
        with self._reserving:
            before = self.sizes.get(path)
            after = sum(self.sizes.values()) - (before or 0) + _on_disk(count)
            if self.most_bytes is not None and after > self.most_bytes:
                raise ResourceError(
                    f"what others contribute takes more than the {size(self.most_bytes)} that this disk has left for "
                    "it: give it more with --max-disk, or leave this run"
                )
            self.sizes[path] = _on_disk(count)
        return before

    def _remove(self, path: Path) -> None:
        with self._reserving:
            self.sizes.pop(path, None)
        path.unlink(missing_ok=True)

    def tidy(self) -> None:
        """Remove what was half written when the power failed, and see what there is."""
        for path in self.directory.glob("*/.*.partial"):
            path.unlink(missing_ok=True)
        self.sizes = {path: _on_disk(path.stat().st_size) for path in self.directory.glob("*/*")}

    def keep_revocation(self, signed: bytes) -> None:
        """Keep a revocation that the operator signed."""
        path = self.directory / "revocations" / hashlib.sha256(signed).hexdigest()
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            self._write(path, signed)

    def revocations(self) -> list[bytes]:
        """All signed revocations that were kept, not checked anew."""
        return [path.read_bytes() for path in sorted(self.directory.glob("revocations/*"))]

    def discard(self, entry: Entry) -> None:
        """Forget one contribution: this peer does not stand by it."""
        self.slices.pop(entry.sha256, None)
        self._remove(self._path(entry))

    def drop(self, part: Part, last: int, keep: Collection[str] = ()) -> None:
        """Forget the rounds of a part up to `last`, but for the contributions with these hashes. What came too late for
        its round, too, goes with them."""
        for path in (self.directory / part).glob("????????-*"):
            round, _, sha256 = path.name.partition("-")
            if int(round) <= last and sha256 not in keep:
                self.slices.pop(sha256, None)
                self._remove(path)

    def _path(self, entry: Entry) -> Path:
        return self.directory / entry.name.part / f"{entry.name.round:08d}-{entry.sha256}"


def _on_disk(count: int) -> int:
    return -(-count // BLOCK_BYTES) * BLOCK_BYTES


def _signed(data: bytes) -> tuple[bytes, list[bytes], int]:
    """(proof, receipts, where the contribution's own bytes begin).

    Raises:
        ValueError or msgpack.UnpackException: it is damaged.
    """
    unpacker = msgpack.Unpacker(max_buffer_size=len(data))
    unpacker.feed(data)

    def signed() -> bytes:
        if data[unpacker.tell() : unpacker.tell() + 1] not in (b"\xc4", b"\xc5", b"\xc6"):
            raise ValueError("not bytes")
        unpacked: bytes = unpacker.unpack()
        return unpacked

    if unpacker.read_array_header() != 2:
        raise ValueError("not a proof and receipts")
    proof = signed()
    receipts = [signed() for _ in range(unpacker.read_array_header())]
    return proof, receipts, unpacker.tell()


# Snapshots


@dataclass(slots=True)
class SnapshotStore:
    """The snapshots on this peer's disk: files of bare bytes, and their headers."""

    directory: Path
    manifest: Manifest
    headers: dict[str, tuple[Header, Path]] = field(default_factory=dict)
    pieces: dict[str, Slice] = field(default_factory=dict)
    unasked: dict[Path, int] = field(default_factory=dict)
    """The number of states that have come since a piece of each asked one was requested."""

    def path(self, part: Part, round: int) -> Path:
        """Return the path of a state's bytes."""
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
            with path.open("rb") as file:
                if missing_pieces(file, header, self.manifest):
                    raise FormatError(f"{path} is damaged")
                with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                    return tensors_of(data, self.manifest, header.part)
        except OSError as error:
            raise ResourceError(f"cannot read {path}: {error.strerror}") from None

    def add(self, header: Header) -> None:
        """Serve a snapshot whose bytes are in place. Dropped are those of rounds long past, and those of later
        ones: they belong to a state that was given up for this one."""
        write_atomically(self.path(header.part, header.round).with_suffix(".header"), header.to_bytes())
        self._serve(header)

    def _serve(self, header: Header) -> None:
        path = self.path(header.part, header.round)
        paths = {old.digest: kept_file for old, kept_file in self.headers.values() if old.part == header.part}
        mine = sorted((self.headers[digest][0] for digest in paths), key=lambda old: old.round)
        past = [old for old in mine if old.round < header.round]
        older, recent = past[: 1 - SNAPSHOTS_KEPT], past[1 - SNAPSHOTS_KEPT :]
        requested = [old for old in older if self.unasked.get(paths[old.digest], SNAPSHOTS_KEPT) < SNAPSHOTS_KEPT]
        for old in mine:
            if old not in recent and old not in requested[:ASKED_KEPT]:
                self._drop(old)
        for file in self.unasked.keys() & set(paths.values()):
            self.unasked[file] += 1
        self.headers[header.digest] = header, path
        for index, sha256 in enumerate(header.pieces):
            size = piece_bytes(self.manifest, header.part, index)
            self.pieces[sha256] = Slice(path, index * PIECE_BYTES, size)
        served = {kept_file.stem for old, kept_file in self.headers.values() if old.part == header.part}
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
        """Return the file and the range of the piece with this hash, for the blob service; None: it is not here."""
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
