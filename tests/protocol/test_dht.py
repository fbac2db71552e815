"""The DHT: real nodes on loopback."""

import asyncio
import socket
from pathlib import Path

import pytest

from protocol import dht as dhts
from protocol.errors import ResourceError, UnreachableError
from protocol.keys import load_or_create


def test_what_one_node_stores_another_reads(tmp_path: Path):
    async def scene() -> None:
        first = await dhts.start(load_or_create(tmp_path / "a"), "127.0.0.1", 0)
        try:
            second = await dhts.start(load_or_create(tmp_path / "b"), "127.0.0.1", 0, first.addresses)
            try:
                await first.store("run.peers", "a", b"one", 30)
                await second.store("run.peers", "b", b"two", 30)
                for node in (first, second):
                    assert await node.read("run.peers") == {"a": b"one", "b": b"two"}
                    assert await node.read("nothing") == {}
                await first.store("run.more", "c", b"three", 30)
                found = await second.read_all(["run.peers", "nothing", "run.more"])
                assert found == {"a": b"one", "b": b"two", "c": b"three"}
            finally:
                await second.stop()
        finally:
            await first.stop()

    asyncio.run(scene())


def test_its_address_carries_the_identity_of_the_key(tmp_path: Path):
    identity = load_or_create(tmp_path)

    async def scene() -> None:
        node = await dhts.start(identity, "127.0.0.1", 0)
        await node.stop()
        assert all(address.endswith(f"/p2p/{identity.peer_id}") for address in node.addresses)
        assert node.addresses

    asyncio.run(scene())


def test_bootstrap_nodes_that_do_not_answer_are_named(tmp_path: Path):
    gone = f"/ip4/127.0.0.1/tcp/9/p2p/{load_or_create(tmp_path / 'other').peer_id}"

    async def scene() -> None:
        await dhts.start(load_or_create(tmp_path / "a"), "127.0.0.1", 0, [gone])

    with pytest.raises(UnreachableError, match=f"tried {gone}"):
        asyncio.run(scene())


def test_a_taken_port_is_named_because_libp2p_would_not_notice(tmp_path: Path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ResourceError, match=f"cannot listen on 127.0.0.1:{port}"):
            asyncio.run(dhts.start(load_or_create(tmp_path), "127.0.0.1", port))


def test_work_ends_when_libp2ps_daemon_dies(tmp_path: Path):
    async def scene() -> None:
        node = await dhts.start(load_or_create(tmp_path), "127.0.0.1", 0)
        try:
            node.p2p._child.kill()
            await node.while_alive(asyncio.Event().wait())
        finally:
            await node.stop()

    with pytest.raises(ResourceError, match="libp2p's daemon, a child of this process, died"):
        asyncio.run(scene())
