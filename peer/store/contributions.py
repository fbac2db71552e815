"""The contributions a peer keeps on disk: what it serves to others, and what it starts from after a crash.

    <folder>/<part>/<round>-<sha256>    [proof, [receipt, …]] in msgpack, then the bytes, if they are here

One file, so that a contribution and what is signed about it are durable in one write. Of one's own it is before
anybody hears of it: published twice with different bytes it would void itself. Of another's it is, with this peer's
receipt, before the receipt goes out: others rely on it.
"""

import hashlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgpack

from protocol.errors import ResourceError
from protocol.files import sync_folder, write_atomically
from protocol.identity import Part
from protocol.net.blobs import Slice
from protocol.outer.ledger import Entry
from protocol.wording import size

BLOCK_BYTES = 4096
"""Of a disk: a file takes whole ones."""


@dataclass(slots=True)
class ContributionStore:
    """Blobs and their entries, by hash."""

    directory: Path
    most_bytes: int | None = None
    """The bytes that it may hold in all; None: no limit. An open run may have any number of authors."""
    slices: dict[str, Slice] = field(default_factory=dict)
    sizes: dict[Path, int] = field(default_factory=dict)
    """The bytes that each file takes on the disk, in whole blocks."""

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
            self.slices[entry.sha256] = Slice(path, len(signed), len(blob))

    def lookup(self, sha256: str) -> Slice | None:
        """Where the bytes with this hash lie, for the blob service; None: they are not here."""
        return self.slices.get(sha256)

    def read(self, sha256: str) -> bytes:
        """The bytes of a contribution that is here."""
        where = self.slices[sha256]
        return where.path.read_bytes()[where.offset :]

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
                self.slices[sha256] = Slice(path, start, len(data) - start)
            if start == len(data) or sha256 in self.slices:
                yield proof, receipts, sha256 in self.slices

    def _write(self, path: Path, data: bytes) -> None:
        after = _on_disk(len(data)) + sum(taken for each, taken in list(self.sizes.items()) if each != path)
        if self.most_bytes is not None and after > self.most_bytes:
            raise ResourceError(
                f"what others contribute takes more than the {size(self.most_bytes)} that this disk has left for it: "
                "give it more with --max-disk, or leave this run"
            )
        write_atomically(path, data)
        self.sizes[path] = _on_disk(len(data))

    def _remove(self, path: Path) -> None:
        self.sizes.pop(path, None)
        path.unlink(missing_ok=True)

    def tidy(self) -> None:
        """Remove what was half written when the power failed, and see what there is."""
        for path in self.directory.glob("*/.*.partial"):
            path.unlink()
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
        found: bytes = unpacker.unpack()
        return found

    if unpacker.read_array_header() != 2:
        raise ValueError("not a proof and receipts")
    proof = signed()
    receipts = [signed() for _ in range(unpacker.read_array_header())]
    return proof, receipts, unpacker.tell()
