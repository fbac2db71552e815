"""Blobs over real sockets: whole, resumed, or refused."""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import pytest

from protocol.bandwidth import Bandwidth
from protocol.blobs import Blob, BlobService, fetch, fetch_file
from protocol.channels import connect, listen, options
from protocol.errors import FormatError, RefusedError
from protocol.limits import CHUNK_BYTES
from protocol.run_files import RunFile
from protocol.schemas import blobs_pb2_grpc
from tests.reference.admitted import credentials, there
from tests.reference.small_manifest import small_manifest

MANIFEST = small_manifest()
DATA = bytes(range(256)) * (CHUNK_BYTES // 256) * 2 + b"the end"
SHA256 = hashlib.sha256(DATA).hexdigest()


def with_server(
    blobs: dict[str, Blob], scene: Callable[[grpc.aio.Channel], Awaitable[object]], line: Bandwidth | None = None
) -> tuple[object, BlobService]:
    """Run a scene against a server that has these blobs."""

    async def run() -> tuple[object, BlobService]:
        service = BlobService(MANIFEST, blobs.get, line)
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


@pytest.mark.parametrize("on_disk", [False, True])
def test_a_blob_of_many_chunks_arrives_whole_and_is_counted(tmp_path: Path, on_disk: bool):
    (tmp_path / "blob").write_bytes(DATA)
    blobs: dict[str, Blob] = {SHA256: tmp_path / "blob" if on_disk else DATA}
    got, service = with_server(blobs, lambda channel: fetch(channel, MANIFEST, SHA256, len(DATA)))
    assert got == DATA
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
