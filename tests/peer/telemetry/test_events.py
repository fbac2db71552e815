"""Events as lines."""

import pytest

from peer.process import Listeners
from peer.telemetry.events import (
    Audited,
    Credited,
    Evaluated,
    Failed,
    RoundDone,
    StepDone,
    Suspected,
    Tried,
    from_line,
    to_line,
)

EVENTS = [
    Credited(3, 4096, ["QmNeighbour", "QmWitness"], True),
    StepDone(1, 2, None, 1024),
    RoundDone(3, 1.5, 10, {"embedding": 2}, {"embedding": "ab"}, 5, 6),
    Evaluated(1, 2.5, 2.25),
    Audited(3, {"QmA": 0.125, "QmB": -0.5}),
    Suspected("QmB", "the loss is higher with it", 2),
    Tried(4, "QmC", 0.25, "a copy"),
    Failed("no such thing", 4),
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_a_line_reads_back(event):
    assert from_line(to_line(event)) == event
    assert "\n" not in to_line(event)


@pytest.mark.parametrize(
    "line", ["", "hello", "[]", "{}", '{"event": "Unknown"}', '{"event": "Finished"}', '{"event": []}']
)
def test_other_lines_are_no_events(line: str):
    with pytest.raises(ValueError):  # noqa: PT011
        from_line(line)


def test_every_listener_hears_it():
    heard: list[object] = []
    Listeners([heard.append, heard.append])(EVENTS[0])
    assert heard == [EVENTS[0], EVENTS[0]]
