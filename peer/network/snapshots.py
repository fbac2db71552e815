"""Snapshots between peers: served in pieces by everyone who has them, fetched from several peers at once."""

import asyncio
import hashlib
import io
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import grpc

from peer.network.contacts import Contacts
from protocol.atomic import replacing, write_atomically
from protocol.blobs import Slice, fetch
from protocol.channels import handshake, require_manifest
from protocol.errors import FormatError, HetpeerError, ResourceError, UnreachableError
from protocol.history import History
from protocol.identity import Part
from protocol.limits import CALL_SECONDS, CHUNK_BYTES
from protocol.manifest import Manifest
from protocol.reading import Reading
from protocol.records import PeerRecord
from protocol.schemas import snapshots_pb2 as pb
from protocol.schemas import snapshots_pb2_grpc
from protocol.snapshot import HEADER_BYTES, PIECE_BYTES, Header, Values, parse, piece_bytes, pieces_of, tensors_of

SNAPSHOTS_KEPT = 3
"""Of each part the last states: peers are a round or two apart, and a newcomer begins with the last."""

ASKED_KEPT = 2
"""Of each part so many older states stay while somebody goes on to fetch them, those that were begun first: a newcomer
may take more rounds than a few. No peer makes others keep more."""

PARTIAL = ".part"
"""The suffix of a snapshot of which pieces are still missing."""

PIECES_IN_FLIGHT = 2
"""From each peer: the next is on its way while one is checked."""

Failed = Callable[[PeerRecord, HetpeerError], None]
"""A peer did not give what it was asked for: a `PeerError` if it gave something else, and any other if nothing."""
Progress = Callable[[int, int], None]


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
                header = parse(path.read_bytes(), self.manifest)
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
        if _missing(io.BytesIO(data), header, self.manifest):
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
        asked = [each for each in older if self._is_asked_for(each)]
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

    def _is_asked_for(self, header: Header) -> bool:
        _, path = self.headers[header.digest]
        return self.unasked.get(path, SNAPSHOTS_KEPT) < SNAPSHOTS_KEPT

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
        """For the blob service."""
        found = self.pieces.get(sha256)
        if found is not None:
            self.unasked[found.path] = 0
        return found


class SnapshotService(snapshots_pb2_grpc.SnapshotsServicer):
    """Gives out headers."""

    def __init__(self, store: SnapshotStore) -> None:
        self.store = store

    async def Describe(self, request: pb.SnapshotRequest, context: Any) -> AsyncIterator[pb.SnapshotHeader]:
        await require_manifest(context, self.store.manifest)
        found = self.store.headers.get(request.digest)
        if found is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"no snapshot {request.digest[:16]} here")
            return
        data = found[0].to_bytes()
        for start in range(0, len(data), CHUNK_BYTES):
            yield pb.SnapshotHeader(data=data[start : start + CHUNK_BYTES])


@dataclass(slots=True)
class Fetching:
    """A snapshot on its way here. `served` is how many bytes came from each peer."""

    contacts: Contacts
    path: Path
    header: Header
    todo: deque[int]
    total: int
    done: int
    progress: Progress
    failed: Failed
    passed_over: set[str] = field(default_factory=set)
    served: dict[str, int] = field(default_factory=dict)

    async def take_from(self, peer: PeerRecord) -> None:
        """Fetch pieces from one peer until there are none left to fetch, or it fails."""
        manifest = self.contacts.manifest
        while self.todo and peer.peer_id not in self.passed_over:
            index = self.todo.popleft()
            size = piece_bytes(manifest, self.header.part, index)
            try:
                async with self.contacts.to(peer) as channel:
                    data = await fetch(channel, manifest, self.header.pieces[index], size, self.contacts.bandwidth)
                await asyncio.to_thread(_write_piece, self.path, index, data)
            except HetpeerError as error:
                self.todo.append(index)
                if peer.peer_id not in self.passed_over:
                    self.passed_over.add(peer.peer_id)
                    self.failed(peer, error)
                return
            except asyncio.CancelledError:
                self.todo.append(index)
                raise
            self.done += size
            self.served[peer.peer_id] = self.served.get(peer.peer_id, 0) + size
            self.progress(self.done, self.total)


async def fetch_snapshot(
    sources: Sequence[PeerRecord],
    digest: str,
    contacts: Contacts,
    store: SnapshotStore,
    progress: Progress,
    failed: Failed,
) -> Fetching:
    """Fetch the snapshot with this digest from all of `sources` at once; an interrupted fetch goes on where it was.

    A peer that sends something else, or nothing, is told to `failed` and passed over.

    Raises:
        UnreachableError: no source is left, and something is missing.
    """
    header = await _header(sources, digest, contacts, failed)
    path = await asyncio.to_thread(store.begin, header)
    missing = await asyncio.to_thread(_missing_in, path, header, contacts.manifest)
    sizes = [piece_bytes(contacts.manifest, header.part, index) for index in range(len(header.pieces))]
    done = sum(sizes) - sum(sizes[index] for index in missing)
    fetching = Fetching(contacts, path, header, deque(missing), sum(sizes), done, progress, failed)
    while fetching.todo and (good := [peer for peer in sources if peer.peer_id not in fetching.passed_over]):
        async with asyncio.TaskGroup() as tasks:
            for peer in good * PIECES_IN_FLIGHT:
                tasks.create_task(fetching.take_from(peer))
    if fetching.todo:
        raise UnreachableError(
            f"{len(fetching.todo)} of {len(header.pieces)} pieces of the state of {header.part} after round "
            f"{header.round} are missing, and none of {len(sources)} peers has them"
        )
    path.replace(store.path(header.part, header.round))
    await asyncio.to_thread(store.add, header)
    return fetching


async def _header(sources: Sequence[PeerRecord], digest: str, contacts: Contacts, failed: Failed) -> Header:
    """The header, from the first source that has it."""
    for peer in sources:
        try:
            data = b""
            async with asyncio.timeout(CALL_SECONDS), contacts.to(peer) as channel:
                stub = snapshots_pb2_grpc.SnapshotsStub(channel)
                request = pb.SnapshotRequest(digest=digest)
                async for chunk in stub.Describe(request, metadata=handshake(contacts.manifest)):
                    data += chunk.data
                    if len(data) > HEADER_BYTES:
                        raise FormatError(f"a snapshot's header longer than {HEADER_BYTES} bytes")
            if hashlib.sha256(data).hexdigest() != digest:
                raise FormatError("it sent another snapshot's header than it announced")
            return parse(data, contacts.manifest)
        except HetpeerError as error:
            failed(peer, error)
        except TimeoutError:
            failed(peer, UnreachableError(f"no answer in {CALL_SECONDS:.0f} s"))
    raise UnreachableError(f"none of {len(sources)} peers gave the header of snapshot {digest[:16]}")


def _missing_in(path: Path, header: Header, manifest: Manifest) -> list[int]:
    with path.open("rb") as file:
        return _missing(file, header, manifest)


def _missing(file: BinaryIO, header: Header, manifest: Manifest) -> list[int]:
    """Pieces that are not in a file yet, or not whole."""
    missing = []
    for index, sha256 in enumerate(header.pieces):
        file.seek(index * PIECE_BYTES)
        if hashlib.sha256(file.read(piece_bytes(manifest, header.part, index))).hexdigest() != sha256:
            missing.append(index)
    return missing


def _write_piece(path: Path, index: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(index * PIECE_BYTES)
        file.write(data)
