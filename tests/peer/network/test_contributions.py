"""Contributions between peers over real sockets: told as they come, fetched once, refused when they lie."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import grpc
import pytest

from peer.network.contributions import ROUNDS_KEPT, ContributionService, Shelf, collect, follow
from protocol.blobs import BlobService
from protocol.channels import connect, handshake, listen, options
from protocol.contribution import max_bytes
from protocol.errors import FormatError, RefusedError, UnreachableError
from protocol.identity import EMBEDDING, ContributionName, ReplicaId
from protocol.schemas import blobs_pb2_grpc, contributions_pb2, contributions_pb2_grpc
from tests.reference.small_manifest import small_manifest

MANIFEST = small_manifest()
A, B, C = ReplicaId("A"), ReplicaId("B"), ReplicaId("C")
LARGEST = max_bytes(MANIFEST, EMBEDDING)


def name(replica: ReplicaId, round: int = 1) -> ContributionName:
    return ContributionName(EMBEDDING, round, replica)


@asynccontextmanager
async def serving(shelf: Shelf) -> AsyncIterator[tuple[str, BlobService]]:
    server = grpc.aio.server(options=options(MANIFEST))
    blobs = BlobService(MANIFEST, shelf.lookup)
    blobs_pb2_grpc.add_BlobsServicer_to_server(blobs, server)
    contributions_pb2_grpc.add_ContributionsServicer_to_server(ContributionService(MANIFEST, shelf), server)
    address = f"127.0.0.1:{listen(server, '127.0.0.1:0')}"
    await server.start()
    try:
        yield address, blobs
    finally:
        await server.stop(None)


async def accept(blob: bytes, name: ContributionName) -> None:
    """What these tests send is no real contribution; the swarm's check decodes it."""


async def refuse(blob: bytes, name: ContributionName) -> None:
    raise FormatError(f"{name} is none")


def run(scene: Callable[[], Awaitable[object]], seconds: float = 20) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(scene(), seconds)

    asyncio.run(bounded())


def test_what_is_there_and_what_comes_later_is_collected_from_all_sources():
    async def scene() -> None:
        ours, first, second = Shelf(), Shelf(), Shelf()
        await ours.put(name(A), b"a")
        await first.put(name(B), b"b")
        async with serving(first) as (one, _), serving(second) as (two, _):
            authors = frozenset((A, B, C))
            waiting = asyncio.create_task(collect((one, two), MANIFEST, EMBEDDING, 1, authors, ours, accept))
            await ours.wait_for(EMBEDDING, 1, 2)
            assert not waiting.done()
            await second.put(name(C), b"c")
            await waiting
            assert ours.of(EMBEDDING, 1) == {A: b"a", B: b"b", C: b"c"}

    run(scene)


def test_what_one_source_gives_is_not_fetched_from_another():
    async def scene() -> None:
        ours, first, second = Shelf(), Shelf(), Shelf()
        for shelf in (first, second):
            await shelf.put(name(A), b"a" * 100)
            await shelf.put(name(B), b"b" * 100)
        async with serving(first) as (one, sent_one), serving(second) as (two, sent_two):
            await collect((one, two), MANIFEST, EMBEDDING, 1, frozenset((A, B)), ours, accept)
            assert sent_one.bytes_sent + sent_two.bytes_sent == 200

    run(scene)


@pytest.mark.parametrize(
    ("author", "blob", "check", "words"),
    [
        (C, b"c", accept, "by a replica that is not in this run"),
        (A, b"a" * (LARGEST + 1), accept, "more than possible"),
        (A, b"a", refuse, "is none"),
    ],
    ids=["a stranger", "too long", "invalid"],
)
def test_a_lie_is_refused_and_nothing_of_it_kept(author: ReplicaId, blob: bytes, check, words: str):
    async def scene() -> None:
        ours, theirs = Shelf(), Shelf()
        await theirs.put(name(author), blob)
        async with serving(theirs) as (address, _):
            with pytest.raises(FormatError, match=words):
                await follow(address, MANIFEST, EMBEDDING, 1, frozenset((A, B)), ours, check)
        assert not ours.blobs
        assert not ours.in_flight

    run(scene)


def test_a_source_that_is_gone_is_an_error():
    async def scene() -> None:
        async with serving(Shelf()) as (address, _):
            pass
        with pytest.raises(ExceptionGroup) as raised:
            await collect((address,), MANIFEST, EMBEDDING, 1, frozenset((A,)), Shelf(), accept)
        assert raised.group_contains(UnreachableError)

    run(scene)


def test_a_part_that_the_model_does_not_have_is_refused():
    async def scene() -> None:
        async with serving(Shelf()) as (address, _), connect(address, MANIFEST) as channel:
            request = contributions_pb2.HaveRequest(part="stage-9", round=1)
            stub = contributions_pb2_grpc.ContributionsStub(channel)
            await stub.Have(request, metadata=handshake(MANIFEST)).read()

    with pytest.raises(RefusedError, match="no part 'stage-9'"):
        run(scene)


def test_rounds_long_past_are_dropped():
    async def scene() -> None:
        shelf = Shelf()
        for round in range(1, 6):
            await shelf.put(name(A, round), str(round).encode())
        assert sorted(each.round for each in shelf.blobs) == [5 - ROUNDS_KEPT + 1, 5]
        assert shelf.lookup(hashlib.sha256(b"5").hexdigest()) == b"5"
        assert shelf.lookup(hashlib.sha256(b"1").hexdigest()) is None

    run(scene)
