"""`hetpeer credit`: what others have signed of a peer's work, checked without asking anybody."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from peer.cli.options import takes, terminal
from protocol.errors import FormatError, ResourceError

if TYPE_CHECKING:
    from peer.process import Terminal

CREDIT_EXAMPLES = (
    "Examples:\n\n  hetpeer credit\n\n  hetpeer credit ~/peer --json\n\n  hetpeer credit ~/peer --out mine.receipts\n\n"
    "  hetpeer credit --verify theirs.receipts\n\n"
    "Nobody is asked: receipts are signed, and so are their signers' places in the run. The exit code is 7 if one does "
    "not hold."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CreditOptions:
    """The options of `hetpeer credit`."""

    folder: Annotated[
        Path | None,
        typer.Argument(metavar="[FOLDER]", help="The peer's folder. Default: the only one under ~/.hetpeer."),
    ] = None
    verify: Annotated[
        list[Path] | None,
        typer.Option(
            "--verify",
            metavar="FILE",
            help="Check another peer's receipts instead, in a file that it gave you. FOLDER then says of which run; it "
            "is not needed if this machine knows only one.",
        ),
    ] = None
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Write those that hold to one file, for others to check."),
    ] = None
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False


@takes(CreditOptions)
def credit(options: CreditOptions) -> None:
    """Show what a peer gave to its run, by what other peers have signed, and check every signature."""
    sys.exit(show_credit(options, terminal(options.json)))


def show_credit(options: CreditOptions, terminal: "Terminal") -> int:
    """Check the receipts, show what they come to, and write those that hold; the exit code."""
    import json

    from peer.cli.checked_receipts import check_receipts, draw, to_json
    from peer.process import told
    from protocol.files import write_atomically
    from protocol.trust.receipts import standing, to_line

    def work() -> int:
        given = tuple(options.verify or ())
        folder = (options.folder or (_any_folder() if given else _only_folder())).expanduser()
        checked = check_receipts(folder, given)
        if options.out is not None:
            kept = standing(checked.receipts)
            write_atomically(options.out, b"".join(to_line(checked.receipts[each]) for each in kept))
        if terminal.json:
            print(json.dumps(to_json(checked)), flush=True)
        else:
            draw(checked)
        return FormatError.exit_code if checked.refused else 0

    return told(terminal.emit, work)


def _only_folder() -> Path:
    """The folder of the one peer of this machine that has receipts."""
    from peer.store.home import home, peer_folders
    from peer.store.receipt_file import RECEIPTS

    found = [folder for folder in peer_folders(None) if (folder / RECEIPTS).is_dir()]
    if not found:
        raise ResourceError(f"no peer under {home()} has receipts; name its folder: `hetpeer credit FOLDER`")
    if len(found) > 1:
        raise ResourceError(
            f"{len(found)} peers under {home()} have receipts; name the folder of one, as in `hetpeer credit "
            f"{found[0]}`. The others: {', '.join(map(str, found[1:]))}"
        )
    return found[0]


def _any_folder() -> Path:
    """A folder that knows the one run that this machine knows: a peer's, or its bootstrap node's."""
    from peer.store.home import home
    from protocol.run.run_files import DESCRIPTOR, read_kept

    known = {read_kept(path.parent).run_id: path.parent for path in sorted(home().glob(f"**/{DESCRIPTOR}"))}
    if len(known) != 1:
        of = f"more than one run ({len(known)})" if known else "no run"
        among = f", one of {', '.join(map(str, known.values()))}" if known else ""
        raise ResourceError(
            f"there is {of} under {home()}; name a folder with that run's {DESCRIPTOR}{among}: `hetpeer credit FOLDER "
            "--verify FILE`"
        )
    return next(iter(known.values()))
