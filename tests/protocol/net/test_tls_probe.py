"""Looking at who answers: a certificate where TLS is spoken, an error that says what else is there."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest

from protocol.errors import FormatError
from protocol.net.tls_probe import TlsProbe, probe
from protocol.trust.certificates import shown_by
from tests.reference.admitted import credentials, identity
from tests.reference.own_loop import run

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
PATIENCE = 20.0


async def hangs_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
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


def of_a_peer(folder: Path, wants_one: bool) -> ssl.SSLContext:
    """What a peer shows at its port; `wants_one`: of who calls, too."""
    shown = credentials("server")
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
