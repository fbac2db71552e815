"""Blobs over real sockets: whole, resumed, or refused."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import grpc
import pytest

import protocol.net.bandwidth
from protocol.errors import FormatError, RefusedError
from protocol.limits import CHUNK_BYTES, SERVED_TO_ONE
from protocol.net.bandwidth import Bandwidth
from protocol.net.blobs import Blob, BlobService, Slice, fetch, fetch_file
from protocol.net.channels import connect, handshake, listen, options
from protocol.run.run_files import RunFile
from protocol.schemas import blobs_pb2 as pb
from protocol.schemas import blobs_pb2_grpc
from tests.reference.admitted import credentials, identity, there
from tests.reference.small_manifest import small_manifest

MANIFEST = small_manifest()
DATA = bytes(range(256)) * (CHUNK_BYTES // 256) * 2 + b"the end"
SHA256 = hashlib.sha256(DATA).hexdigest()


Service = TypeVar("Service", bound=blobs_pb2_grpc.BlobsServicer)


def with_service(service: Service, scene: Callable[[grpc.aio.Channel], Awaitable[object]]) -> tuple[object, Service]:
    """Run a scene against a server of this service."""

    async def run() -> tuple[object, Service]:
        server = grpc.aio.server(options=options(MANIFEST))
        blobs_pb2_grpc.add_BlobsServicer_to_server(service, server)
        address = f"127.0.0.1:{listen(server, '127.0.0.1:0', credentials('server').serving())}"
        await server.start()
        try:
            async with connect(there("server", address), MANIFEST, credentials("caller")) as channel:
                return await scene(channel), service
        finally:
            await server.stop(None)

    return asyncio.run(run())


def with_server(
    blobs: dict[str, Blob], scene: Callable[[grpc.aio.Channel], Awaitable[object]], line: Bandwidth | None = None
) -> tuple[object, BlobService]:
    """Run a scene against a server that has these blobs."""
    return with_service(BlobService(MANIFEST, blobs.get, line), scene)


@pytest.mark.parametrize("on_disk", [False, True])
def test_a_blob_of_many_chunks_arrives_whole_and_is_counted(tmp_path: Path, on_disk: bool):
    (tmp_path / "blob").write_bytes(DATA)
    blobs: dict[str, Blob] = {SHA256: tmp_path / "blob" if on_disk else DATA}
    got, service = with_server(blobs, lambda channel: fetch(channel, MANIFEST, SHA256, len(DATA)))
    assert got == DATA
    assert service.bytes_sent == len(DATA)


def test_what_is_no_contribution_is_sent_and_not_counted_as_one():
    state = b"the state that a newcomer fetches" * 100
    other = hashlib.sha256(state).hexdigest()
    blobs: dict[str, Blob] = {SHA256: DATA, other: state}

    async def scene(channel: grpc.aio.Channel) -> list[bytes]:
        return [await fetch(channel, MANIFEST, sha256, len(data)) for sha256, data in ((SHA256, DATA), (other, state))]

    got, service = with_service(BlobService(MANIFEST, blobs.get, counted=SHA256.__eq__), scene)
    assert got == [DATA, state]
    assert service.bytes_sent == len(DATA)


@dataclass(slots=True)
class Counting(Bandwidth):
    """How much took its turn, in which direction."""

    turns: list[tuple[str, int]] = field(default_factory=list)

    async def send(self, count: int) -> None:
        self.turns.append(("send", count))

    async def take(self, count: int) -> None:
        self.turns.append(("take", count))


def test_every_chunk_takes_its_turn_at_both_ends_before_it_moves():
    for whole, chunks in ((len(DATA), 3), (1000, 1)):
        line, data = Counting(), DATA[:whole]
        sha256 = hashlib.sha256(data).hexdigest()

        def scene(channel: grpc.aio.Channel, line=line, data=data, sha256=sha256):
            return fetch(channel, MANIFEST, sha256, len(data), line)

        got, _ = with_server({sha256: data}, scene, line)
        assert got == data
        assert line.turns[0][0] == "take"  # before anything was asked for
        for way in ("send", "take"):
            assert sum(count for what, count in line.turns if what == way) == whole
        assert len([what for what, _ in line.turns if what == "send"]) == chunks


def test_on_a_slow_line_chunks_are_shorter_and_the_blob_is_whole():
    line = Bandwidth.of(40, 40)
    assert line.up.piece < CHUNK_BYTES
    got, service = with_server({SHA256: DATA}, lambda channel: fetch(channel, MANIFEST, SHA256, len(DATA), line), line)
    assert got == DATA
    assert service.bytes_sent == len(DATA)


@pytest.mark.parametrize(
    ("served", "size", "words"),
    [
        (DATA[:-1], len(DATA), "other bytes than announced"),
        (DATA[:-1] + b"!", len(DATA), "other bytes than announced"),
        (DATA, len(DATA) - 1, "longer than"),
        (DATA * 3, len(DATA), "longer than"),
    ],
    ids=["too short", "another hash", "longer than announced", "much longer"],
)
def test_other_bytes_than_announced_are_refused(served: bytes, size: int, words: str):
    with pytest.raises(FormatError, match=words):
        with_server({SHA256: served}, lambda channel: fetch(channel, MANIFEST, SHA256, size))


def test_to_one_peer_so_many_blobs_are_sent_at_once():
    async def scene(channel: grpc.aio.Channel) -> None:
        stub, who = blobs_pb2_grpc.BlobsStub(channel), identity("caller").peer_id
        assert service.serving.take(who, SERVED_TO_ONE)  # they take what they asked for slowly
        with pytest.raises(grpc.aio.AioRpcError, match="too many blobs"):
            await stub.Fetch(pb.FetchRequest(sha256=SHA256), metadata=handshake(MANIFEST)).read()
        service.serving.give_back(who)
        assert await fetch(channel, MANIFEST, SHA256, len(DATA)) == DATA
        assert service.serving.total == SERVED_TO_ONE - 1

    service = BlobService(MANIFEST, {SHA256: DATA}.get)
    with_service(service, scene)


def test_a_blob_that_is_not_there():
    with pytest.raises(RefusedError, match="no blob"):
        with_server({}, lambda channel: fetch(channel, MANIFEST, SHA256, len(DATA)))


FILE = RunFile("train.bin", SHA256, len(DATA))


def test_a_file_is_fetched_once(tmp_path: Path):
    told: list[int] = []
    sent = []
    for _ in range(2):
        path, service = with_server({SHA256: DATA}, lambda c: fetch_file(c, MANIFEST, FILE, tmp_path, told.append))
        assert path == tmp_path / "train.bin"
        sent.append(service.bytes_sent)
    assert sent == [len(DATA), 0]
    assert told[-1] == len(DATA)
    assert (tmp_path / "train.bin").read_bytes() == DATA


def test_an_interrupted_file_goes_on_where_it_was(tmp_path: Path):
    (tmp_path / "train.bin.part").write_bytes(DATA[: CHUNK_BYTES + 5])
    path, service = with_server({SHA256: DATA}, lambda c: fetch_file(c, MANIFEST, FILE, tmp_path, lambda _: None))
    assert isinstance(path, Path)
    assert path.read_bytes() == DATA
    assert service.bytes_sent == len(DATA) - CHUNK_BYTES - 5


@pytest.mark.parametrize("served", [DATA[:-1], DATA + b"!", b"\0" * len(DATA)])
def test_a_wrong_file_is_never_kept(tmp_path: Path, served: bytes):
    with pytest.raises(FormatError):
        with_server({SHA256: served}, lambda c: fetch_file(c, MANIFEST, FILE, tmp_path, lambda _: None))
    assert list(tmp_path.iterdir()) == []


# While inner steps run


class Asked(BlobService):
    """Serves one blob, and notes what it was asked for."""

    def __init__(self, blob: Blob) -> None:
        super().__init__(MANIFEST, {SHA256: blob}.get)
        self.requests: list[tuple[int, int]] = []

    async def Fetch(self, request: pb.FetchRequest, context: Any) -> AsyncIterator[pb.Chunk]:
        self.requests.append((request.offset, request.length))
        async for chunk in super().Fetch(request, context):
            yield chunk


@dataclass(slots=True, kw_only=True)
class Watched(Bandwidth):
    """Of a receiver. Each time that bytes have taken their turn, notes how far ahead of those before the server is, and
    calls `then`."""

    service: BlobService
    then: Callable[["Watched"], None] = lambda _: None
    paid: int = 0
    ahead: list[int] = field(default_factory=list)

    async def take(self, count: int) -> None:
        await Bandwidth.take(self, count)
        self.ahead.append(self.service.bytes_sent - self.paid)
        self.paid += count
        self.then(self)


@pytest.fixture
def stretch(monkeypatch: pytest.MonkeyPatch) -> int:
    """What is asked for at a time while steps run. Bulk goes at 8 Mb/s then, so that tests are short."""
    monkeypatch.setattr(protocol.net.bandwidth, "SPREAD_MEGABITS", 8.0)
    return 50_000


def stretches(begin: int, end: int, stretch: int) -> list[tuple[int, int]]:
    """The requests, one after the other."""
    return [(at, min(stretch, end - at)) for at in range(begin, end, stretch)]


def fetching(line: Bandwidth, stepping: bool) -> Callable[[grpc.aio.Channel], Awaitable[bytes]]:
    """A scene: fetch the blob, while steps run or not."""

    async def scene(channel: grpc.aio.Channel) -> bytes:
        if stepping:
            line.begin_steps()
        return await fetch(channel, MANIFEST, SHA256, len(DATA), line)

    return scene


@pytest.mark.parametrize("where", ["in memory", "in a file", "in a part of a file", "at a file's end"])
def test_while_steps_run_nothing_is_sent_before_it_has_taken_its_turn(tmp_path: Path, stretch: int, where: str):
    (tmp_path / "blob").write_bytes(DATA)
    (tmp_path / "blobs").write_bytes(b"before" + DATA + b"behind")
    (tmp_path / "last").write_bytes(b"before" + DATA)
    whole, part = tmp_path / "blob", Slice(tmp_path / "blobs", len(b"before"), len(DATA))
    last = Slice(tmp_path / "last", -len(DATA), len(DATA))
    blobs = {"in memory": DATA, "in a file": whole, "in a part of a file": part, "at a file's end": last}
    service = Asked(blobs[where])
    line = Watched(service=service)
    got, _ = with_service(service, fetching(line, stepping=True))
    assert got == DATA
    assert service.requests == stretches(0, len(DATA), stretch)
    assert line.ahead == [0] * len(service.requests)
    assert service.bytes_sent == line.paid == len(DATA)


def test_while_none_run_one_answer_is_enough():
    service = Asked(DATA)
    got, _ = with_service(service, fetching(Bandwidth(), stepping=False))
    assert got == DATA
    assert service.requests == [(0, 0)]


def test_steps_that_begin_in_the_middle_end_the_answer_and_the_rest_comes_in_stretches(stretch: int):
    service = Asked(DATA)
    line = Watched(service=service, then=lambda line: line.begin_steps() if line.paid == 2 * CHUNK_BYTES else None)
    got, _ = with_service(service, fetching(line, stepping=False))
    assert got == DATA
    assert service.requests[0] == (0, 0)
    begin = service.requests[1][0]
    assert begin in (CHUNK_BYTES, 2 * CHUNK_BYTES)
    assert service.requests[1:] == stretches(begin, len(DATA), stretch)
    assert line.paid == len(DATA)


def test_steps_that_end_in_the_middle_let_the_rest_come_at_once(stretch: int):
    service = Asked(DATA)
    line = Watched(service=service, then=lambda line: line.end_steps() if line.paid == 3 * stretch else None)
    got, _ = with_service(service, fetching(line, stepping=True))
    assert got == DATA
    assert service.requests == [*stretches(0, 3 * stretch, stretch), (3 * stretch, 0)]
    assert line.paid == len(DATA)


@pytest.mark.usefixtures("stretch")
def test_an_interrupted_file_goes_on_where_it_was_while_steps_run(tmp_path: Path):
    (tmp_path / "train.bin.part").write_bytes(DATA[: CHUNK_BYTES + 5])
    line, service = Bandwidth(), Asked(DATA)

    async def scene(channel: grpc.aio.Channel) -> Path:
        line.begin_steps()
        return await fetch_file(channel, MANIFEST, FILE, tmp_path, lambda _: None, line)

    path, _ = with_service(service, scene)
    assert isinstance(path, Path)
    assert path.read_bytes() == DATA
    assert service.bytes_sent == len(DATA) - CHUNK_BYTES - 5


class Lying(blobs_pb2_grpc.BlobsServicer):
    """Answers each request with these chunks, whatever it asks for."""

    def __init__(self, *chunks: bytes) -> None:
        self.chunks = chunks
        self.requests = 0

    async def Fetch(self, request: pb.FetchRequest, context: Any) -> AsyncIterator[pb.Chunk]:
        self.requests += 1
        for data in self.chunks:
            yield pb.Chunk(data=data)


@pytest.mark.usefixtures("stretch")
@pytest.mark.parametrize(
    ("chunks", "words"),
    [
        ([], "other bytes than announced"),
        ([b""], "a chunk of 0 bytes"),
        ([DATA[:49_999]], "other bytes than announced"),
        ([DATA[:50_001]], "more came than the 50000 bytes"),
        ([DATA[:25_000]] * 1000, "more came than the 50000 bytes"),
        ([DATA[: CHUNK_BYTES + 1]], f"a chunk of {CHUNK_BYTES + 1} bytes"),
    ],
    ids=["nothing", "an empty chunk", "too little", "a byte too many", "without end", "too long a chunk"],
)
def test_who_answers_with_more_or_less_than_a_stretch_is_not_asked_for_the_next(chunks: list[bytes], words: str):
    service = Lying(*chunks)
    with pytest.raises(FormatError, match=words):
        with_service(service, fetching(Bandwidth(), stepping=True))
    assert service.requests == 1


@pytest.mark.usefixtures("stretch")
def test_other_bytes_in_stretches_are_refused_at_the_end():
    line = Bandwidth()
    with pytest.raises(FormatError, match="other bytes than announced"):
        with_service(Asked(DATA[:-1] + b"!"), fetching(line, stepping=True))
    assert line.down.bulk_carried == len(DATA)


def test_a_stretch_may_be_asked_for_at_any_place(tmp_path: Path):
    """What is beyond a blob is its end, in memory and on disk."""
    (tmp_path / "blob").write_bytes(DATA)
    farthest = 2**64 - 1
    for blob in (DATA, tmp_path / "blob"):
        for offset, length in ((0, 1), (5, 300_000), (len(DATA) - 3, 10), (3, farthest), (farthest, farthest)):

            async def scene(channel: grpc.aio.Channel, offset: int = offset, length: int = length) -> bytes:
                request = pb.FetchRequest(sha256=SHA256, offset=offset, length=length)
                call = blobs_pb2_grpc.BlobsStub(channel).Fetch(request, metadata=handshake(MANIFEST))
                return b"".join([chunk.data async for chunk in call])

            assert with_service(Asked(blob), scene)[0] == DATA[offset : offset + length]
