"""The contributions a peer keeps on disk: what it serves to others, and what it starts from after a crash.

    <folder>/<part>/<round>/<sha256>.blob     the bytes, as their hash names them
    <folder>/<part>/<round>/<sha256>.entry    the author's signed name for them, and receipts (msgpack)

A contribution of one's own is durable before anybody hears of it: published twice with different bytes it
would void itself.
"""

import hashlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgpack

from protocol.atomic import write_atomically
from protocol.identity import Part
from protocol.ledger import Entry

BLOB, ENTRY = ".blob", ".entry"


@dataclass(slots=True)
class Shelf:
    """Blobs and their entries, by hash."""

    directory: Path
    paths: dict[str, Path] = field(default_factory=dict)

    def put(self, entry: Entry, blob: bytes) -> None:
        """Keep a contribution; when this returns, it outlives a power cut."""
        path = self._path(entry, BLOB)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, blob)
        self.note(entry)
        self.paths[entry.sha256] = path

    def note(self, entry: Entry) -> None:
        """Keep what is signed about a contribution."""
        packed: bytes = msgpack.packb([entry.proof, list(entry.receipts.values())])
        write_atomically(self._path(entry, ENTRY), packed)

    def lookup(self, sha256: str) -> Path | None:
        """For the blob service."""
        return self.paths.get(sha256)

    def read(self, sha256: str) -> bytes:
        """The bytes of a contribution that is here."""
        return self.paths[sha256].read_bytes()

    def found(self) -> Iterator[tuple[bytes, list[bytes]]]:
        """(proof, receipts) of every contribution on disk, whose bytes are whole. To be verified again."""
        for path in sorted(self.directory.rglob("*" + ENTRY)):
            blob = path.with_suffix(BLOB)
            try:
                proof, receipts = msgpack.unpackb(path.read_bytes())
                whole = hashlib.sha256(blob.read_bytes()).hexdigest() == path.stem
            except (OSError, ValueError, TypeError, msgpack.UnpackException):
                continue
            if whole:
                self.paths[path.stem] = blob
                yield proof, receipts

    def keep_revocation(self, signed: bytes) -> None:
        """Keep what the operator signed."""
        path = self.directory / "revocations" / hashlib.sha256(signed).hexdigest()
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, signed)

    def revocations(self) -> list[bytes]:
        """What the operator signed, as it was kept."""
        return [path.read_bytes() for path in sorted(self.directory.glob("revocations/*"))]

    def drop(self, part: Part, round: int, keep: str | None = None) -> None:
        """Forget a round of a part, but for one contribution."""
        folder = self.directory / part / str(round)
        for path in sorted(folder.glob("*")):
            if path.stem != keep:
                self.paths.pop(path.stem, None)
                path.unlink(missing_ok=True)
        if keep is None:
            shutil.rmtree(folder, ignore_errors=True)

    def _path(self, entry: Entry, suffix: str) -> Path:
        return self.directory / entry.name.part / str(entry.name.round) / (entry.sha256 + suffix)
