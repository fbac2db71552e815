"""What the dashboard answers, asked over a real socket."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import httpx2
import pytest

from bootstrap.dashboard import server
from bootstrap.dashboard.app import PAGE, Latest
from protocol.view import View
from tests.reference.dashboard import Shown
from tests.reference.views import LOST, view

HOSTILE = "</script><img src=x onerror=alert(1)>\r\n\r\nevent: view\u2028\u202e"


def asked(ask: Callable[[httpx2.AsyncClient, Shown], Awaitable[None]], seen: View | None = None) -> None:
    """Serve `seen`, and ask."""

    async def both() -> None:
        shown, url = Shown(seen or view()), asyncio.get_running_loop().create_future()
        async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
            serving = tasks.create_task(shown.serve(url.set_result, metrics=b"hetpeer_run_round 13\n"))
            async with httpx2.AsyncClient(base_url=await url, trust_env=False) as client:
                await ask(client, shown)
            shown.end()
            await serving

    asyncio.run(both())


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
        assert {"plotly.min.js", "page.css", "page.js", "icon.svg"} <= names
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
    monkeypatch.setattr("bootstrap.dashboard.app.BEAT_SECONDS", 0.2)

    async def ask(client: httpx2.AsyncClient, shown: Shown) -> None:
        async with client.stream("GET", "/events") as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            lines = lines_of(answer)
            kind, data = await told(lines)
            assert kind == "view"
            assert View.model_validate_json(data) == shown.view
            kind, data = await told(lines)
            assert kind == "beat"
            assert float(data) > 1.7e9
            later = view(lost=True)
            shown.change(later)
            while kind == "beat":
                kind, data = await told(lines)
            assert View.model_validate_json(data) == later
            shown.end()  # and a stream that is listened to does not hold up the node's end
            assert [line async for line in lines if line.startswith("event: view")] == []

    asked(ask)


def test_hostile_words_are_one_line_of_json():
    hostile = view(lost=True, why=HOSTILE)

    async def ask(client: httpx2.AsyncClient, _: Shown) -> None:
        async with client.stream("GET", "/events") as answer:
            kind, data = await told(lines_of(answer))
        assert kind == "view"
        assert next(each["why"] for each in json.loads(data)["peers"] if each["id"] == LOST) == HOSTILE

    asked(ask, hostile)


def test_however_many_read_it_the_view_is_made_at_most_twice_a_second():
    looks, now = [], [100.0]

    def look() -> View:
        looks.append(now[0])
        return view().model_copy(update={"now": now[0]})

    latest = Latest(look, lambda: now[0])
    first = latest.read()
    assert {latest.read() for _ in range(50)} == {first}
    assert looks == [100.0]
    now[0] += 0.6
    assert latest.read() == first  # only the time has changed
    assert looks == [100.0, 100.6]


def test_the_files_are_in_the_wheel():
    import tomllib

    project = tomllib.loads((Path(server.__file__).parents[2] / "pyproject.toml").read_text())
    patterns = project["tool"]["setuptools"]["package-data"]["bootstrap.dashboard"]
    shipped = {path for pattern in patterns for path in PAGE.parent.glob(pattern)}
    assert set(PAGE.iterdir()) <= shipped
