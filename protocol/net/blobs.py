"""Content-addressed bytes over gRPC: the run's files and contributions, served by whoever has them."""

import asyncio
import hashlib
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from protocol.errors import FormatError, ResourceError, UnreachableError
from protocol.files import open_regular
from protocol.identity import PeerId
from protocol.limits import CHUNK_BYTES, FLOOR_BYTES_PER_SECOND, SERVED, SERVED_TO_FEW, SERVED_TO_ONE, STALL_SECONDS
from protocol.manifest import Manifest
from protocol.net.allowances import Places
from protocol.net.bandwidth import Bandwidth
from protocol.net.channels import EOF, caller, handshake, refuse, require_manifest
from protocol.run.run_files import RunFile, check_file
from protocol.schemas import blobs_pb2 as pb
from protocol.schemas import blobs_pb2_grpc


@dataclass(frozen=True, slots=True)
class Slice:
    """A range of bytes of a file. A negative `offset` counts from the file's end: there its bytes stay while what
    precedes them grows, as the file is replaced."""

    path: Path
    offset: int
    size: int


Blob = bytes | Path | Slice
Lookup = Callable[[str], Blob | None]
"""A function from a SHA-256 to the bytes, the file, or the range of a file that holds them; None: they are not here."""


class BlobService(blobs_pb2_grpc.BlobsServicer):
    """The service that gives out the blobs that `lookup` finds, as fast as `bandwidth` lets it, and counts the bytes
    that it sends of those whose SHA-256 is `counted`."""

    def __init__(
        self,
        manifest: Manifest,
        lookup: Lookup,
        bandwidth: Bandwidth | None = None,
        counted: Callable[[str], bool] = lambda sha256: True,
    ) -> None:
        self.manifest = manifest
        self.lookup = lookup
        self.bandwidth = bandwidth or Bandwidth()
        self.counted = counted
        self.bytes_sent = 0
        self.serving: Places[PeerId] = Places(SERVED_TO_ONE, SERVED, SERVED_TO_FEW)
        """The blobs that are on their way to each peer."""

    async def Fetch(self, request: pb.FetchRequest, context: Any) -> AsyncIterator[pb.Chunk]:
        await require_manifest(context, self.manifest)
        blob, who = self.lookup(request.sha256), caller(context).peer
        if blob is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"no blob {request.sha256[:16]} here")
            return
        if not self.serving.take(who):
            await refuse(context, "too many blobs are on their way from here: wait a moment")
        try:
            is_counted = self.counted(request.sha256)
            async for data in _chunks(blob, request.offset, request.length, lambda: self.bandwidth.up.piece):
                await self.bandwidth.send(len(data))
                self.bytes_sent += len(data) if is_counted else 0
                yield pb.Chunk(data=data)
        except OSError:  # it has been dropped since, or the disk fails
            await context.abort(grpc.StatusCode.NOT_FOUND, f"blob {request.sha256[:16]} cannot be read here")
        finally:
            self.serving.give_back(who)


async def _chunks(blob: Blob, offset: int, length: int, piece: Callable[[], int]) -> AsyncIterator[bytes]:
    """Read `length` bytes of a blob from `offset` on (0: all of them), each time as many as `piece` says."""
    if isinstance(blob, bytes):
        end = min(len(blob), offset + length) if length else len(blob)
        while data := blob[offset : min(end, offset + piece())]:
            offset += len(data)
            yield data
        return
    path, start, size = (blob.path, blob.offset, blob.size) if isinstance(blob, Slice) else (blob, 0, None)
    with path.open("rb") as file:
        file_bytes = os.fstat(file.fileno()).st_size
        bytes_left = max(0, (file_bytes if size is None else size) - offset)
        bytes_left = min(bytes_left, length) if length else bytes_left
        file.seek((start if start >= 0 else file_bytes + start) + offset if bytes_left else 0)
        while data := await asyncio.to_thread(file.read, min(bytes_left, piece())):
            bytes_left -= len(data)
            yield data


@dataclass(slots=True)
class Patience:
    """The patience with one source: how long this peer has waited for it, and what came. Waits for this peer's own
    turns are not counted."""

    waited: float = 0.0
    received: int = 0
    behind: float = 0.0
    """The seconds by which the source is behind `FLOOR_BYTES_PER_SECOND`; being ahead is not saved up."""
    since: float | None = None
    """The time when the present wait began, by the loop's clock; None: nothing is waited for."""
    deadline: asyncio.Timeout | None = None
    """The deadline of the present wait."""

    def total(self, now: float) -> float:
        """The seconds that the source was waited for until `now`."""
        return self.waited + (now - self.since if self.since is not None else 0.0)

    async def wait_for(self, call: Any) -> Any:
        """Wait for the next chunk of a call, or its end: for `STALL_SECONDS` at most, less what the source is behind.

        Raises:
            UnreachableError: the source is too slow.
        """
        clock = asyncio.get_running_loop().time
        self.since = started = clock()
        try:
            async with asyncio.timeout(max(0.0, STALL_SECONDS - self.behind)) as self.deadline:
                return await call.read()
        except TimeoutError:
            raise UnreachableError(f"too slow: {self.received} bytes in {self.total(clock()):.0f} s") from None
        finally:
            self.since = self.deadline = None
            self.waited += clock() - started
            self.behind += clock() - started

    def give_up(self) -> None:
        """Wait no longer for the source."""
        self.behind = STALL_SECONDS
        if self.deadline is not None:
            self.deadline.reschedule(asyncio.get_running_loop().time())

    def came(self, count: int) -> None:
        """Note that `count` bytes have come."""
        self.received += count
        self.behind = max(0.0, self.behind - count / FLOOR_BYTES_PER_SECOND)


async def fetch(
    channel: grpc.aio.Channel,
    manifest: Manifest,
    sha256: str,
    size: int,
    bandwidth: Bandwidth | None = None,
    patience: Patience | None = None,
) -> bytes:
    """Fetch a blob, whose size was checked against a bound before, as fast as `bandwidth` lets it come.

    Raises:
        FormatError: what came is not the blob: too long, too short, or another hash.
        UnreachableError: its source is too slow.
    """
    pieces: list[bytes] = []
    received = 0
    async for data in _stream(channel, manifest, sha256, range(size), bandwidth, patience or Patience()):
        received += len(data)
        if received > size:
            raise FormatError(f"blob {sha256[:16]} is longer than the {size} bytes announced")
        pieces.append(data)
    blob = b"".join(pieces)
    if len(blob) != size or hashlib.sha256(blob).hexdigest() != sha256:
        raise FormatError(f"blob {sha256[:16]} arrived with other bytes than announced")
    return blob


async def fetch_file(
    channel: grpc.aio.Channel,
    manifest: Manifest,
    file: RunFile,
    directory: Path,
    progress: Callable[[int], None],
    bandwidth: Bandwidth | None = None,
) -> Path:
    """Fetch one of the run's files into `directory`; an interrupted fetch goes on where it was.

    `progress` is told the bytes there are.

    Raises:
        FormatError: what came is not the file that the run's id pins.
        ResourceError: it cannot be written here.
    """
    path = directory / file.name
    partial = directory / (file.name + ".part")
    if await asyncio.to_thread(is_file, path, file):
        progress(file.size)
        return path
    received = min(partial.stat().st_size, file.size) if partial.exists() else 0
    try:
        with os.fdopen(open_regular(partial, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "ab") as out:
            out.truncate(received)
            async for data in _stream(
                channel, manifest, file.sha256, range(received, file.size), bandwidth, Patience()
            ):
                received += len(data)
                if received > file.size:
                    raise FormatError(f"{file.name} is longer than the {file.size} bytes that the run's id pins")
                out.write(data)
                progress(received)
            out.flush()
            os.fsync(out.fileno())
        await asyncio.to_thread(check_file, partial, file)
        partial.rename(path)
    except OSError as error:
        raise ResourceError(f"cannot write {path}: {error.strerror}") from None
    except FormatError:
        partial.unlink()
        raise
    return path


def is_file(path: Path, file: RunFile) -> bool:
    """Whether `path` is there and holds exactly this file of the run."""
    try:
        check_file(path, file)
    except (FormatError, ResourceError):
        return False
    return True


async def _stream(
    channel: grpc.aio.Channel,
    manifest: Manifest,
    sha256: str,
    wanted: range,
    bandwidth: Bandwidth | None,
    patience: Patience,
) -> AsyncIterator[bytes]:
    """Stream the bytes of a blob in `wanted`, in one answer. More bytes than these may come: whoever reads them checks.
    Each chunk has taken its turn before it is read, and the first before it is asked for.

    While inner steps run, in an answer for each stretch, all of which has taken its turn before it is asked for: then
    nothing else is on its way, whatever the sender does.
    """
    stub, line = blobs_pb2_grpc.BlobsStub(channel), bandwidth or Bandwidth()
    at, paid = wanted.start, 0
    while at < wanted.stop:
        length = min(line.down.stretch, wanted.stop - at)  # 0: all that is left
        end = at + length
        paid += await take_turns(line, (length or min(CHUNK_BYTES, wanted.stop - at)) - paid)
        request = pb.FetchRequest(sha256=sha256, offset=at, length=length)
        call = stub.Fetch(request, metadata=handshake(manifest), wait_for_ready=False)
        async with aclosing(_answer(call, patience)) as answer:
            async for data in answer:
                at, paid = at + len(data), paid - len(data)
                if length and at > end:
                    raise FormatError(f"more came than the {length} bytes of blob {sha256[:16]} that were asked for")
                yield data
                if not length:
                    if line.down.stepping:
                        break  # the rest in stretches
                    paid += await take_turns(line, min(len(data), wanted.stop - at) - paid)
            else:
                if not length or at < end:  # the blob has no more
                    return


async def take_turns(line: Bandwidth, count: int) -> int:
    """Wait for the turns of `count` bytes of bulk that come in. Returns how many were waited for, 0 at least."""
    paid = 0
    while paid < count:
        turn = min(count - paid, line.down.piece)
        await line.take(turn)
        paid += turn
    return paid


async def _answer(call: Any, patience: Patience) -> AsyncGenerator[bytes]:
    """Stream the chunks of a call, which is cancelled if they are not read to their end."""
    try:
        while (chunk := await patience.wait_for(call)) is not EOF:
            if not 0 < len(chunk.data) <= CHUNK_BYTES:  # with empty ones it could go on for ever
                raise FormatError(f"a chunk of {len(chunk.data)} bytes, where 1 to {CHUNK_BYTES} are allowed")
            patience.came(len(chunk.data))
            yield chunk.data
    finally:
        call.cancel()
