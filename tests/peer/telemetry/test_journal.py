"""A daemon's own log: what is kept, how it is read back, and that it never fills a disk or stops a peer."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from peer.telemetry.journal import EVENTS_FILE, Journal, JournalEntry, LogLines, read_journal
from peer.telemetry.status import EventStream, Status
from protocol.events.activity import (
    Evaluated,
    Failed,
    GroupBroken,
    Progress,
    Pulse,
    RoundDone,
    Serving,
    StepDone,
    Warned,
)
from protocol.events.decisions import Avoided, NotCounted
from protocol.events.event import Event
from protocol.events.fields import MOST_TEXT
from protocol.events.waiting import Waiting

ROOT = Path(__file__).parents[3]
DONE = RoundDone(3, 2.0, 1024, {"embedding": 2}, {"embedding": "ab"}, 0, 0)
LOST = GroupBroken("QmL", 4, 1, "stage 1 is gone")


def kept(folder: Path, *events: Event, most_bytes: int = 10_000) -> list[JournalEntry]:
    times = iter(range(1, len(events) + 1))
    status = Status()
    journal = Journal(folder, lambda event: None, status, most_bytes, clock=lambda: float(next(times)))
    for event in events:
        EventStream([journal], status)(event)
    return read_journal(folder)


def test_what_is_written_is_read_with_its_time_and_its_round(tmp_path: Path):
    refused = NotCounted(3, ["stage 0"], "it came too late")
    avoided = Avoided("QmB", None, "revoked")
    found = kept(tmp_path, StepDone(3, 0, 5.0, 10), refused, DONE, LOST, avoided)
    assert [each.event for each in found] == [refused, DONE, LOST, avoided]
    assert [each.in_round for each in found] == [3, 4, 4, 4]
    assert [each.at for each in found] == [1.0, 2.0, 3.0, 4.0]
    row = json.loads((tmp_path / EVENTS_FILE).read_text().splitlines()[2])
    assert row == {
        "time": 3.0,
        "level": "warning",
        "event": "GroupBroken",
        "reason": "stage 1 is gone",
        "in_round": 4,
        "replica": "QmL",
        "round": 4,
        "step": 1,
    }


def test_a_loss_that_is_no_number_is_read_back_and_told(tmp_path: Path):
    (noted,) = kept(tmp_path, Evaluated(3, float("nan"), 5.0))
    assert noted.event.words == "Held-out loss after round 3: nan through the boundaries, 5.000 plain"


def test_what_only_passes_by_is_not_kept_and_the_same_news_once(tmp_path: Path):
    waiting = Waiting("the leader of a group", "it invites this peer")
    passing = [StepDone(1, 0, None, 1), Pulse(0, 0, 0, 0, 0, 0), Progress("fetching", 1, 2)]
    passing += [Waiting("contributions to round 1", round=1, brief=True)]
    assert [each.event for each in kept(tmp_path, *passing, waiting, *passing, waiting)] == [waiting]


def test_a_warning_is_read_back_as_one(tmp_path: Path):
    waiting, warned = Progress("going on"), Warned("WARNING: the disk is full")
    found = kept(tmp_path, waiting, warned)
    assert [each.event for each in found] == [waiting, warned]
    assert [(each.row()["event"], each.row()["level"]) for each in found] == [
        ("Progress", "info"),
        ("Progress", "warning"),
    ]


def test_it_is_bounded(tmp_path: Path):
    found = kept(tmp_path, *(Progress(f"number {number}") for number in range(300)), most_bytes=2000)
    assert sum(each.stat().st_size for each in tmp_path.iterdir()) < 5000
    assert [each.event.doing for each in found][-1] == "number 299"
    assert len(found) > 10


def test_half_a_line_and_kinds_of_a_later_version_are_passed_over(tmp_path: Path):
    kept(tmp_path, DONE)
    with (tmp_path / EVENTS_FILE).open("a") as file:
        file.write('{"time": 5, "level": "info", "event": "Later", "reason": "", "in_round": 3}\n[]\n{"time": 6, "ev')
    assert [each.event for each in read_journal(tmp_path)] == [DONE]


def test_long_words_of_others_are_cut(tmp_path: Path):
    (found,) = kept(tmp_path, Avoided("QmB", 10.0, "x" * 10_000))
    assert len(found.event.reason) == MOST_TEXT


def test_a_folder_that_cannot_be_written_is_told_once_and_stops_nobody(tmp_path: Path):
    said: list[Event] = []
    journal = Journal(tmp_path / "missing", said.append, Status())
    journal(DONE)
    journal(LOST)
    assert len(said) == 1
    assert "going on without" in said[0].doing


def test_log_lines_are_of_every_event_and_show_no_ticket(capsys: pytest.CaptureFixture[str]):
    status = Status()
    tell: Callable[[Event], None] = EventStream([LogLines(status, clock=lambda: 7.5)], status)
    for event in (Serving("hetpeer1-secret", "ab"), StepDone(2, 0, float("nan"), 10), Failed("no port is free", 4)):
        tell(event)
    said = capsys.readouterr()
    assert said.out == ""
    rows = [json.loads(line) for line in said.err.splitlines()]
    assert [(row["event"], row["level"], row["reason"], row["in_round"]) for row in rows] == [
        ("Serving", "info", "", 0),
        ("StepDone", "debug", "", 2),
        ("Failed", "error", "no port is free", 2),
    ]
    assert all(row["time"] == 7.5 for row in rows)
    assert "secret" not in said.err
    assert rows[1]["loss"] is None


def test_levels_tell_what_to_look_at():
    assert [each.level for each in (DONE, LOST, Warned("WARNING: full"), Progress("x", 1, 2))] == [
        "info",
        "warning",
        "warning",
        "debug",
    ]


def test_a_line_of_each_kind_as_an_earlier_version_wrote_it_is_read(tmp_path: Path):
    lines = (ROOT / "tests/golden/events.jsonl").read_text()
    (tmp_path / EVENTS_FILE).write_text(lines)
    entries, rows = read_journal(tmp_path), [json.loads(line) for line in lines.splitlines()]
    assert [entry.event.name for entry in entries] == [row["event"] for row in rows]
    assert [entry.row() | row for entry, row in zip(entries, rows, strict=True)] == [entry.row() for entry in entries]
