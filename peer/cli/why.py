"""`hetpeer why`, and how else a daemon is watched. A few lines, as in `peer/cli/__main__.py`."""

import sys
from typing import Annotated

import typer

from peer.cli.options import terminal

WHY_EXAMPLES = (
    "Examples:\n\n  hetpeer why 12\n\n  hetpeer why 8xK2mQpL\n\n  hetpeer why 12 ~/peer --json\n\n"
    "  hetpeer why 8xK2mQpL ~/.hetpeer/bootstrap-mine"
)


def why(
    what: Annotated[
        str, typer.Argument(metavar="ROUND|PEER", help="A round's number, or a peer's id, or the end of it.")
    ],
    where: Annotated[
        str | None,
        typer.Argument(
            metavar="[FOLDER|TICKET]",
            help="A peer's or the operator's node's folder, or a run. Default: the peer that last wrote its log here.",
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON, one object a line.")] = False,
) -> None:
    """Say what happened in a round, or with a peer, and why: from a daemon's log of events."""
    from peer.cli.commands.why import why as run

    sys.exit(run(what, where, terminal(json)))
