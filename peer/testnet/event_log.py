"""Every event of a testnet with its time: kept, and written as JSON lines."""

import json
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TextIO

from peer.telemetry.damage import Timed
from peer.telemetry.events import Event
from peer.telemetry.run_report import strict


@dataclass(slots=True)
class EventLog:
    """`events.jsonl`: {"at": seconds since the start, "process": …, "event": "StepDone", its fields}, one a line."""

    file: TextIO
    began: float = field(default_factory=time.monotonic)
    entries: list[Timed] = field(default_factory=list)

    @staticmethod
    def open(path: Path) -> "EventLog":
        """Begin a log at `path`."""
        return EventLog(path.open("w", buffering=1, encoding="utf-8"))

    def take(self, process: str, event: Event) -> Timed:
        """Keep and write what a process said."""
        entry = Timed(round(self.now(), 4), process, event)
        self.entries.append(entry)
        head = {"at": entry.seconds, "process": process, "event": event.name}
        self.file.write(json.dumps(strict(head | asdict(event)), allow_nan=False) + "\n")
        return entry

    def now(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.began

    def close(self) -> None:
        """End it."""
        self.file.close()
