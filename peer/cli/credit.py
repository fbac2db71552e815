"""`hetpeer credit`: what others have signed of a peer's work. A few lines, as in `peer/cli/__main__.py`."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from peer.cli.options import terminal

CREDIT_EXAMPLES = (
    "Examples:\n\n  hetpeer credit\n\n  hetpeer credit ~/peer --json\n\n  hetpeer credit ~/peer --out mine.receipts\n\n"
    "  hetpeer credit --verify theirs.receipts\n\n"
    "Nobody is asked: receipts are signed, and so are their signers' places in the run. The exit code is 7 if one does "
    "not hold."
)


def credit(
    folder: Annotated[
        Path | None,
        typer.Argument(metavar="[FOLDER]", help="The peer's folder. Default: the only one under ~/.hetpeer."),
    ] = None,
    verify: Annotated[
        list[Path] | None,
        typer.Option(
            "--verify",
            metavar="FILE",
            help="Check another peer's receipts instead, in a file that it gave you. FOLDER then says of which run; it "
            "is not needed if this machine knows only one.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Write those that hold to one file, for others to check."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show what a peer gave to its run, by what other peers have signed, and check every signature."""
    from peer.cli.commands.credit import CreditOptions
    from peer.cli.commands.credit import credit as run

    sys.exit(run(CreditOptions(folder, tuple(verify or ()), out), terminal(json)))
