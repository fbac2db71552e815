"""`hetpeer status`: the run as an operator's node sees it, asked for at the door."""

import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from peer.cli.options import TICKET_HELP, terminal
from protocol.errors import RefusedError, UnreachableError

if TYPE_CHECKING:
    import asyncio

    from rich.console import Console

    from peer.process import Terminal
    from protocol.monitor import View
    from protocol.trust.ticket import Ticket

WATCH_SECONDS = 2.0

WIDTH_OF_FILES = 120
"""Of a line, in columns, where nobody says how wide one may be."""

STATUS_EXAMPLES = (
    "Examples:\n\n  hetpeer status hetpeer1-…\n\n  hetpeer status --watch\n\n  hetpeer status hetpeer1-… --json"
)


def status(
    ticket: Annotated[
        str | None,
        typer.Argument(
            metavar="[TICKET]",
            help=TICKET_HELP,
        ),
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Go on and show what changes, until Ctrl-C.")] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print the whole view as JSON, one object; with --watch, one a line.")
    ] = False,
) -> None:
    """Show how a run goes: who is there and what each does, the rounds with their loss, and what happened last."""
    from peer.process import run_command, told
    from peer.store.home import home
    from protocol.trust.ticket import find

    shown = terminal(json)

    def work() -> int:
        found = find(ticket, home())
        return run_command(lambda stop: _show(found, watch, shown, stop), shown)

    sys.exit(told(shown.emit, work))


async def _show(ticket: "Ticket", watch: bool, terminal: "Terminal", stop: "asyncio.Event") -> None:
    from rich.live import Live

    from peer.cli.run_tables import drawn
    from peer.network.admission import ask_status

    if not watch:
        view = await ask_status(ticket)
        if terminal.json:
            print(view.model_dump_json(), flush=True)
        else:
            _console().print(drawn(view))
    elif terminal.json:
        async for view, _ in _views(ticket, stop):
            print(view.model_dump_json(), flush=True)
    else:
        with Live(console=_console(), auto_refresh=False) as live:
            async for view, trouble in _views(ticket, stop):
                live.update(drawn(view, trouble), refresh=True)


def _console() -> "Console":
    from rich.console import Console

    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=WIDTH_OF_FILES)


async def _views(ticket: "Ticket", stop: "asyncio.Event") -> AsyncIterator[tuple["View", str]]:
    """The run as it is now and then, until `stop`; while the node does not answer, as it was last, and why.

    Raises:
        HetpeerError: it does not answer at all.
    """
    import asyncio

    from peer.network.admission import ask_status

    view, trouble = await ask_status(ticket), ""
    while True:
        yield view, trouble
        with suppress(TimeoutError):
            async with asyncio.timeout(WATCH_SECONDS):
                await stop.wait()
        if stop.is_set():
            return
        try:
            view, trouble = await ask_status(ticket), ""
        except (UnreachableError, RefusedError) as error:
            trouble = str(error)
