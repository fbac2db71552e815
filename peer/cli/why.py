"""`hetpeer why`: what happened in a round or with a peer, and why."""

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from peer.cli.options import RowsOption, terminal
from protocol.errors import UserError

if TYPE_CHECKING:
    from peer.process import Terminal

ROUND = r"[0-9]{1,7}"
PEER = r"[1-9A-HJ-NP-Za-km-z]{8,64}"
"""The end of a peer id, as the logs show it, or all of it."""

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
    json: RowsOption = False,
) -> None:
    """Say what happened in a round, or with a peer, and why: from a daemon's log of events."""
    sys.exit(explain(what, where, terminal(json)))


def explain(what: str, where: str | None, terminal: "Terminal") -> int:
    """Show the log lines of a round or a peer, and what came of it; the exit code."""
    from peer.cli import explanation
    from peer.cli.tables import show
    from peer.process import told
    from peer.telemetry import journal
    from peer.telemetry.events import Joined

    def work() -> int:
        folder = explanation.folder_of(where)
        noted = journal.read_journal(explanation.daemon_in(folder))
        happened = explanation.happenings(folder, noted)
        if re.fullmatch(ROUND, what):
            found = [each for each in happened if each.round == int(what)]
            verdict = explanation.verdict(int(what), [each.event for each in noted])
        elif re.fullmatch(PEER, what):
            own = any(isinstance(each.event, Joined) and each.event.peer_id.endswith(what) for each in noted)
            found, verdict = [each for each in happened if own or each.names(what)], ""
        else:
            raise UserError(f"{what!r} is neither a round's number nor a peer's id, of which the last 8 characters do")
        if not found:
            raise UserError(f"nothing is known of {what} in {folder}: {explanation.known(happened)}")
        head = [] if where is not None and Path(where).expanduser() == folder else [f"The log in {folder}:"]
        rows = (each.row | {"words": each.words} for each in found)
        show(terminal, rows, "\n".join([*head, explanation.drawn(found, verdict)]))
        return 0

    return told(terminal.emit, work)
