"""Snapshots between peers: served by everyone who has them, fetched from several donors at once, piece by piece."""

import asyncio
import hashlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from peer.network.blob_fetcher import FetchAttempt
from peer.network.contacts import Contacts
from peer.network.wanted import LAG_BYTES_PER_SECOND, LAG_SECONDS
from peer.store.served import SnapshotStore, missing_pieces
from protocol.codec.snapshot import HEADER_BYTES, PIECE_BYTES, Header, parse_header, piece_bytes
from protocol.errors import FormatError, HetpeerError, UnreachableError
from protocol.files import open_regular
from protocol.identity import PeerId
from protocol.limits import CHUNK_BYTES
from protocol.manifest import Manifest
from protocol.net.channels import handshake, require_manifest
from protocol.net.guard import charge
from protocol.net.tasks import Children
from protocol.patience import CALL_SECONDS
from protocol.schemas import snapshots_pb2 as pb
from protocol.schemas import snapshots_pb2_grpc
from protocol.trust.records import PeerRecord

PIECES_IN_FLIGHT = 2
"""The pieces under way from each peer: the next is on its way while one is checked."""

OnFailure = Callable[[PeerRecord, HetpeerError], None]
"""A function that is told of a peer that did not give what it was asked for: a `PeerError` if it gave something else,
any other error if nothing."""
TransferProgress = Callable[[int, int], None]


@dataclass(slots=True)
class Fetching:
    """A snapshot on its way here. `served` is the number of bytes that came from each peer."""

    contacts: Contacts
    path: Path
    header: Header
    todo: deque[int]
    total: int
    done: int
    progress: TransferProgress
    failed: OnFailure
    passed_over: set[str] = field(default_factory=set)
    flying: dict[int, list[FetchAttempt]] = field(default_factory=dict)
    """The attempts to fetch each of the pieces that are on their way."""
    served: dict[str, int] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """Whether every piece is here."""
        return not self.todo and not self.flying

    def wants(self, peer: PeerId) -> bool:
        """Whether there is a piece to ask a peer for."""
        return peer not in self.passed_over and bool(self.todo or self._slow(peer) is not None)

    def _next(self, peer: PeerId) -> int | None:
        """Choose the piece to ask a peer for; None: there is none."""
        return self.todo.popleft() if self.todo else self._slow(peer)

    def _slow(self, peer: PeerId) -> int | None:
        """Find a piece that comes too slowly from others, and that a peer may give instead; None: there is none."""
        now = asyncio.get_running_loop().time()
        for index, attempts in self.flying.items():
            if peer not in {attempt.source for attempt in attempts} and all(
                attempt.lags(now, LAG_BYTES_PER_SECOND) for attempt in attempts
            ):
                return index
        return None

    async def take_from(self, peer: PeerRecord) -> None:
        """Fetch pieces from one peer until there are none left to fetch, or it fails."""
        manifest = self.contacts.manifest
        while peer.peer_id not in self.passed_over and (index := self._next(peer.peer_id)) is not None:
            size = piece_bytes(manifest, self.header.part, index)
            attempt = FetchAttempt(peer.peer_id)
            self.flying.setdefault(index, []).append(attempt)
            try:
                data = await self.contacts.fetch(peer, self.header.pieces[index], size, attempt.patience)
                if index not in self.flying:  # another was quicker
                    continue
                await asyncio.to_thread(_write_piece, self.path, index, data)
            except HetpeerError as error:
                self._give_back(index, attempt)
                if peer.peer_id not in self.passed_over:
                    self.passed_over.add(peer.peer_id)
                    self.failed(peer, error)
                return
            except asyncio.CancelledError:
                self._give_back(index, attempt)
                raise
            if self.flying.pop(index, None) is not None:
                self.done += size
                self.served[peer.peer_id] = self.served.get(peer.peer_id, 0) + size
                self.progress(self.done, self.total)

    def _give_back(self, index: int, attempt: FetchAttempt) -> None:
        """Give back a piece that has not come from a peer: it is to be fetched, unless another gives it."""
        if index in self.flying:
            self.flying[index].remove(attempt)
            if not self.flying[index]:
                del self.flying[index]
                self.todo.append(index)


async def fetch_snapshot(
    sources: Sequence[PeerRecord],
    digest: str,
    contacts: Contacts,
    store: SnapshotStore,
    progress: TransferProgress,
    failed: OnFailure,
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
        await _from_all(good, fetching)
    if fetching.todo:
        raise UnreachableError(
            f"{len(fetching.todo)} of {len(header.pieces)} pieces of the state of {header.part} after round "
            f"{header.round} are missing, and none of {len(sources)} peers has them"
        )
    path.replace(store.path(header.part, header.round))
    await asyncio.to_thread(store.add, header)
    return fetching


async def _from_all(sources: Sequence[PeerRecord], fetching: Fetching) -> None:
    """Fetch from all sources at once, until every piece is here, or none of them gives any. A slow source keeps nobody
    when the others have given what they were asked for."""
    async with Children() as children:
        taking = {children.spawn(fetching.take_from(peer)): peer for peer in [*sources] * PIECES_IN_FLIGHT}
        while taking and not fetching.complete:
            await asyncio.wait(taking, timeout=LAG_SECONDS / 8, return_when=asyncio.FIRST_COMPLETED)
            for task in [task for task in taking if task.done()]:
                del taking[task]
                task.result()
            for peer in sources:  # who has nothing to do may have a slow one's piece
                if taking and peer not in taking.values() and fetching.wants(peer.peer_id):
                    taking[children.spawn(fetching.take_from(peer))] = peer


async def _header(sources: Sequence[PeerRecord], digest: str, contacts: Contacts, failed: OnFailure) -> Header:
    """Fetch the header, from the first source that has it."""
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
            return parse_header(data, contacts.manifest)
        except HetpeerError as error:
            failed(peer, error)
        except TimeoutError:
            failed(peer, UnreachableError(f"no answer in {CALL_SECONDS:.0f} s"))
    raise UnreachableError(f"none of {len(sources)} peers gave the header of snapshot {digest[:16]}")


def _missing_in(path: Path, header: Header, manifest: Manifest) -> list[int]:
    with path.open("rb") as file:
        return missing_pieces(file, header, manifest)


def _write_piece(path: Path, index: int, data: bytes) -> None:
    with open(path, "r+b", opener=open_regular) as file:
        file.seek(index * PIECE_BYTES)
        file.write(data)


class SnapshotService(snapshots_pb2_grpc.SnapshotsServicer):
    """The service that gives out headers of snapshots."""

    def __init__(self, store: SnapshotStore) -> None:
        self.store = store

    async def Describe(self, request: pb.SnapshotRequest, context: Any) -> AsyncIterator[pb.SnapshotHeader]:
        await require_manifest(context, self.store.manifest)
        found = self.store.headers.get(request.digest)
        if found is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"no snapshot {request.digest[:16]} here")
            return
        data = found[0].to_bytes()
        await charge(context, len(data) / CHUNK_BYTES, f"a header of {len(data)} bytes")
        for start in range(0, len(data), CHUNK_BYTES):
            yield pb.SnapshotHeader(data=data[start : start + CHUNK_BYTES])
