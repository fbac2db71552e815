"""Where an operator's addresses lead: what is dialled is what was checked, at every redirect, over real sockets."""

import asyncio
import socket
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

from peer.network import web
from peer.network.mirrors import HttpMirror, fetch_whole
from peer.network.web import Allowed, Client, dialled, redirected, require_plain
from protocol.addresses import Ip
from protocol.errors import FormatError, HetpeerError, RefusedError, UnreachableError
from protocol.net.bandwidth import Bandwidth
from protocol.run.dataset import Dataset
from protocol.run.prepared import open_folder
from tests.reference.mirror import Mirror, mirror
from tests.reference.prepared import small_prepared

HOME = ip_address("127.0.0.1")


def nowhere(ip: Ip) -> bool:
    return False


def at_home(ip: Ip) -> bool:
    """One address of this machine, and not the others."""
    return ip == HOME


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_prepared(tmp_path_factory.mktemp("text"))


@pytest.fixture(scope="module")
def dataset(folder: Path) -> Dataset:
    return open_folder(folder)


@pytest.fixture
def served(folder: Path) -> Iterator[Mirror]:
    with mirror(folder) as one:
        yield one


def fetch(url: str, allowed: Allowed, dataset: Dataset) -> bytes:
    """The first block, as a peer fetches it."""

    async def run() -> bytes:
        async with Client(allowed) as client:
            return await HttpMirror(url, client, Bandwidth()).fetch(dataset.block(0))

    return asyncio.run(run())


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.1", "2130706433", "0x7f000001", "[::ffff:127.0.0.1]"])
def test_a_mirror_in_this_machines_own_network_is_never_asked(served: Mirror, dataset: Dataset, host: str) -> None:
    """However its address is spelt."""
    url = served.url.replace("127.0.0.1", host)
    with pytest.raises(RefusedError, match=r"no public address: .* --private-mirrors"):
        fetch(url, nowhere, dataset)
    assert served.paths == []


@pytest.mark.parametrize(
    "there",
    [
        "http://169.254.169.254/latest/meta-data/",
        "http://127.0.0.2/",
        "http://[::1]/",
        "//127.0.0.2/",
        "http://0.0.0.0/",
        "http://10.0.0.5/admin?reboot=1",
    ],
)
def test_a_mirror_cannot_send_a_peer_into_its_own_network(served: Mirror, dataset: Dataset, there: str) -> None:
    """By a redirect: of an address that may be dialled, to one that may not."""
    served.away = there
    with pytest.raises(RefusedError, match="no public address"):
        fetch(served.url.replace("/text", "/away"), at_home, dataset)
    assert len(served.paths) == 1


def test_a_redirect_to_the_very_port_next_door_is_not_followed(
    served: Mirror, folder: Path, dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that asks may dial the first by its name alone; the second would answer with the right block."""
    with mirror(folder) as victim:
        served.away = f"{victim.url}/{dataset.block(0).shard}"
        names = {"mirror.example": "127.0.0.1"}
        monkeypatch.setattr(web, "is_public", lambda ip: False)
        monkeypatch.setattr(socket, "getaddrinfo", _resolver(names))
        url = served.url.replace("127.0.0.1", "mirror.example").replace("/text", "/away")
        allowed = iter([True, False])
        with pytest.raises(RefusedError):
            fetch(url, lambda ip: next(allowed), dataset)
        assert victim.paths == []


def _resolver(names: dict[str, str]) -> Any:
    def resolve(host: str, port: int, **_: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (names.get(host, host), port))]

    return resolve


def test_what_is_dialled_is_what_was_checked_though_the_name_stands_for_another_a_moment_later(
    served: Mirror, dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DNS rebinding: a name is resolved once for each connection, and never by what connects."""
    asked: list[str] = []

    def resolve(host: str, port: int, **_: Any) -> list[Any]:
        asked.append(host)
        address = "127.0.0.1" if len(asked) == 1 else "127.0.0.2"
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    url = served.url.replace("127.0.0.1", "rebinding.example")
    assert len(fetch(url, at_home, dataset)) == dataset.block(0).size
    assert asked == ["rebinding.example"]
    with pytest.raises(RefusedError, match=r"rebinding\.example is 127\.0\.0\.2"):
        fetch(url, at_home, dataset)


def test_of_a_name_that_stands_for_several_only_public_ones_are_dialled(monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(host: str, port: int, **_: Any) -> list[Any]:
        found = ["10.0.0.1", "8.8.8.8", "::1", "2606:4700::1111", "8.8.8.8", "8.8.4.4", "1.1.1.1", "9.9.9.9"]
        return [(0, 0, 0, "", (each, port)) for each in found]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    assert dialled("mixed.example", 443, nowhere) == ["8.8.8.8", "2606:4700::1111", "8.8.4.4", "1.1.1.1"]


def test_a_name_that_nobody_knows_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(*_: Any, **__: Any) -> list[Any]:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    with pytest.raises(UnreachableError, match=r"mirror\.example has no address"):
        dialled("mirror.example", 80, nowhere)


def test_the_proxy_of_the_environment_is_not_asked(
    served: Mirror, dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would resolve the names itself, behind the check."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        proxy = f"http://127.0.0.1:{closed.getsockname()[1]}"
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, proxy)
    assert len(fetch(served.url, at_home, dataset)) == dataset.block(0).size


@pytest.mark.parametrize(
    "url",
    [
        "http://user:pw@127.0.0.1/",
        "ftp://a.example/",
        "file:///etc/passwd",
        "http://",
        "//x/",
        "http://a.example:99999/",
        "http://a.example\\@127.0.0.1/",
        "http://[::1/",
        "",
        "http://a.example/ x",
        "http://a.example/" + "x" * 5000,
        "http://é.example/",
    ],
)
def test_what_is_no_plain_web_address_is_refused(url: str, served: Mirror, dataset: Dataset) -> None:
    with pytest.raises(FormatError):
        require_plain(url)
    if url:
        served.away = url if url.isascii() and "\n" not in url else "http://user@h/"
        with pytest.raises(HetpeerError):
            fetch(served.url.replace("/text", "/away"), at_home, dataset)


def test_a_redirect_never_leaves_tls() -> None:
    assert redirected("https://a.example/x", "/y?z=1#w") == "https://a.example/y?z=1"
    assert redirected("http://a.example/x", "https://b.example/y") == "https://b.example/y"
    with pytest.raises(FormatError, match="away from https"):
        redirected("https://a.example/x", "http://a.example/x")
    with pytest.raises(FormatError):
        require_plain(redirected("http://a.example/x", "http://[broken"))


def test_a_small_file_goes_the_same_way(served: Mirror) -> None:
    async def run(allowed: Allowed) -> bytes:
        async with Client(allowed) as client:
            return await fetch_whole(client, f"{served.url}/data.json", 2**20)

    assert asyncio.run(run(at_home)).startswith(b"{")
    with pytest.raises(RefusedError, match="--private-mirrors"):
        asyncio.run(run(nowhere))
