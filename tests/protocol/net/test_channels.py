"""The handshake, and gRPC's errors as ours, over real sockets."""

import asyncio
import socket

import grpc
import pytest

from protocol.errors import ManifestError, ResourceError, UnreachableError
from protocol.manifest import Manifest
from protocol.net.blobs import BlobService, fetch
from protocol.net.channels import connect, handshake, listen, options
from protocol.schemas import blobs_pb2_grpc
from tests.reference.admitted import credentials, there
from tests.reference.small_manifest import small_manifest

OURS = small_manifest()
THEIRS = small_manifest(inner={"steps": 9})


async def serving(manifest: Manifest) -> tuple[grpc.aio.Server, str]:
    server = grpc.aio.server(options=options(manifest))
    blobs_pb2_grpc.add_BlobsServicer_to_server(BlobService(manifest, {}.get), server)
    address = f"127.0.0.1:{listen(server, '127.0.0.1:0', credentials('server').serving())}"
    await server.start()
    return server, address


def test_a_peer_with_another_manifest_is_refused_and_told_the_field():
    async def scene() -> None:
        server, address = await serving(THEIRS)
        try:
            async with connect(there("server", address), OURS, credentials("caller")) as channel:
                await fetch(channel, OURS, "00" * 32, 1)
        finally:
            await server.stop(None)

    with pytest.raises(ManifestError, match=r"runs another manifest: inner\.steps: ours is 3, theirs is 9"):
        asyncio.run(scene())


def test_a_call_without_a_handshake_is_refused():
    async def scene() -> None:
        server, address = await serving(OURS)
        try:
            async with connect(there("server", address), OURS, credentials("caller")) as channel:
                call = blobs_pb2_grpc.BlobsStub(channel).Fetch(
                    blobs_pb2_grpc.protocol_dot_schemas_dot_blobs__pb2.FetchRequest()
                )
                await call.read()
        finally:
            await server.stop(None)

    with pytest.raises(ManifestError, match="this peer sent none"):
        asyncio.run(scene())


def test_the_handshake_is_the_digest():
    assert handshake(OURS) == (("hetpeer-manifest", OURS.digest),)
    assert handshake(OURS) != handshake(THEIRS)


def test_an_address_where_nobody_is():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"

    async def scene() -> None:
        async with connect(there("server", address), OURS, credentials("caller")) as channel:
            await fetch(channel, OURS, "00" * 32, 1)

    with pytest.raises(UnreachableError, match=f"no answer from {address}"):
        asyncio.run(scene())


def test_a_port_is_bound_by_one_server_only():
    async def scene() -> None:
        server, address = await serving(OURS)
        try:
            with pytest.raises(ResourceError, match="cannot listen on"):
                listen(grpc.aio.server(options=options(OURS)), address, credentials("server").serving())
        finally:
            await server.stop(None)

    asyncio.run(scene())
