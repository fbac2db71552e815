"""Dialling back, over real sockets. The callers' names are what gRPC would say of them."""

import asyncio
import socket
from collections.abc import Awaitable, Callable

import pytest

from bootstrap.admission import dial_back
from bootstrap.admission.dial_back import NOBODY, Dialler
from peer.network.reach.reach import answering
from protocol.errors import FormatError, RefusedError
from protocol.net.allowances import RateLimit
from tests.reference.admitted import identity

ANN = identity("ann")
HERE = "ipv4:127.0.0.1:40000"


def play(scene: Callable[[int], Awaitable[None]], host: str = "127.0.0.1") -> None:
    """While Ann listens."""

    async def whole() -> None:
        async with answering(ANN, host, 0) as port:
            await scene(port)

    asyncio.run(asyncio.wait_for(whole(), 60))


def test_who_listens_where_it_calls_from_is_told_so():
    async def scene(port: int) -> None:
        assert await Dialler().dial(HERE, ANN.peer_id, f"127.0.0.1:{port}") == (f"127.0.0.1:{port}", "")
        assert await Dialler().dial(HERE, ANN.peer_id, f"localhost:{port}") == (f"localhost:{port}", "")

    play(scene)


def test_over_ipv6_as_well():
    async def scene(port: int) -> None:
        caller = "ipv6:%5B::1%5D:40000"
        assert await Dialler().dial(caller, ANN.peer_id, f"[::1]:{port}") == (f"[::1]:{port}", "")
        assert await Dialler().dial(caller, ANN.peer_id, f"[0:0::0:1]:{port}") == (f"[0:0::0:1]:{port}", "")

    play(scene, "::1")


def test_another_host_than_the_callers_is_never_dialled():
    async def scene(port: int) -> None:
        for named in ("192.0.2.1", "192.168.1.5", "no-such-name.invalid", "[::1]"):
            assert await Dialler().dial(HERE, ANN.peer_id, f"{named}:{port}") == (f"127.0.0.1:{port}", "")

    play(scene)


def test_a_closed_port_and_another_peer_and_something_else_are_told_apart():
    async def scene(port: int) -> None:
        with socket.create_server(("127.0.0.1", 0)) as closed:
            free = closed.getsockname()[1]
        assert await Dialler().dial(HERE, ANN.peer_id, f"127.0.0.1:{free}") == (f"127.0.0.1:{free}", NOBODY)
        _, objection = await Dialler().dial(HERE, identity("bob").peer_id, f"127.0.0.1:{port}")
        assert objection == "another peer answers there"

        async def chatter(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"220 welcome to something else\r\n")
            await writer.drain()
            writer.close()

        async with await asyncio.start_server(chatter, "127.0.0.1", 0) as other:
            elsewhere = other.sockets[0].getsockname()[1]
            _, objection = await Dialler().dial(HERE, ANN.peer_id, f"127.0.0.1:{elsewhere}")
        assert objection == "something else answers there"

    play(scene)


def test_what_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(dial_back, "DIAL_SECONDS", 0.2)

    async def scene(port: int) -> None:
        dialler = Dialler()
        with socket.create_server(("127.0.0.1", 0)) as silent:
            where = f"127.0.0.1:{silent.getsockname()[1]}"
            assert await dialler.dial(HERE, ANN.peer_id, where) == (where, NOBODY)
        assert dialler.open == 0

    play(scene)


def test_nobody_dials_often_by_it():
    async def scene(port: int) -> None:
        dialler = Dialler(RateLimit(2, 3600.0))
        for _ in range(2):
            await dialler.dial(HERE, ANN.peer_id, f"127.0.0.1:{port}")
        with pytest.raises(RefusedError, match="too many ask to be dialled: try again in 3600 s"):
            await dialler.dial(HERE, ANN.peer_id, f"127.0.0.1:{port}")

    play(scene)


@pytest.mark.parametrize("address", ["", "127.0.0.1", "::1:80", "127.0.0.1:99999"])
def test_what_is_no_address_is_refused(address: str):
    with pytest.raises(FormatError):
        asyncio.run(Dialler().dial(HERE, ANN.peer_id, address))


@pytest.mark.parametrize(("caller", "address"), [("unix:/tmp/socket", "127.0.0.1:80"), (HERE, "127.0.0.1:0")])
def test_without_an_address_or_port_there_is_nothing_to_dial(caller: str, address: str):
    with pytest.raises(RefusedError, match="no address to dial"):
        asyncio.run(Dialler().dial(caller, ANN.peer_id, address))
