"""What the dashboard answers, asked over a real socket."""

import asyncio
import itertools
import json
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import httpx2
import pytest

from bootstrap.dashboard import app, server
from bootstrap.dashboard.app import PAGE, Latest
from bootstrap.dashboard.demo import Trouble, demo_view
from bootstrap.dashboard.page_view import merge_patch, page_view
from protocol.monitor import View
from tests.reference.dashboard import Shown


def run(trouble: Trouble = "none", why: str = "") -> View:
    """A made-up run, in which the first peer says `why`."""
    view = demo_view(5, 1_795_000_020.0, 1_795_000_000.0, trouble)
    return view.model_copy(update={"peers": [replace(view.peers[0], why=why), *view.peers[1:]]})


HOSTILE = "</script><img src=x onerror=alert(1)>\r\n\r\nevent: view\u2028\u202e"


def asked(
    ask: Callable[[httpx2.AsyncClient, Shown], Awaitable[None]],
    seen: View | None = None,
    loop: Callable[[], asyncio.AbstractEventLoop] | None = None,
) -> None:
    """Serve `seen`, and ask, in a loop of this kind."""

    async def both() -> None:
        shown, url = Shown(seen or run()), asyncio.get_running_loop().create_future()
        async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
            serving = tasks.create_task(shown.serve(url.set_result, metrics=b"hetpeer_run_round 13\n"))
            async with httpx2.AsyncClient(base_url=await url, trust_env=False) as client:
                await ask(client, shown)
            shown.end()
            await serving

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(both())


async def lines_of(answer: httpx2.Response) -> AsyncIterator[str]:
    """As browsers do: a line ends with a line feed alone."""
    rest = ""
    async for text in answer.aiter_text():
        *whole, rest = (rest + text).split("\n")
        for line in whole:
            yield line


async def told(lines: AsyncIterator[str]) -> tuple[str, str]:
    """The next event: its kind and its data."""
    kind = data = ""
    async for line in lines:
        if not line:
            break
        name, _, value = line.partition(": ")
        kind, data = (value, data) if name == "event" else (kind, value)
    return kind, data


def test_the_page_and_all_it_asks_for_come_from_here():
    async def ask(client: httpx2.AsyncClient, _: Shown) -> None:
        page = (await client.get("/")).text
        scripts = [path.name for path in PAGE.glob("*.js")]
        names = {*re.findall(r'(?:src|href)="([^"#]+)"', page), *scripts}
        assert {"page.css", "page.js", "icon.svg"} <= names
        for name in names:
            answer = await client.get(f"/{name}")
            assert answer.status_code == 200, name
        everything = page + "".join(path.read_text() for path in PAGE.iterdir())
        assert set(re.findall(r"https?://[^\s\"')]+", everything)) == {
            "http://www.w3.org/2000/svg"
        }  # a name, no address
        assert "<style" not in page
        assert not re.search(r"<script(?![^>]* src=)|\son\w+=|style=", page)

    asked(ask)


def test_browsers_are_told_to_run_nothing_else_and_to_let_nobody_frame_it():
    async def ask(client: httpx2.AsyncClient, _: Shown) -> None:
        for path in ("/", "/page.js", "/view.json", "/metrics", "/nothing-here"):
            headers = (await client.get(path)).headers
            policy = headers["content-security-policy"]
            assert "default-src 'none'; script-src 'self'; " in policy
            assert "frame-ancestors 'none'" in policy
            assert "unsafe" not in policy
            assert headers["x-content-type-options"] == "nosniff"
            assert "access-control-allow-origin" not in headers
            assert "server" not in headers

    asked(ask)


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "local host"])
def test_a_name_that_the_node_was_not_given_is_refused(host: str):
    async def ask(client: httpx2.AsyncClient, _: Shown) -> None:
        for path in ("/", "/view.json", "/events", "/metrics"):
            answer = await client.get(path, headers={"Host": host})
            assert answer.status_code in (400, 421), path
            assert b"run_id" not in answer.content
            assert host == "" or "--announce" in answer.text

    asked(ask)


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LOCALHOST:8080",
        "127.0.0.1",
        "192.0.2.7:9",
        "[::1]:8080",
        "[2001:db8::1]",
        "Train.example.org:8080",
    ],
)
def test_addresses_and_the_nodes_own_names_are_answered(host: str):
    async def ask(client: httpx2.AsyncClient, _: Shown) -> None:
        assert (await client.get("/view.json", headers={"Host": host})).status_code == 200

    asked(ask)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_it_is_read_only(method: str):
    async def ask(client: httpx2.AsyncClient, _: Shown) -> None:
        for path in ("/", "/view.json", "/events", "/metrics", "/page.js"):
            assert (await client.request(method, path)).status_code == 405

    asked(ask)


@pytest.mark.parametrize("path", ["/../app.py", "/..%2fapp.py", "/%2e%2e/app.py", "/....//app.py", "/%2fetc/passwd"])
def test_nothing_beside_the_page_is_handed_out(path: str):
    async def ask(client: httpx2.AsyncClient, _: Shown) -> None:
        assert (await client.get(path)).status_code in (400, 404)

    asked(ask)


def test_metrics_are_the_nodes_and_what_it_has_none_of_is_not_there():
    async def ask(client: httpx2.AsyncClient, _: Shown) -> None:
        answer = await client.get("/metrics")
        assert answer.content == b"hetpeer_run_round 13\n"
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        assert (await client.get("/docs")).status_code == 404

    asked(ask)


def test_events_are_the_view_now_and_again_when_it_has_changed_and_beats_in_between(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("bootstrap.dashboard.app.PAGE_HEARTBEAT_SECONDS", 0.2)

    async def ask(client: httpx2.AsyncClient, shown: Shown) -> None:
        async with client.stream("GET", "/events") as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            lines = lines_of(answer)
            kind, data = await told(lines)
            assert kind == "view"
            before = json.loads(data)
            assert before == page_view(shown.view)
            kind, data = await told(lines)
            assert kind == "beat"
            assert float(data) > 1.7e9
            later = run("short")
            shown.change(later)
            while kind == "beat":
                kind, data = await told(lines)
            assert kind == "change"
            assert json.loads(data) == merge_patch(before, page_view(later))
            shown.end()  # and a stream that is listened to does not hold up the node's end
            assert [line async for line in lines if line.startswith("event: change")] == []

    asked(ask)


async def half(client: httpx2.AsyncClient, said: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection on which so much is said, and no more."""
    reader, writer = await asyncio.open_connection(client.base_url.host, client.base_url.port)
    writer.write(said)
    return reader, writer


FOLLOWING = b"GET /events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


def test_so_many_pages_follow_and_the_others_are_told_so_and_still_see_the_run():
    """Before, 260 streams were all that the dashboard had."""

    async def ask(client: httpx2.AsyncClient, _: Shown) -> None:
        made = [await half(client, FOLLOWING) for _ in range(260)]
        said = [await reader.readline() for reader, _ in made]
        assert said.count(b"HTTP/1.1 200 OK\r\n") == app.STREAMS_OF_NETWORK
        assert said.count(b"HTTP/1.1 503 Service Unavailable\r\n") == 260 - app.STREAMS_OF_NETWORK
        assert (await client.get("/view.json")).status_code == 200
        refused = await client.get("/events")
        assert "Too many pages follow this dashboard now" in refused.text
        for _, writer in made:
            writer.transport.abort()
        again = b""
        while again != b"HTTP/1.1 200 OK\r\n":  # until it has heard
            reader, writer = await half(client, FOLLOWING)
            again = await reader.readline()
            writer.transport.abort()

    asked(ask)


@pytest.mark.parametrize("said", [b"", b"GET /view.json HTTP/1.1\r\nHost: 127.0.0.1\r\n"], ids=["nothing", "half"])
def test_half_requests_end_and_keep_nobody_out(said: bytes, monkeypatch: pytest.MonkeyPatch):
    """Before, 1,000 of them were all that the dashboard had, for ever."""
    monkeypatch.setattr("bootstrap.dashboard.server.REQUEST_SECONDS", 1.0)

    async def ask(client: httpx2.AsyncClient, _: Shown) -> None:
        made = [await half(client, said) for _ in range(server.MOST_CONNECTIONS + 50)]
        assert (await client.get("/view.json")).status_code == 200
        for reader, writer in made:  # those that made way, and those whose time is over
            with suppress(ConnectionError):
                assert await reader.read() == b""
            writer.close()

    asked(ask)


def test_where_there_are_too_many_connections_the_oldest_that_is_no_stream_makes_way(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("bootstrap.dashboard.server.MOST_CONNECTIONS", 3)
    monkeypatch.setattr("bootstrap.dashboard.server.REQUEST_SECONDS", 3600.0)

    async def ask(client: httpx2.AsyncClient, _: Shown) -> None:
        follows, following = await half(client, FOLLOWING)
        assert await follows.readline() == b"HTTP/1.1 200 OK\r\n"
        made = [await half(client, b"GET") for _ in range(3)]
        assert await made[0][0].read() == b""
        assert (await client.get("/view.json")).status_code == 200
        assert await follows.readline()
        for _, writer in (*made, (follows, following)):
            writer.close()

    asked(ask)


def test_a_burst_of_connections_leaves_no_more_than_there_may_be(monkeypatch: pytest.MonkeyPatch):
    """asyncio's own loop accepts them within one turn, in which one that is aborted has not left yet."""
    monkeypatch.setattr("bootstrap.dashboard.server.MOST_CONNECTIONS", 3)
    monkeypatch.setattr("bootstrap.dashboard.server.REQUEST_SECONDS", 3600.0)

    async def ask(client: httpx2.AsyncClient, _: Shown) -> None:
        host, port = client.base_url.host, client.base_url.port
        assert port is not None
        burst = [socket.create_connection((host, port)) for _ in range(20)]
        kept = burst[-3:]
        for connection in burst[:-3]:
            connection.settimeout(10)
            with suppress(ConnectionResetError):
                assert await asyncio.to_thread(connection.recv, 1) == b""
        for connection in kept:
            connection.setblocking(False)
            with pytest.raises(BlockingIOError):
                connection.recv(1)
        for connection in burst:
            connection.close()

    asked(ask, loop=asyncio.SelectorEventLoop)


@pytest.mark.parametrize(("path", "length"), [("/view.json", 12_000_000), ("/events", 200_000)])
def test_who_does_not_take_what_it_asked_for_is_hung_up_on(path: str, length: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("bootstrap.dashboard.server.RESPONSE_TIMEOUT_SECONDS", 0.2)
    monkeypatch.setattr("bootstrap.dashboard.server.BEHIND_SECONDS", 0.2)
    monkeypatch.setattr("bootstrap.dashboard.app.VIEW_INTERVAL_SECONDS", 0.0)

    async def ask(client: httpx2.AsyncClient, shown: Shown) -> None:
        reader, writer = await half(client, f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
        await reader.readline()
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        gone = asyncio.create_task(_gone(writer))
        for number in itertools.count():
            if gone.done():
                break
            shown.change(run("short", str(number) + "x" * 200_000))
            await asyncio.sleep(0.01)

    asked(ask, run("short", "x" * length))


async def _gone(writer: asyncio.StreamWriter) -> None:
    """Until the other end has hung up: then writing fails."""
    with suppress(ConnectionError):
        while not writer.transport.is_closing():
            writer.write(b" ")
            await writer.drain()
            await asyncio.sleep(0.05)


def test_hostile_words_are_one_line_of_json():
    hostile = run("short", HOSTILE)

    async def ask(client: httpx2.AsyncClient, _: Shown) -> None:
        async with client.stream("GET", "/events") as answer:
            kind, data = await told(lines_of(answer))
        assert kind == "view"
        assert json.loads(data)["peers"][hostile.peers[0].id]["why"] == HOSTILE

    asked(ask, hostile)


def test_however_many_read_it_the_view_is_made_at_most_twice_a_second():
    looks, now = [], [100.0]

    def look() -> View:
        looks.append(now[0])
        return run().model_copy(update={"now": now[0]})

    latest = Latest(look, lambda: now[0])
    first = latest.read().event_after(0)
    assert {latest.read().event_after(0) for _ in range(50)} == {first}
    assert looks == [100.0]
    now[0] += 0.6
    assert latest.read().event_after(0) == first  # only the time has changed
    assert latest.number == 1
    assert looks == [100.0, 100.6]


def test_a_page_that_is_a_little_behind_gets_what_has_changed_and_one_far_behind_everything():
    views = [run("short", str(number)) for number in range(9)]
    now = [100.0]
    latest = Latest(lambda: views[int(now[0]) - 100], lambda: now[0])
    for _ in views[1:]:
        latest.read()
        now[0] += 1
    newest = latest.read().number
    trees = [page_view(view) for view in views]
    patch = json.loads(latest.event_after(newest - 2).removeprefix("event: change\ndata: "))
    assert patch == merge_patch(trees[-3], trees[-1]) == {"peers": {views[0].peers[0].id: {"why": "8"}}}
    assert json.loads(latest.event_after(1).removeprefix("event: view\ndata: ")) == trees[-1]


def test_the_files_are_in_the_wheel():
    import tomllib

    project = tomllib.loads((Path(server.__file__).parents[2] / "pyproject.toml").read_text())
    patterns = project["tool"]["setuptools"]["package-data"]["bootstrap.dashboard"]
    shipped = {path for pattern in patterns for path in PAGE.parent.glob(pattern)}
    assert set(PAGE.iterdir()) <= shipped
