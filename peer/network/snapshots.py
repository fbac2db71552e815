"""Snapshots between peers: served in pieces by everyone who has them, fetched from several peers at once."""

import asyncio
import hashlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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
from protocol.records import PeerRecord
from protocol.schemas import snapshots_pb2 as pb
from protocol.schemas import snapshots_pb2_grpc
from protocol.snapshot import HEADER_BYTES, PIECE_BYTES, Header, Values, parse, piece_bytes, pieces_of, tensors_of

SNAPSHOTS_KEPT = 3
"""Of each part: a newcomer may take a few rounds to fetch one."""

PIECES_IN_FLIGHT = 2
"""From each peer: the next is on its way while one is checked."""

Distrust = Callable[[PeerRecord, str], None]
Progress = Callable[[int, int], None]


@dataclass(slots=True)
class SnapshotStore:
    """The snapshots on this peer's disk: files of bare bytes, and their headers."""

    directory: Path
    manifest: Manifest
    headers: dict[str, tuple[Header, Path]] = field(default_factory=dict)
    pieces: dict[str, Slice] = field(default_factory=dict)

    def path(self, part: Part, round: int) -> Path:
        """Where the bytes of a state are, or belong."""
        return self.directory / f"{part}-{round:08d}.grid"

    def write(self, part: Part, round: int, history: History, tensors: Iterable[Values]) -> Header:
        """Keep a state, durably, and serve it."""
        self.directory.mkdir(parents=True, exist_ok=True)
        hashes = []
        with replacing(self.path(part, round)) as file:
            for piece in pieces_of(tensors):
                hashes.append(hashlib.sha256(piece).hexdigest())
                file.write(piece)
        header = Header(part, round, history.copy(), tuple(hashes))
        self.add(header)
        return header

    def newest(self, part: Part) -> tuple[Header, dict[str, Values]] | None:
        """The last state of a part on this disk that is whole."""
        for path in sorted(self.directory.glob(f"{part}-*.header"), reverse=True):
            try:
                header = parse(path.read_bytes(), self.manifest)
                found = self.read(header)
            except (OSError, HetpeerError):
                continue
            if path.stem == self.path(part, header.round).stem:
                return header, found
        return None

    def read(self, header: Header) -> dict[str, Values]:
        """The tensors of a state, checked piece by piece.

        Raises:
            FormatError: the file is damaged.
            ResourceError: it cannot be read.
        """
        path = self.path(header.part, header.round)
        try:
            if _missing(path, header, self.manifest):
                raise FormatError(f"{path} is damaged")
            return tensors_of(path.read_bytes(), self.manifest, header.part)
        except OSError as error:
            raise ResourceError(f"cannot read {path}: {error.strerror}") from None

    def add(self, header: Header) -> None:
        """Serve a snapshot whose bytes are in place; drop those of rounds long past."""
        path = self.path(header.part, header.round)
        write_atomically(path.with_suffix(".header"), header.to_bytes())
        self.headers[header.digest] = header, path
        for index, sha256 in enumerate(header.pieces):
            size = piece_bytes(self.manifest, header.part, index)
            self.pieces[sha256] = Slice(path, index * PIECE_BYTES, size)
        mine = sorted((each.round, digest) for digest, (each, _) in self.headers.items() if each.part == header.part)
        for _, digest in mine[:-SNAPSHOTS_KEPT]:
            self._drop(digest)

    def _drop(self, digest: str) -> None:
        header, path = self.headers.pop(digest)
        for sha256 in header.pieces:
            if sha256 in self.pieces and self.pieces[sha256].path == path:
                del self.pieces[sha256]
        path.unlink(missing_ok=True)
        path.with_suffix(".header").unlink(missing_ok=True)

    def lookup(self, sha256: str) -> Slice | None:
        """For the blob service."""
        return self.pieces.get(sha256)


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
    progress: Progress
    distrust: Distrust
    failed: set[str] = field(default_factory=set)
    done: int = 0
    served: dict[str, int] = field(default_factory=dict)

    async def take_from(self, peer: PeerRecord) -> None:
        """Fetch pieces from one peer until there are none left to fetch, or it fails."""
        manifest = self.contacts.manifest
        while self.todo and peer.peer_id not in self.failed:
            index = self.todo.popleft()
            size = piece_bytes(manifest, self.header.part, index)
            try:
                async with self.contacts.to(peer.address) as channel:
                    data = await fetch(channel, manifest, self.header.pieces[index], size)
                await asyncio.to_thread(_write_piece, self.path, index, data)
            except HetpeerError as error:
                self.todo.append(index)
                if peer.peer_id not in self.failed:
                    self.failed.add(peer.peer_id)
                    self.distrust(peer, str(error))
                return
            except asyncio.CancelledError:
                self.todo.append(index)
                raise
            self.done += size
            self.served[peer.peer_id] = self.served.get(peer.peer_id, 0) + size
            self.progress(self.done, self._total())

    def _total(self) -> int:
        return sum(piece_bytes(self.contacts.manifest, self.header.part, i) for i in range(len(self.header.pieces)))


async def fetch_snapshot(
    sources: Sequence[PeerRecord],
    digest: str,
    contacts: Contacts,
    store: SnapshotStore,
    progress: Progress,
    distrust: Distrust,
) -> Fetching:
    """Fetch the snapshot with this digest from all of `sources` at once; an interrupted fetch goes on where it was.

    A peer that sends something else, or nothing, is told to `distrust` and passed over.

    Raises:
        UnreachableError: no source is left, and something is missing.
    """
    header = await _header(sources, digest, contacts, distrust)
    path = store.path(header.part, header.round).with_suffix(".part")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    missing = await asyncio.to_thread(_missing, path, header, contacts.manifest)
    fetching = Fetching(contacts, path, header, deque(missing), progress, distrust)
    fetching.done = fetching._total() - sum(piece_bytes(contacts.manifest, header.part, each) for each in missing)
    while fetching.todo and (good := [peer for peer in sources if peer.peer_id not in fetching.failed]):
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


async def _header(sources: Sequence[PeerRecord], digest: str, contacts: Contacts, distrust: Distrust) -> Header:
    """The header, from the first source that has it."""
    for peer in sources:
        try:
            data = b""
            async with asyncio.timeout(CALL_SECONDS), contacts.to(peer.address) as channel:
                stub = snapshots_pb2_grpc.SnapshotsStub(channel)
                request = pb.SnapshotRequest(digest=digest)
                async for chunk in stub.Describe(request, metadata=handshake(contacts.manifest)):
                    data += chunk.data
                    if len(data) > HEADER_BYTES:
                        raise FormatError(f"a snapshot's header longer than {HEADER_BYTES} bytes")
            if hashlib.sha256(data).hexdigest() != digest:
                raise FormatError("it sent another snapshot's header than it announced")
            return parse(data, contacts.manifest)
        except (HetpeerError, TimeoutError) as error:
            distrust(peer, str(error) or "no answer in time")
    raise UnreachableError(f"none of {len(sources)} peers gave the header of snapshot {digest[:16]}")


def _missing(path: Path, header: Header, manifest: Manifest) -> list[int]:
    """Pieces that are not in a file yet, or not whole."""
    missing = []
    with path.open("rb") as file:
        for index, sha256 in enumerate(header.pieces):
            file.seek(index * PIECE_BYTES)
            if hashlib.sha256(file.read(piece_bytes(manifest, header.part, index))).hexdigest() != sha256:
                missing.append(index)
    return missing


def _write_piece(path: Path, index: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(index * PIECE_BYTES)
        file.write(data)
