"""What happened in a round or with a peer, as the logs in a daemon's folder have it, and the reasons."""

import json
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bootstrap.admission.audit_log import kept_in, last
from peer.cli.tables import log_line, log_rows
from peer.store.home import home, peer_folders
from peer.telemetry.decisions import Adopted, CaughtUp, Counted, NotCounted, Resynchronised
from peer.telemetry.events import Contributed, Event, Failed, Progress, Resumed
from peer.telemetry.journal import EVENTS, JournalEntry
from protocol.errors import ResourceError
from protocol.files import old_log
from protocol.trust.ticket import find
from protocol.wording import moment, printable

ENTRIES_READ = 100_000
"""Of an operator's log, from its end: more than it keeps."""

NAMED = re.compile(r"Qm[1-9A-HJ-NP-Za-km-z]{44}")

MOST_NAMED = 20
"""So many peers are named where the one that was asked for is not known."""


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of a log: when, the round that it is of (0: of none), what is told, and what it says for programs."""

    at: float
    round: int
    words: str
    row: dict[str, Any]

    def names(self, peer: str) -> bool:
        """Whether the line is about a peer, by the end of its id."""
        return peer[-8:] in json.dumps(self.row)


def folder_of(where: str | None) -> Path:
    """The folder that is named; or, of a run's folders or all on this machine, the one whose log was written last.

    Raises:
        ResourceError: there is none.
        TicketError: it is neither a folder nor a ticket.
    """
    if where is not None and os.path.isdir(os.path.expanduser(where)):  # Path refuses what is as long as a ticket
        folders = [Path(where).expanduser()]
    else:
        run = find(where, Path()).run_id if where is not None else None
        folders = [*peer_folders(run), *(home().glob("bootstrap-*") if run is None else ())]
    written = {each: _written(each) for each in folders}
    if not any(written.values()):
        named = f"in {where}" if where is not None else f"under {home()}"
        raise ResourceError(f"no daemon has left a log of events {named}: name the folder of the one you mean")
    return max(folders, key=lambda each: written[each])


def daemon_in(folder: Path) -> Path:
    """The folder of the daemon whose events count: this one, or that of the observer beside an operator's node."""
    return folder / "observer" if kept_in(folder) and not (folder / EVENTS).exists() else folder


def _written(folder: Path) -> float:
    """When a folder's logs were written last, in Unix seconds; 0: it has none."""
    logs = [*kept_in(folder), daemon_in(folder) / EVENTS, old_log(daemon_in(folder) / EVENTS)]
    return max((each.stat().st_mtime for each in logs if each.exists()), default=0.0)


def happenings(folder: Path, noted: Iterable[JournalEntry]) -> list[LogLine]:
    """The lines of a daemon's journal and of the operator's log in `folder`, the earliest first."""
    own = [LogLine(each.at, _round(each), _words(each.event), each.row()) for each in noted]
    return sorted([*own, *_of_operator(folder)], key=lambda each: each.at)


def _round(noted: JournalEntry) -> int:
    """The round that an event is of: the one it names, or else the one that this peer worked on."""
    past = isinstance(noted.event, Resumed | Adopted | CaughtUp | Resynchronised)
    return noted.in_round if past else int(getattr(noted.event, "round", 0)) or noted.in_round


def _words(event: Event) -> str:
    match event:
        case Contributed(round, steps):
            return f"This peer's contribution to round {round} is out, of {steps} inner steps of its own."
        case Failed(message):
            return f"This peer stopped: {message}"
        case Progress(doing):
            return doing[0].upper() + doing[1:]
    return event.words or event.name


def _of_operator(folder: Path) -> Iterable[LogLine]:
    """The lines of the operator's log: none is of a round."""
    entries = last(folder, ENTRIES_READ) if kept_in(folder) else []
    for entry, row in zip(entries, log_rows(entries), strict=True):
        words = log_line(entry).split(" ", 2)[2]  # without day and time
        yield LogLine(entry.at, 0, words, row)


def verdict(round: int, events: Sequence[Event]) -> str:
    """A sentence on what this peer's work in a round came to; empty: it is not known."""
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


def drawn(found: Sequence[LogLine], verdict: str) -> str:
    """The lines and the verdict for a person."""
    lines = [f"{moment(each.at)}  {printable(each.words)}" for each in found]
    return "\n".join([*lines, *([printable(f"→ {verdict}.")] if verdict else [])])


def known(happened: Sequence[LogLine]) -> str:
    """The rounds and peers that a log has, in words."""
    rounds = sorted({each.round for each in happened if each.round})
    peers = sorted({each for line in happened for each in NAMED.findall(json.dumps(line.row))})
    named = ", ".join(each[-8:] for each in peers[:MOST_NAMED]) + (", …" if len(peers) > MOST_NAMED else "")
    spans = f"rounds {rounds[0]} to {rounds[-1]}" if rounds else "no round"
    return f"its log has {spans}, and {f'peers {named}' if peers else 'no peer'}"
