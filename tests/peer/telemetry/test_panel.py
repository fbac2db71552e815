"""The live panel, line by line."""

import pytest

from peer.telemetry.decisions import Placed, Pulse
from peer.telemetry.events import Event, GroupFormed, Joined, Paused, Progress, StepDone
from peer.telemetry.panel import bar, lines
from peer.telemetry.status import Doing

ME = "QmAbcdefghij"
TRAINING: list[Event] = [
    Joined(ME, "volunteer", 1, 0, "h:1"),
    Placed(1, 12, 20, "its owner asked for this stage"),
    GroupFormed("QmLeaderleader", 0, ["QmLeaderleader", ME]),
    Pulse(0, 0, 0, 0, 5, 1),
    StepDone(3, 8, 5.25, 1000),
    Pulse(2_000_000, 0, 500_000, 0, 5, 1),
    StepDone(3, 9, 5.125, 1000),
]


def doing(*events: Event) -> Doing:
    made = Doing()
    for second, event in enumerate(events):
        made.take(event, float(second))
    return made


def test_a_bar_is_as_full_as_the_round():
    assert [bar(done, 4, 8) for done in (0, 1, 4, 9)] == ["░" * 8, "██░░░░░░", "█" * 8, "█" * 8]
    assert bar(0, 0, 4) == "░░░░"


def test_a_member_that_trains_sees_where_it_is():
    place, round, rates, life = lines(doing(*TRAINING), 60.0, 100)
    assert place == "stage 1 · training · group: erleader [cdefghij]"
    assert round.startswith("round 3 of 12 ███")
    assert round.endswith("░ step 10 of 20 · loss 5.125")
    assert rates == "500 tokens/s · up 1.0 MB/s · down 250.0 kB/s · credit 0 tokens"
    assert life == "joined 1:00 ago · 5 peers, 1 silent"


def test_one_that_waits_says_for_what():
    waiting = doing(*TRAINING, Progress("looking for volunteers of the other stages"))
    place, _, rates, life = lines(waiting, 60.0, 100)
    assert "· waiting ·" in place
    assert rates.startswith("0 tokens/s")
    assert life.endswith("waiting: looking for volunteers of the other stages")
    waiting = doing(*TRAINING, Progress("waiting for a group"))
    assert lines(waiting, 60.0, 100)[3].endswith(" · waiting: for a group")
    paused = doing(*TRAINING, Paused("until 23:00, for these are quiet hours"))
    assert lines(paused, 60.0, 100)[0] == "stage 1 · paused · no group"


@pytest.mark.parametrize("width", [1, 8, 20, 40, 79, 200])
def test_no_line_is_wider_than_the_terminal(width: int):
    assert all(len(line) <= width for line in lines(doing(*TRAINING), 60.0, width))
