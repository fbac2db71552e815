"""Looking at who answers: a certificate where TLS is spoken, an error that says what else is there."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest

from protocol.errors import FormatError, UnreachableError
from protocol.net.tls_probe import TlsProbe, first_answering, probe
from protocol.trust.certificates import shown_by
from tests.reference.admitted import credentials, identity
from tests.reference.own_loop import run
from tests.reference.waiting import until

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
PATIENCE = 20.0


async def hangs_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()


async def hangs_up_last(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        await reader.read()
    writer.close()


async def speaks_no_tls(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    await reader.read()


async def says_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()


def seen(handler: Handler, tls: ssl.SSLContext | None = None, seconds: float = PATIENCE) -> TlsProbe:
    async def look() -> TlsProbe:
        ended = asyncio.Event()

        async def handled(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                with suppress(OSError):
                    await handler(reader, writer)
            finally:
                writer.close()
                with suppress(OSError):
                    await writer.wait_closed()
                ended.set()

        server = await asyncio.start_server(handled, "127.0.0.1", 0, ssl=tls)
        async with server:
            port = server.sockets[0].getsockname()[1]
            try:
                return await probe(f"127.0.0.1:{port}", seconds)
            finally:
                if tls is None or tls.verify_mode is ssl.CERT_NONE:  # else the handshake fails, and nothing is handled
                    await asyncio.wait_for(ended.wait(), PATIENCE)

    return run(look())


def of_a_peer(folder: Path, wants_one: bool, name: str = "server") -> ssl.SSLContext:
    """What a peer shows at its port; `wants_one`: of who calls, too."""
    shown = credentials(name)
    for name, pem in (("key", shown.key), ("chain", shown.chain), ("root", shown.root)):
        (folder / name).write_bytes(pem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "chain", folder / "key")
    context.load_verify_locations(folder / "root")
    context.verify_mode = ssl.CERT_REQUIRED if wants_one else ssl.CERT_NONE
    return context


@pytest.mark.parametrize("wants_one", [False, True])
def test_the_certificate_is_seen_also_of_who_wants_one_of_its_caller(tmp_path: Path, wants_one: bool):
    found = seen(says_nothing, of_a_peer(tmp_path, wants_one))
    assert shown_by(found.certificate) == identity("server").peer_id
    assert found.round_trip > 0
    assert found.tls > 0


def test_what_speaks_no_tls_is_told_from_nobody():
    with pytest.raises(ssl.SSLError, match="WRONG_VERSION_NUMBER"):
        seen(speaks_no_tls)


def test_who_hangs_up_or_says_nothing_is_said_to():
    with pytest.raises(ConnectionResetError, match="hangs up"):
        seen(hangs_up)
    with pytest.raises(TimeoutError, match="timed out"):
        seen(says_nothing, seconds=0.2)


def test_what_is_no_address_is_not_dialled():
    with pytest.raises(FormatError):
        asyncio.run(probe("nowhere", PATIENCE))


# One of several addresses

NOBODY = "127.0.0.1:9"


def index_of(*who: str, folder: Path) -> int:
    """The index of the address at which ann is found, of those of a server each: of peers by name, of one that takes
    connections and says nothing (`hole`), or of none (`nobody`)."""

    async def look() -> int:
        named, servers = list[str](), list[asyncio.Server]()
        for each in who:
            if each == "nobody":
                named.append(NOBODY)
                continue
            tls = None if each == "hole" else of_a_peer(folder, wants_one=False, name=each)
            servers.append(await asyncio.start_server(hangs_up_last, "127.0.0.1", 0, ssl=tls))
            named.append(f"127.0.0.1:{servers[-1].sockets[0].getsockname()[1]}")
        try:
            return named.index(await first_answering(identity("ann").peer_id, named, PATIENCE))
        finally:
            for server in servers:
                server.close()
            await until(lambda: not any(server._active_count for server in servers))  # type: ignore[attr-defined]

    return run(asyncio.wait_for(look(), PATIENCE / 2))


def test_the_first_address_at_which_the_peers_own_key_answers_is_taken(tmp_path: Path):
    assert index_of("ann", "ann", folder=tmp_path) == 0
    assert index_of("nobody", "bob", "ann", folder=tmp_path) == 2


def test_an_address_that_swallows_everything_keeps_nobody(tmp_path: Path):
    assert index_of("hole", "ann", folder=tmp_path) == 1


def test_a_key_that_answers_nowhere_is_unreachable_at_its_first_address(tmp_path: Path):
    with pytest.raises(UnreachableError, match=f"no answer from {NOBODY} "):
        index_of("nobody", "bob", folder=tmp_path)
