"""Reports are read strictly, whatever they are, and of a newer peer what this version knows of them."""

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import FormatError
from protocol.events.activity import Contributed, Refused, RoundDone
from protocol.events.event import PeerState
from protocol.events.peer_report import (
    BATCH_BYTES,
    EVENTS_REPORTED,
    PeerReport,
    ReportedStatus,
    pack_report,
    unpack_report,
)

EVENTS = [(1.5, RoundDone(3, 2.5, 96, {"stage-0": 2}, {"stage-0": "ab"}, 5, 6)), (0.0, Contributed(3, 2, ((4, 6),)))]
STATUS = ReportedStatus(state=PeerState.TRAINING, round=3, step=2, loss=5.5, tokens=192, version="0.1")
REFUSED = {"event": "Refused", "peer": "Qm", "reason": "wrong"}


def packed(**changed: Any) -> bytes:
    batch = {"version": 1, "status": {}, "events": [], "sent_before": [0, 0], "left_out": 0}
    return json.dumps(batch | changed).encode()


def test_what_is_packed_is_unpacked():
    report = PeerReport(STATUS, EVENTS, (5, 6), 7)
    assert unpack_report(pack_report(report)) == report


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"version": 2}, "version"),
        ({"status": {"round": -1}}, "status.round"),
        ({"status": {"round": 2**31}}, "round"),
        ({"status": {"round": True}}, "round"),
        ({"status": {"step": 1.5}}, "step"),
        ({"status": {"tokens": 2**60}}, "tokens"),
        ({"status": {"loss": "5"}}, "loss"),
        ({"status": {"loss": -1.0}}, "loss"),
        ({"status": {"version": "x" * 33}}, "version"),
        ({"status": {"version": "\x1b[2J"}}, "version"),
        ({"status": {"state": "dead"}}, "state"),
        ({"sent_before": [1]}, "sent_before"),
        ({"left_out": -1}, "left_out"),
        ({"events": ["Refused"]}, "events"),
        ({"events": [REFUSED | {"reason": "w" * 301}]}, "reason"),
        ({"events": [REFUSED | {"peer": "../../x"}]}, "peer"),
        ({"events": [{"event": "Refused", "peer": "Qm"}]}, "reason"),
        ({"events": [REFUSED | {"ago": -1.0}]}, "malformed"),
        ({"events": [REFUSED] * (EVENTS_REPORTED + 1)}, "events"),
    ],
)
def test_what_is_out_of_bounds_is_refused_and_named(changed: dict[str, Any], words: str):
    with pytest.raises(FormatError, match=words):
        unpack_report(packed(**changed))


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b"\xff", packed(left_out=float("nan")), b"[" * 60_000])
def test_what_is_no_batch_is_refused(data: bytes):
    with pytest.raises(FormatError):
        unpack_report(data)


def test_more_bytes_than_a_batch_has_are_not_read():
    with pytest.raises(FormatError, match="65536 are allowed"):
        unpack_report(b" " * (BATCH_BYTES + 1))


def test_events_and_fields_of_a_newer_peer_are_skipped_and_counted():
    newer = {"event": "Teleported", "where": {"x": [1]}}
    own = {"event": "Serving", "ticket": "x" * 1000, "run_id": "ab"}
    data = packed(
        events=[newer, REFUSED | {"colour": "red"}, own, {}, {"event": ["Refused"]}], status={"mood": 1}, later=2
    )
    report = unpack_report(data)
    assert (report.events, report.unknown) == ([(0.0, Refused("Qm", "wrong"))], 4)


def test_words_do_not_move_a_terminals_cursor():
    report = unpack_report(packed(events=[REFUSED | {"reason": "a\x1b[2Jb\nc"}], status={"doing": "a\x1b[2Jb"}))
    assert (report.events[0][1].cause, report.status.doing) == ("a�[2Jb�c", "a�[2Jb")


@given(st.binary(max_size=300))
def test_any_bytes_are_a_batch_or_refused(data: bytes):
    with suppress(FormatError):
        assert isinstance(unpack_report(data), PeerReport)
