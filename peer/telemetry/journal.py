"""The journal of a daemon's events in its own folder, with their reasons; and the same as structured log lines.

<folder>/events.jsonl      {"time": Unix seconds, "level": …, "event": "GroupBroken", "reason": …, "in_round": 3, …}
<folder>/events.old.jsonl  the file before that one

What follows are the event's fields, as with `--json`.
Inner steps and what else only passes by are not kept: `hetpeer why` reads what is.
"""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from peer.telemetry.status import Status
from protocol.clock import unix_time
from protocol.errors import ResourceError
from protocol.events.activity import Serving, Warned
from protocol.events.event import Event, Listener, Sink
from protocol.events.fields import MOST_TEXT
from protocol.events.lines import EVENT_TYPES, event_of, row_of
from protocol.files import LOG_BYTES, append_line, logged_lines

EVENTS_FILE = "events.jsonl"

HEAD = ("time", "level", "event", "reason", "in_round")


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """An event, when it was in Unix seconds, and the round this peer worked on then; 0: none yet."""

    at: float
    in_round: int
    event: Event

    def row(self) -> dict[str, Any]:
        """The entry as it is written, without the ticket, which would be a secret in a closed run."""
        head = (round(self.at, 3), self.event.level, self.event.name, self.event.cause[:MOST_TEXT], self.in_round)
        row = dict(zip(HEAD, head, strict=True)) | row_of(self.event, cut=True)
        return row | ({"ticket": ""} if isinstance(self.event, Serving) else {})

    def line(self) -> str:
        """The entry as one line of JSON."""
        return json.dumps(self.row(), allow_nan=False)


@dataclass(slots=True)
class Journal:
    """The log in `folder`. A full disk is told once, and costs the peer nothing else. `status` hears each event
    before."""

    folder: Path
    warn: Listener
    status: Status
    most_bytes: int = LOG_BYTES
    clock: Callable[[], float] = unix_time
    last: Event | None = None
    broken: bool = False

    def __call__(self, event: Event) -> None:
        if event.level == "debug" or Sink.JOURNAL not in event.sinks or event == self.last:
            return
        self.last = event
        try:
            line = JournalEntry(self.clock(), self.status.round, event).line()
            append_line(self.folder / EVENTS_FILE, line.encode() + b"\n", self.most_bytes)
            self.broken = False
        except ResourceError as error:
            if not self.broken:
                self.broken = True
                self.warn(Warned(f"WARNING: {error}; going on without this peer's log of events"))


@dataclass(slots=True)
class LogLines:
    """`--log-json`: every event on standard error, for what collects the logs of services there. `status` hears each
    event before."""

    status: Status
    clock: Callable[[], float] = unix_time

    def __call__(self, event: Event) -> None:
        print(JournalEntry(self.clock(), self.status.round, event).line(), file=sys.stderr, flush=True)


def read_journal(folder: Path) -> list[JournalEntry]:
    """Read the events in a folder's log, the oldest first. Lines that a power cut left half, or of kinds that this
    version does not know, are skipped.

    Raises:
        ResourceError: it cannot be read.
    """
    entries = []
    for line in logged_lines(folder / EVENTS_FILE):
        try:
            entries.append(_noted(json.loads(line)))
        except (ValueError, KeyError, TypeError, RecursionError):
            continue
    return entries


def _noted(row: Any) -> JournalEntry:
    """The event of a row, in which a number that was not finite is null: it is read as NaN.

    Raises:
        ValueError, KeyError, TypeError: the row is none of an event.
    """
    kind = Warned if row["event"] == "Progress" and row["level"] == "warning" else EVENT_TYPES[str(row["event"])]
    own = {value.name for value in fields(kind)} | {"event"}
    event = event_of({name: value for name, value in row.items() if name in own or name not in HEAD}, kind)
    return JournalEntry(float(row["time"]), int(row["in_round"]), event)
