"""The log of a testnet: every event of every process with its time, and the faults that are in it."""

import json
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from peer.telemetry.run_report import FaultDone
from protocol.events.activity import Injected, StepDone
from protocol.events.event import Event
from protocol.events.lines import row_of


@dataclass(frozen=True, slots=True)
class Timed:
    """An event of a process, in seconds since the testnet's start."""

    seconds: float
    process: str
    event: Event


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
        """Keep and write an event of a process."""
        entry = Timed(round(self.now(), 4), process, event)
        self.entries.append(entry)
        head = {"at": entry.seconds, "process": process}
        self.file.write(json.dumps(head | row_of(event), allow_nan=False) + "\n")
        return entry

    def now(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.began

    def close(self) -> None:
        """Close the file."""
        self.file.close()


def faults_done(log: Sequence[Timed]) -> list[FaultDone]:
    """The faults in a log, in the order of their numbers, as they were done and undone."""
    entries: dict[int, list[tuple[float, Injected]]] = defaultdict(list)
    for entry in log:
        if isinstance(entry.event, Injected):
            entries[entry.event.number].append((entry.seconds, entry.event))
    return [_fault_done(log, injected) for _, injected in sorted(entries.items())]


def _fault_done(log: Sequence[Timed], injected: Sequence[tuple[float, Injected]]) -> FaultDone:
    start = next((seconds for seconds, event in injected if event.begins), None)
    until = injected[0][0] if start is None else start
    reached = [
        (entry.event.round, entry.event.step + 1)
        for entry in log
        if entry.seconds <= until and isinstance(entry.event, StepDone)
    ]
    actions = [_in_words(event) for _, event in injected]
    return FaultDone(injected[0][1].fault, actions, start, max(reached, default=(0, 0)))


def _in_words(event: Injected) -> str:
    """The action of a fault in words. Whose fault ends is known from its beginning."""
    return event.words if event.begins or event.reason else event.action
