"""Who gets through TLS and the guard, over real sockets: each who does not is told what can be told, and the peer that
refuses goes on answering the others."""

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import grpc
import pytest

from protocol.errors import HetpeerError, RefusedError, UnreachableError
from protocol.identity import PeerId
from protocol.net.blobs import BlobService, fetch
from protocol.net.channels import Credentials, connect, listen, options
from protocol.net.guard import Guard
from protocol.schemas import blobs_pb2 as pb
from protocol.schemas import blobs_pb2_grpc
from protocol.trust.certificates import dns_name
from tests.reference.admitted import AN_HOUR, certified, credentials, identity, there
from tests.reference.small_manifest import small_manifest

MANIFEST = small_manifest()
BLOB = b"some bytes"
OPERATOR, ANOTHER = identity("operator"), identity("another operator")
"""Of this run and of another."""


class Counted(BlobService):
    """Counts the calls that reach it."""

    calls = 0

    async def Fetch(self, request: pb.FetchRequest, context: grpc.aio.ServicerContext) -> AsyncIterator[pb.Chunk]:
        self.calls += 1
        async for chunk in super().Fetch(request, context):
            yield chunk


@asynccontextmanager
async def serving(
    shown: Credentials, objection: Callable[[PeerId], str] = lambda peer: ""
) -> AsyncIterator[tuple[Counted, str]]:
    server = grpc.aio.server(options=options(MANIFEST), interceptors=[Guard(objection)])
    service = Counted(MANIFEST, lambda sha256: BLOB)
    blobs_pb2_grpc.add_BlobsServicer_to_server(service, server)
    address = f"127.0.0.1:{listen(server, '127.0.0.1:0', shown.serving())}"
    await server.start()
    try:
        yield service, address
    finally:
        await server.stop(None)


async def ask(address: str, shown: Credentials, name: str = "server") -> bytes:
    """Call whoever should be there by this name."""
    async with connect(there(name, address), MANIFEST, shown) as channel:
        return await fetch(channel, MANIFEST, hashlib.sha256(BLOB).hexdigest(), len(BLOB))


def refused(
    shown: Credentials,
    error: type[HetpeerError],
    words: str,
    name: str = "server",
    server: Credentials | None = None,
    objection: Callable[[PeerId], str] = lambda peer: "",
) -> None:
    """A peer that shows this is refused in these words; no handler hears of it, and another's calls go through."""

    async def scene() -> None:
        async with serving(server or credentials("server"), objection) as (service, address):
            with pytest.raises(error, match=words):
                await ask(address, shown, name)
            assert service.calls == 0
            if server is None:
                assert await ask(address, credentials("an honest peer")) == BLOB

    asyncio.run(asyncio.wait_for(scene(), 30))


def test_another_runs_certificate():
    stranger = certified(identity("caller"), ANOTHER)
    stranger.root = credentials("server").root  # it knows the run's authority well
    refused(stranger, UnreachableError, "does not take this peer's certificate")


def test_a_certificate_that_the_peer_has_made_itself():
    refused_one = certified(identity("caller"), identity("caller"))
    refused_one.root = credentials("server").root
    refused(refused_one, UnreachableError, "does not take this peer's certificate")


def test_who_has_a_certificate_of_another_run_finds_nobody_of_its_own_run_here():
    refused(certified(identity("caller"), ANOTHER), UnreachableError, "no certificate of this run's authority")


def test_an_ended_certificate_is_named_by_its_owner_who_alone_knows():
    ended = certified(identity("caller"), OPERATOR, seconds=-5)
    refused(ended, UnreachableError, "this peer's certificate has ended: renew it first")


def test_a_peer_whose_certificate_has_ended_is_told_apart_by_who_calls_it():
    ended = certified(identity("server"), OPERATOR, seconds=-5)
    refused(credentials("caller"), UnreachableError, "the certificate of who answers there has ended", server=ended)


def test_another_peer_at_the_address_of_the_one_that_is_meant_costs_that_one_nothing():
    """Not a PeerError: addresses change hands, and nobody who was meant has done anything."""
    refused(credentials("caller"), UnreachableError, "somebody else than the peer that is meant", name="somebody")


def test_a_revoked_peer_is_told_so():
    def objection(peer: PeerId) -> str:
        return "the operator has taken you out" if peer == identity("caller").peer_id else ""

    refused(credentials("caller"), RefusedError, "refused: the operator has taken you out", objection=objection)


def without_a_certificate(address: str) -> grpc.aio.Channel:
    name = ("grpc.ssl_target_name_override", dns_name(identity("server").peer_id))
    shown = grpc.ssl_channel_credentials(credentials("server").root)
    return grpc.aio.secure_channel(address, shown, options=[*options(MANIFEST), name])


@pytest.mark.parametrize(
    "opened", [without_a_certificate, lambda address: grpc.aio.insecure_channel(address)], ids=["TLS", "plain"]
)
def test_nobody_gets_through_without_a_certificate(opened: Callable[[str], grpc.aio.Channel]):
    async def scene() -> None:
        async with serving(credentials("server")) as (service, address), opened(address) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await blobs_pb2_grpc.BlobsStub(channel).Fetch(pb.FetchRequest(), timeout=20).read()
            assert error.value.code() == grpc.StatusCode.UNAVAILABLE
            assert service.calls == 0
            assert await ask(address, credentials("an honest peer")) == BLOB

    asyncio.run(asyncio.wait_for(scene(), 30))


def test_bytes_that_are_no_tls_end_the_connection_and_nothing_else():
    async def scene() -> None:
        async with serving(credentials("server")) as (service, address):
            reader, writer = await asyncio.open_connection(*address.split(":"))
            writer.write(b"GET / HTTP/1.1\r\n\r\n" + bytes(4096))
            await asyncio.wait_for(reader.read(), 20)  # to its end
            writer.close()
            assert service.calls == 0
            assert await ask(address, credentials("an honest peer")) == BLOB

    asyncio.run(asyncio.wait_for(scene(), 30))


def test_what_speaks_no_tls_at_an_address_is_said_to():
    async def scene() -> None:
        server = grpc.aio.server()
        address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        await server.start()
        try:
            with pytest.raises(UnreachableError, match="what answers there speaks no TLS"):
                await ask(address, credentials("caller"))
        finally:
            await server.stop(None)

    asyncio.run(asyncio.wait_for(scene(), 30))


def test_a_connection_does_not_outlive_the_certificate_that_it_was_opened_with(monkeypatch: pytest.MonkeyPatch):
    async def scene() -> None:
        async with (
            serving(credentials("server")) as (service, address),
            connect(there("server", address), MANIFEST, credentials("caller")) as channel,
        ):
            wanted = channel, MANIFEST, hashlib.sha256(BLOB).hexdigest(), len(BLOB)
            assert await fetch(*wanted) == BLOB
            later = time.time() + 2 * AN_HOUR
            monkeypatch.setattr(time, "time", lambda: later)
            with pytest.raises(grpc.aio.AioRpcError, match="has ended: renew it, and connect again"):
                await fetch(*wanted)
            assert service.calls == 1

    asyncio.run(asyncio.wait_for(scene(), 30))
