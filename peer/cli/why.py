"""`hetpeer why`: what happened in a round or with a peer, and why."""

import json
import os
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from peer.cli.options import RowsOption, terminal
from protocol.errors import ResourceError, UserError

if TYPE_CHECKING:
    from peer.process import Terminal
    from peer.telemetry.journal import JournalEntry
    from protocol.events.event import Event

ROUND = r"[0-9]{1,7}"
PEER = r"[1-9A-HJ-NP-Za-km-z]{8,64}"
"""A peer id in base58, or its end, as the logs show it."""

ENTRIES_READ = 100_000
"""The number of entries that are read of an operator's log, from its end: more than it keeps."""

NAMED = re.compile(r"Qm[1-9A-HJ-NP-Za-km-z]{44}")
"""A whole peer id in a line of a log."""

MOST_PEERS_SUGGESTED = 20
"""The number of peers that are named where the one that was asked for is not known."""

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
    """Print the log lines of a round or a peer and, for a round, the verdict on it. Returns the exit code."""
    from peer.cli.tables import print_table
    from peer.process import exit_code_of
    from peer.telemetry.journal import read_journal
    from protocol.events.activity import Joined
    from protocol.wording import moment, printable

    def work() -> int:
        folder, result = folder_of(where), ""
        noted = read_journal(daemon_in(folder))
        happened = happenings(folder, noted)
        if re.fullmatch(ROUND, what):
            matching = [line for line in happened if line.round == int(what)]
            result = round_verdict(int(what), [line.event for line in noted])
        elif re.fullmatch(PEER, what):
            is_own = any(isinstance(line.event, Joined) and line.event.peer_id.endswith(what) for line in noted)
            matching = [line for line in happened if is_own or line.names(what)]
        else:
            raise UserError(f"{what!r} is neither a round's number nor a peer's id; its last 8 characters are enough")
        if not matching:
            raise UserError(f"nothing is known of {what} in {folder}: {known(happened)}")
        lines = [] if where is not None and Path(where).expanduser() == folder else [f"The log in {folder}:"]
        lines += [f"{moment(line.at)}  {printable(line.words)}" for line in matching]
        lines += [printable(f"→ {result}.")] if result else []
        print_table(terminal, (line.row | {"words": line.words} for line in matching), "\n".join(lines))
        return 0

    return exit_code_of(terminal.emit, work)


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line of a log: Unix seconds, the round that it is about (0: none), its words, and its fields for `--json`."""

    at: float
    round: int
    words: str
    row: dict[str, Any]

    def names(self, peer: str) -> bool:
        """Whether the line is about a peer, by the end of its id."""
        return peer[-8:] in json.dumps(self.row)


def folder_of(where: str | None) -> Path:
    """The folder `where`; or, if `where` is a ticket or None, the folder of that run, or of any run on this machine,
    whose log was written last.

    Raises:
        ResourceError: there is none.
        TicketError: it is neither a folder nor a ticket.
    """
    from bootstrap.admission.audit_log import audit_log_files
    from peer.store.home import home, peer_folders
    from peer.telemetry.journal import EVENTS_FILE
    from protocol.files import old_log
    from protocol.trust.ticket import find_ticket

    def written(folder: Path) -> float:
        """The time at which the folder's logs were written last, in Unix seconds; 0: it has none."""
        events = daemon_in(folder) / EVENTS_FILE
        logs = [log for log in (*audit_log_files(folder), events, old_log(events)) if log.exists()]
        return max((log.stat().st_mtime for log in logs), default=0.0)

    if where is not None and os.path.isdir(os.path.expanduser(where)):  # Path refuses what is as long as a ticket
        folders = [Path(where).expanduser()]
    else:
        run = find_ticket(where, Path()).run_id if where is not None else None
        folders = [*peer_folders(run), *(home().glob("bootstrap-*") if run is None else ())]
    if not any(map(written, folders)):
        named = f"in {where}" if where is not None else f"under {home()}"
        raise ResourceError(f"no daemon has left a log of events {named}: name the folder of the one you mean")
    return max(folders, key=written)


def daemon_in(folder: Path) -> Path:
    """The folder with the event log: this one; or, for an operator's node without one, that of the observer in it."""
    from bootstrap.admission.audit_log import audit_log_files
    from peer.telemetry.journal import EVENTS_FILE

    return folder / "observer" if audit_log_files(folder) and not (folder / EVENTS_FILE).exists() else folder


def happenings(folder: Path, noted: Iterable["JournalEntry"]) -> list[LogLine]:
    """The lines of a daemon's journal and of the operator's log in `folder`, the earliest first.

    An event is of the round that it names, or else of the one that this peer worked on; an operator's entry is of none.
    """
    from bootstrap.admission.audit_log import audit_log_files, last
    from peer.cli.tables import log_line, log_rows
    from protocol.events.activity import Resumed
    from protocol.events.decisions import Adopted, CaughtUp, Resynchronised

    lines: list[LogLine] = []
    for noted_entry in noted:
        past = isinstance(noted_entry.event, Resumed | Adopted | CaughtUp | Resynchronised)  # the round named is over
        round = noted_entry.in_round if past else int(getattr(noted_entry.event, "round", 0)) or noted_entry.in_round
        lines.append(LogLine(noted_entry.at, round, _words(noted_entry.event), noted_entry.row()))
    entries = last(folder, ENTRIES_READ) if audit_log_files(folder) else []
    for entry, row in zip(entries, log_rows(entries), strict=True):
        lines.append(LogLine(entry.at, 0, log_line(entry).split(" ", 2)[2], row))  # without day and time
    return sorted(lines, key=lambda line: line.at)


def _words(event: "Event") -> str:
    from protocol.events.activity import Contributed, Failed, Progress

    match event:
        case Contributed(round, steps):
            return f"This peer's contribution to round {round} is out, of {steps} inner steps of its own."
        case Failed(message):
            return f"This peer stopped: {message}"
        case Progress(doing):
            return doing[0].upper() + doing[1:]
    return event.words or event.name


def round_verdict(round: int, events: Sequence["Event"]) -> str:
    """The verdict on this peer's contribution to a round, counted or not and why, in words; empty: the log has none."""
    from protocol.events.activity import Contributed
    from protocol.events.decisions import Counted, NotCounted

    refused: dict[str, str] = {}
    contributed = False
    for event in events:
        if getattr(event, "round", None) != round:
            continue
        if isinstance(event, Contributed):
            contributed = True
        elif isinstance(event, NotCounted):
            refused |= dict.fromkeys(event.parts, event.reason)
        elif isinstance(event, Counted):
            refused = {part: reason for part, reason in refused.items() if part not in event.parts}
    if refused:
        return "Not counted: " + "; ".join(
            f"{', '.join(part for part in refused if refused[part] == reason)}, because {reason}"
            for reason in dict.fromkeys(refused.values())
        )
    return f"Counted: what this peer contributed to round {round}, as far as its log goes" if contributed else ""


def known(happened: Sequence[LogLine]) -> str:
    """The rounds and peers that a log has, in words."""
    rounds = sorted({line.round for line in happened if line.round})
    peers = sorted({peer for line in happened for peer in NAMED.findall(json.dumps(line.row))})
    named = ", ".join(peer[-8:] for peer in peers[:MOST_PEERS_SUGGESTED]) + (
        ", …" if len(peers) > MOST_PEERS_SUGGESTED else ""
    )
    spans = f"rounds {rounds[0]} to {rounds[-1]}" if rounds else "no round"
    return f"its log has {spans}, and {f'peers {named}' if peers else 'no peer'}"
