"""What is told is read strictly, whatever it is."""

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import FormatError
from protocol.monitor import (
    BATCH_BYTES,
    EVENTS_REPORTED,
    ContributionOut,
    LoggedEvent,
    RoundEnded,
    StepReport,
    pack_report,
    unpack_report,
)


def test_what_is_packed_is_unpacked():
    ended = RoundEnded(
        name="RoundDone",
        round=3,
        seconds=2.5,
        tokens=96,
        contributions={"stage-0": 2},
        pipeline_bytes=5,
        outer_bytes=6,
    )
    batch = StepReport(
        round=3,
        step=2,
        loss=5.5,
        tokens=192,
        happened=[ended, ContributionOut(name="X", round=3, steps=2)],
        version="0.1",
    )
    assert unpack_report(pack_report(batch)) == batch


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"round": -1}, "round"),
        ({"round": 2**31}, "round"),
        ({"round": True}, "round"),
        ({"step": 1.5}, "step"),
        ({"tokens": 2**60}, "tokens"),
        ({"loss": "5"}, "loss"),
        ({"loss": -1.0}, "loss"),
        ({"version": "x" * 33}, "version"),
        ({"version": "\x1b[2J"}, "version"),
        ({"extra": 1}, "extra"),
        ({"happened": [{"kind": "unheard-of"}]}, "happened"),
        ({"happened": [{"kind": "noted", "name": "N", "words": "w" * 301}]}, "happened"),
        ({"happened": [{"kind": "noted", "name": "N", "ago": -1.0}]}, "happened"),
        ({"happened": [{"kind": "noted", "name": "N", "peer": "../../x"}]}, "happened"),
        ({"happened": [{"kind": "noted", "name": "N"}] * (EVENTS_REPORTED + 1)}, "happened"),
    ],
)
def test_what_is_out_of_bounds_is_refused_and_named(said: dict[str, Any], words: str):
    with pytest.raises(FormatError, match=words):
        unpack_report(json.dumps(said).encode())


@pytest.mark.parametrize("said", [b"", b"[]", b"{", b"\xff", b'{"loss": NaN}', b'{"loss": 1e999}', b"[" * 60_000])
def test_what_is_no_batch_is_refused(said: bytes):
    with pytest.raises(FormatError):
        unpack_report(said)


def test_more_bytes_than_a_batch_has_are_not_read():
    with pytest.raises(FormatError, match="65536 are allowed"):
        unpack_report(b" " * (BATCH_BYTES + 1))


def test_words_do_not_move_a_terminals_cursor():
    said = {"happened": [{"kind": "noted", "name": "N", "words": "a\x1b[2Jb\nc"}]}
    (noted,) = unpack_report(json.dumps(said).encode()).happened
    assert isinstance(noted, LoggedEvent)
    assert noted.words == "a�[2Jb�c"


@given(st.binary(max_size=300))
def test_any_bytes_are_a_batch_or_refused(data: bytes):
    with suppress(FormatError):
        assert isinstance(unpack_report(data), StepReport)
