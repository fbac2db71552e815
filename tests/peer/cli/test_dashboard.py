"""`hetpeer dashboard`, which serves a run that is made up."""

import asyncio
import re
import socket

import httpx2
import pytest
import typer
from typer.testing import CliRunner

from peer.cli.__main__ import app
from peer.cli.dashboard import _serve
from peer.process import Terminal
from protocol.errors import ResourceError
from protocol.events.event import Event
from protocol.monitor import View


def test_a_made_up_run_is_served_to_this_machine_alone_and_says_so():
    command = typer.main.get_command(app).commands["dashboard"]  # type: ignore[attr-defined]
    typed = command.make_context("dashboard", ["--demo", "20", "--trouble", "stalled"]).params

    async def ask() -> None:
        said: asyncio.Queue[Event] = asyncio.Queue()
        stop = asyncio.Event()
        async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
            tasks.create_task(_serve(**typed, terminal=Terminal(said.put_nowait), stop=stop))
            url = re.search(r"http://127\.0\.0\.1:\d+/", (await said.get()).words)
            assert url is not None
            async with httpx2.AsyncClient(base_url=url[0], trust_env=False) as client:
                view = View.model_validate_json((await client.get("/view.json")).text)
                assert (await client.get("/")).status_code == 200
            stop.set()
        assert view.made_up
        assert (len(view.peers), view.state) == (20, "training")

    asyncio.run(ask())


def test_a_port_that_is_taken_is_said_and_what_to_do():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ResourceError, match="try another one: --port PORT"):
            asyncio.run(_serve(5, "none", port, Terminal(lambda _: None), asyncio.Event()))


def test_without_a_number_of_peers_a_real_runs_dashboard_is_pointed_at():
    result = CliRunner().invoke(app, ["dashboard"])
    assert result.exit_code == 2
    assert "hetpeer bootstrap run.toml --dashboard 8080" in " ".join(result.output.split())
    assert "--dashboard" in _flags("bootstrap")  # what it points at is there


def _flags(command: str) -> set[str]:
    found = typer.main.get_command(app).commands[command]  # type: ignore[attr-defined]
    return {flag for parameter in found.params for flag in parameter.opts}
