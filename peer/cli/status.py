"""`hetpeer status`: how a run goes. A few lines, as in `peer/cli/__main__.py`."""

import sys
from typing import Annotated

import typer

from peer.cli.options import terminal

STATUS_EXAMPLES = (
    "Examples:\n\n  hetpeer status hetpeer1-…\n\n  hetpeer status --watch\n\n  hetpeer status hetpeer1-… --json"
)


def status(
    ticket: Annotated[
        str | None,
        typer.Argument(
            metavar="[TICKET]",
            help="The run's ticket, or a file with it. Else HETPEER_TICKET, else the last one used on this machine.",
        ),
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Go on and show what changes, until Ctrl-C.")] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print the whole view as JSON, one object; with --watch, one a line.")
    ] = False,
) -> None:
    """Show how a run goes: who is there and what each does, the rounds with their loss, and what happened last."""
    from peer.cli.commands.status import status as run

    sys.exit(run(ticket, watch, terminal(json)))
