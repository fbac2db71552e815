"""Events as lines."""

import pytest

from protocol.events.activity import (
    Credited,
    Evaluated,
    Failed,
    Inherited,
    Progress,
    Refused,
    RoundDone,
    StepDone,
    Warned,
)
from protocol.events.decisions import Audited, Resynchronised, SpotChecked, Suspected, Tried
from protocol.events.event import Event
from protocol.events.group_decisions import CompressionChosen, MemberReplaced
from protocol.events.lines import from_line, to_line
from protocol.events.waiting import Waiting

EVENTS = [
    Credited(3, 4096, ["QmBefore", "QmBehind"]),
    StepDone(1, 2, None, 1024),
    RoundDone(3, 1.5, 10, {"embedding": 2}, {"embedding": "ab"}, 5, 6),
    Evaluated(1, 2.5, 2.25),
    Audited(3, {"QmA": 0.125, "QmB": -0.5}),
    SpotChecked(3, 28, -0.25),
    Suspected("QmB", "the loss is higher with it", 2),
    Tried(4, "QmC", 0.25, "a copy"),
    Failed("no such thing", 4),
    Waiting("1 datacenter (0 of 1)", "the run begins when all 2 replicas are there", 1, 2, 60.0, 3, True),
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


def test_a_warning_is_a_line_of_progress():
    warned = Warned("WARNING: the disk is full")
    assert to_line(warned) == to_line(Progress("WARNING: the disk is full"))
    assert from_line(to_line(warned)) == Progress("WARNING: the disk is full")
    assert (warned.level, warned.name, warned.words) == ("warning", "Progress", "WARNING: the disk is full")
    with pytest.raises(ValueError):  # noqa: PT011
        from_line('{"event": "Warned", "doing": "x"}')


def test_an_event_says_nothing_unless_its_class_does():
    class Quiet(Event):
        pass

    quiet = Quiet()
    assert (quiet.name, quiet.level, quiet.words, quiet.passing, quiet.cause) == ("Quiet", "info", None, None, "")


@pytest.mark.parametrize(
    ("event", "cause"),
    [
        (Refused("QmB", "garbage"), "garbage"),
        (CompressionChosen(8, "the links are slow"), "the links are slow"),
        (
            MemberReplaced("QmB", 1, 14.0, 1.1, 0.0),
            "stage 1 (peer QmB) takes 14 s a step; its group took 1.1 s before: another volunteer of its stage is "
            "tried",
        ),
        (Failed("no port is free", 4), "no port is free"),
        (Tried(4, "QmC", 0.25, "a copy"), "a copy"),
        (Resynchronised("stage-1", 5, 0), "most peers had another state of stage-1"),
        (Resynchronised("stage-1", 5, 0, True), "the operator attests another state of stage-1"),
        (Inherited("QmA", True), "a peer of this stage leaves"),
        (StepDone(1, 0, None, 1), ""),
    ],
)
def test_an_event_tells_why_it_came_about(event, cause: str):
    assert event.cause == cause
