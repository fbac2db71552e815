"""HTTP to addresses that a run's operator chose, or whom these redirect to: they lead into the open internet, and into
this machine's own network only where its owner lets them.

What counts is the address that is dialled, not the name: a name is resolved here, what it stands for is checked, and of
that one is dialled. Nothing resolves the name again in between. So no proxy of the environment is used: it would
resolve names for itself, and may reach what this machine does not.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from ipaddress import ip_address
from urllib.parse import urljoin, urlsplit

import httpcore2

from protocol.addresses import Ip, is_public
from protocol.errors import FormatError, RefusedError, UnreachableError

WEB_STALL_SECONDS = 10.0
"""The time without a byte after which an answer has stalled."""

MOST_REDIRECTS = 5

MOST_URL_CHARACTERS = 4096
"""The longest URL to which a mirror redirects: signed addresses have a thousand characters and more."""

PASSED_OVER_BYTES = 16 * 1024
"""The bytes of a redirecting answer that are read, so that its connection can stay."""

ADDRESSES_TRIED = 4
"""The addresses of one name that are tried."""

REDIRECTS = (301, 302, 303, 307, 308)

Allowed = Callable[[Ip], bool]
"""Whether an address may be dialled beside those that are public. It may read files: it is asked off the event loop."""


class CheckedConnector(httpcore2.AsyncNetworkBackend):
    """The connector that dials checked addresses, and no others."""

    def __init__(self, allowed: Allowed) -> None:
        self.allowed, self.network = allowed, httpcore2.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """Raises RefusedError: the host is not one that may be dialled."""
        async with asyncio.timeout(WEB_STALL_SECONDS):
            failed: Exception | None = None
            for address in await asyncio.to_thread(dialled, host, port, self.allowed):
                try:
                    return await self.network.connect_tcp(address, port, timeout, local_address, socket_options)
                except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
                    failed = error
            raise failed or UnreachableError(f"{host} has no address")

    async def sleep(self, seconds: float) -> None:
        await self.network.sleep(seconds)


def dialled(host: str, port: int, allowed: Allowed) -> list[str]:
    """Look up the addresses of a host that may be dialled. Returns the first ones.

    Raises:
        RefusedError: it has none but others.
        UnreachableError: it has none.
    """
    try:
        infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise UnreachableError(f"{host} has no address ({error})") from None
    addresses = dict.fromkeys(str(where[0]) for *_, where in infos)
    good = [address for address in addresses if is_public(ip := ip_address(address)) or allowed(ip)]
    if addresses and not good:
        raise RefusedError(
            f"{host} is {next(iter(addresses))}, which is no public address: if it is your own network and you want "
            "this, give --private-mirrors"
        )
    return good[:ADDRESSES_TRIED]


class Client:
    """An HTTP client that asks for files. A few connections stay open; no cookies, names or passwords are kept
    or sent."""

    def __init__(self, allowed: Allowed) -> None:
        self._pool = httpcore2.AsyncConnectionPool(
            httpcore2.default_ssl_context(),
            max_connections=32,
            max_keepalive_connections=8,
            keepalive_expiry=5.0,
            network_backend=CheckedConnector(allowed),
        )

    @asynccontextmanager
    async def get(self, url: str, headers: dict[str, str]) -> AsyncIterator[httpcore2.Response]:
        """Ask for a URL, and follow redirects. Yields an answer whose body has not been read.

        Raises:
            RefusedError: a host is not one that may be dialled.
            FormatError: it leads to what is no web address, or in circles.
            UnreachableError: nobody answers.
        """
        extensions = {"timeout": dict.fromkeys(("connect", "read", "write", "pool"), WEB_STALL_SECONDS)}
        for _ in range(MOST_REDIRECTS + 1):
            require_plain(url)
            sent = [("Host", urlsplit(url).netloc), ("User-Agent", "hetpeer"), *headers.items()]
            async with self._pool.stream("GET", url, headers=sent, extensions=extensions) as response:
                if response.status not in REDIRECTS:
                    yield response
                    return
                url = redirected(url, header(response, b"location"))
                read = 0
                async for some in response.aiter_stream():  # few words beside a redirect: its connection can stay
                    read += len(some)
                    if read > PASSED_OVER_BYTES:
                        break
        raise FormatError(f"redirects more than {MOST_REDIRECTS} times")

    async def __aenter__(self) -> "Client":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._pool.aclose()


def header(response: httpcore2.Response, name: bytes) -> str:
    """The first header of that name; empty: there is none."""
    return next((value.decode("latin-1") for key, value in response.headers if key.lower() == name), "")


def redirected(url: str, location: str) -> str:
    """The URL to which an answer redirects.

    Raises:
        FormatError: nowhere, or away from TLS.
    """
    try:
        target = urljoin(url, location).partition("#")[0]
    except ValueError:
        target = ""
    if url.startswith("https:") and not target.startswith("https:"):
        raise FormatError(f"redirects away from https, to {target[:80]!r}")
    return target


def require_plain(url: str) -> None:
    """Check that a URL is http or https, with a host and without a name or password.

    Raises:
        FormatError: it is not.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise FormatError(f"{url[:80]!r} is no web address") from None
    plain = url.isascii() and url.isprintable() and " " not in url and "\\" not in url
    web = parts.scheme in ("http", "https") and bool(parts.hostname) and port != 0 and "@" not in parts.netloc
    if not (plain and web and len(url) <= MOST_URL_CHARACTERS):
        raise FormatError(f"{url[:80]!r} is no web address without a user name")
