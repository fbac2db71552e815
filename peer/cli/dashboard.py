"""`hetpeer dashboard`: a made-up run on the page of `hetpeer bootstrap --dashboard`, to look at."""

import sys
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from peer.cli.options import terminal
from protocol.errors import UserError

if TYPE_CHECKING:
    import asyncio

    from peer.process import Terminal

DEMO_SECONDS_A_LOOK = 1.0
"""The interval at which a made-up run moves, in seconds."""

REAL_RUN = (
    "this command shows a made-up run alone, of as many peers as you say: `--demo 50`. The dashboard of a real run is "
    "at its operator's node: `hetpeer bootstrap run.toml --dashboard 8080`. Whoever has a ticket sees the run with "
    "`hetpeer status`"
)

DASHBOARD_EXAMPLES = (
    "Examples:\n\n  hetpeer dashboard --demo 500\n\n  hetpeer dashboard --demo 50 --trouble stalled --port 8080\n\n"
    "That of a real run: hetpeer bootstrap run.toml --dashboard 8080"
)


def dashboard(
    demo: Annotated[
        int | None, typer.Option("--demo", metavar="PEERS", min=1, max=2048, help="Make up a run of so many peers.")
    ] = None,
    trouble: Annotated[
        Literal["none", "short", "stalled"],
        typer.Option(help="What goes wrong in it: a stage has too few volunteers, or nobody is left at one."),
    ] = "none",
    port: Annotated[
        int, typer.Option(metavar="PORT", min=0, max=65535, help="The port on this machine; 0: any that is free.")
    ] = 0,
) -> None:
    """Show a made-up run on the page that operators see, to look at the page. It listens to this machine alone."""
    from peer.process import exit_code_of, run_command

    shown = terminal(False)

    def work() -> int:
        if demo is None:
            raise UserError(REAL_RUN)
        return run_command(partial(_serve, demo, trouble, port, shown), shown)

    sys.exit(exit_code_of(shown.emit, work))


async def _serve(
    demo: int, trouble: Literal["none", "short", "stalled"], port: int, terminal: "Terminal", stop: "asyncio.Event"
) -> None:
    import asyncio

    from bootstrap.dashboard.demo import demo_view
    from bootstrap.dashboard.server import dashboard_port, serve_dashboard
    from protocol.clock import unix_time
    from protocol.events.activity import Progress

    async def until_changed(seconds: float) -> None:
        await asyncio.sleep(min(seconds, DEMO_SECONDS_A_LOOK))

    began = unix_time()
    with dashboard_port(str(port), option="--port PORT") as listening:
        terminal.emit(Progress(f"a made-up run of {demo:,} peers: {listening.url} (Ctrl-C ends it)"))
        await serve_dashboard(
            listening, lambda: demo_view(demo, unix_time(), began, trouble), until_changed, None, stop
        )
