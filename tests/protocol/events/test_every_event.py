"""Every class of events, by what it declares: its line, its words, its bounds, and its place on the page."""

import json
import re
from dataclasses import fields
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from pydantic import ValidationError

from peer.telemetry.journal import JournalEntry
from protocol.events.event import EVENT_TYPES, Event, Sink
from protocol.events.fields import MOST_LISTED, MOST_TEXT
from protocol.events.lines import from_line, reported_event, row_of, to_line
from protocol.events.peer_report import PeerReport, ReportedStatus, pack_report, unpack_report
from tests.docs.pages import ROOT

GOLDEN = [json.loads(line) for line in (ROOT / "tests/golden/events.jsonl").read_text().splitlines()]
SAMPLES: dict[str, Event] = {}
for golden in GOLDEN:
    names = {field.name for field in fields(EVENT_TYPES[golden["event"]])} | {"event"}
    SAMPLES.setdefault(golden["event"], from_line(json.dumps({k: v for k, v in golden.items() if k in names})))

EVENTS = pytest.mark.parametrize("event", SAMPLES.values(), ids=SAMPLES.keys())
REPORTED = [event for event in SAMPLES.values() if Sink.NODE in event.sinks]


def broken(hint: Any) -> list[Any]:
    """Values beyond each bound of a field, and of another type, by its declaration."""
    if get_origin(hint) is None or not hasattr(hint, "__metadata__"):
        return [each for part in get_args(hint) if part is not type(None) for each in broken(part)] or ["other type"]
    base, values = hint.__origin__, []
    bounds = {
        name: getattr(bound, name)
        for given in hint.__metadata__
        for bound in (given, *getattr(given, "metadata", ()))
        for name in ("ge", "le", "lt", "max_length", "pattern")
        if getattr(bound, name, None) is not None
    }
    assert bounds.keys() & {"max_length", "le", "lt"}, f"{hint} has no upper bound"
    if "ge" in bounds:
        values.append(bounds["ge"] - 1)
    if "le" in bounds or "lt" in bounds:
        values.append(bounds.get("lt", bounds.get("le", 0) + 1 + abs(bounds.get("le", 0)) / 2**40))
    if "max_length" in bounds:
        filler = "a" if base is str else [] if get_origin(base) is list else None
        most = bounds["max_length"] + 1
        values += ["a" * most] if filler == "a" else [{f"k{number}": 1 for number in range(most)}, [""] * most]
    if "pattern" in bounds:
        values.append("\x1b")
    for inner in get_args(base)[-1:]:
        if hasattr(inner, "__metadata__"):
            values += [{"Qm": each} if get_origin(base) is dict else [each] for each in broken(inner)]
    return [*values, {"of": "another type"}, True]


def test_every_class_has_a_sample_of_an_earlier_version():
    assert SAMPLES.keys() == EVENT_TYPES.keys()


@EVENTS
def test_its_line_reads_back(event: Event):
    line = to_line(event)
    assert from_line(line) == event
    assert json.loads(line) == row_of(event)
    written = JournalEntry(5.0, 2, event).row()
    assert written | row_of(event) == written or event.name == "Serving"


@EVENTS
def test_its_words_are_one_text_without_holes(event: Event):
    words, passing = event.words, event.passing
    if event.name in ("Contributed", "Pulse", "TrafficCounted"):  # for programs, and for the status
        assert words is passing is None
    else:
        assert words or passing
        assert not re.search(r"[{}]|None|\bobject at\b", words or "")


@pytest.mark.parametrize("event", REPORTED, ids=lambda event: event.name)
def test_a_node_reads_what_a_peer_reports(event: Event):
    assert unpack_report(pack_report(PeerReport(ReportedStatus(), [(0.0, event)]))).events == [(0.0, event)]


@pytest.mark.parametrize(
    ("event", "field"), [(event, field.name) for event in REPORTED for field in fields(event)], ids=str
)
def test_each_field_that_is_reported_has_bounds_and_breaks_beyond_them(event: Event, field: str):
    hint = get_type_hints(type(event), include_extras=True)[field]
    row = row_of(event)
    for value in broken(hint) if hint is not bool else ["yes", 1]:
        if hint is bool or value is not getattr(event, field):
            with pytest.raises(ValidationError):
                reported_event(row | {field: value})


@pytest.mark.parametrize("field", [field.name for field in fields(ReportedStatus)])
def test_each_field_of_the_status_that_a_peer_reports_has_bounds(field: str):
    hint = get_type_hints(ReportedStatus, include_extras=True)[field]
    assert broken(hint)


def test_a_long_text_and_a_long_list_are_cut_to_what_a_node_reads():
    event = EVENT_TYPES["WentOn"](1, ["Qm"] * 1000, "x" * 1000)  # type: ignore[call-arg]
    row = row_of(event, cut=True)
    assert (len(row["without"]), len(row["reason"])) == (MOST_LISTED, MOST_TEXT)
    assert reported_event(row) is not None
