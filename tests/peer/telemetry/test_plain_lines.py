"""The lines that a volunteer reads without `--verbose`."""

import io
import re

from rich.console import Console

from peer.telemetry.plain_lines import PlainLines
from peer.telemetry.status import EventStream, Status
from peer.telemetry.terminal import PeerScreen
from protocol.events.activity import (
    Contributed,
    Credited,
    Evaluated,
    Failed,
    Finished,
    GroupBroken,
    GroupFormed,
    Joined,
    Notice,
    Paused,
    PauseEnded,
    Progress,
    Pulse,
    RoundDone,
    StepDone,
    Warned,
)
from protocol.events.decisions import IDLE, NotCounted, Placed
from protocol.events.event import Event
from protocol.events.group_decisions import THIS_PEER, SlowMember
from protocol.events.waiting import Spare, Waiting

JOINED = [
    Progress("asking 127.0.0.1:1 what the run is"),
    Notice("the run ours trains a model"),
    Joined("QmAbcdefghij", "volunteer", 1, 0, "127.0.0.1:2"),
    Placed(1, 500, 4, "its owner asked for this stage"),
]
BRIEF_WAIT = Waiting("peer QmLeader, the first stage of its group", "it offers a round, or is found lost")
LONG_WAIT = Waiting("1 datacenter (0 of 1)", "the run begins then", 0, 1)


def pulse() -> Pulse:
    return Pulse(0, 0, 0, 0, 1, 0)


def a_round(number: int) -> list[Event]:
    steps: list[Event] = [StepDone(number, step, 4.814, 1024) for step in range(4)]
    ends = [Contributed(number, 4), RoundDone(number, 9.0, 0, {"stage-1": 2}, {"stage-1": "ab"}, 5, 5)]
    return [GroupFormed("QmLeader", 0, ["QmLeader"]), *steps, *ends, BRIEF_WAIT, Credited(number, 4096, ["QmLeader"])]


def lines_of(*timed: tuple[float, Event]) -> list[str]:
    now, lines, status = [0.0], list[str](), Status()
    status.clock, plain = lambda: now[0], PlainLines(status)
    stream = EventStream([lambda event: lines.extend(plain.take(event, now[0]))], status)
    for now[0], event in timed:
        stream(event)
    return lines


def at(begin: float, *events: Event) -> list[tuple[float, Event]]:
    return [(begin + index, event) for index, event in enumerate(events)]


def test_the_first_minute_says_what_the_run_is_and_the_place_in_it_and_no_more():
    assert lines_of(*at(0, *JOINED)) == [
        "The run ours trains a model",
        "Joined the run at stage 1.",
        "Why here: its owner asked for this stage.",
    ]


def test_each_round_is_one_line_with_the_tokens_the_loss_and_the_time_that_is_left():
    timed = [pair for number in (1, 2, 3) for pair in at(9.0 * number, *a_round(number))]
    assert lines_of(*at(0, *JOINED), *timed)[3:] == [
        "Helping with stage 1.",
        "Round 1 of 500: helped with 4,096 tokens, loss 4.81",
        "Round 2 of 500: helped with 4,096 tokens, loss 4.81, about 74.7 min left",
        "Round 3 of 500: helped with 4,096 tokens, loss 4.81, about 74.5 min left",
    ]


def test_the_words_before_the_first_credit_are_run_stage_and_round():
    timed = [pair for number in (1, 2) for pair in at(9.0 * number, *a_round(number))]
    text = "\n".join(lines_of(*at(0, *JOINED), *timed)).lower()
    strange = re.findall(r"replica|group|peer|slot|contribution|credit|microbatch|boundar|inner|outer|pipeline", text)
    assert strange == []


def test_a_round_in_which_the_peer_did_nothing_has_no_loss_and_one_alone_no_pace():
    rounds = RoundDone(7, 0.1, 0, {}, {}, 0, 0), RoundDone(8, 0.1, 0, {}, {}, 0, 0)
    assert lines_of(*at(0, *JOINED, StepDone(6, 0, 4.0, 1), *rounds))[4:] == [
        "Round 7 of 500: followed",
        "Round 8 of 500: followed, about 8.2 min left",
    ]


def test_a_wait_is_a_line_once_it_has_lasted_and_so_is_its_end():
    waits = [(20.0, LONG_WAIT), (29.0, pulse()), (30.0, pulse()), (35.0, pulse())]
    assert lines_of(*at(0, *JOINED), *waits, *at(40.0, *a_round(1)))[3:5] == [
        "Waiting for 1 datacenter (0 of 1): the run begins then",
        "Helping with stage 1.",
    ]


def test_a_wait_that_belongs_to_every_round_is_no_line_until_it_is_longer_than_a_round():
    slow = RoundDone(1, 600.0, 0, {}, {}, 0, 0)
    events = [*at(0, *JOINED, StepDone(1, 0, 4.0, 1), slow, BRIEF_WAIT), (500.0, pulse())]
    assert lines_of(*events)[-1].startswith("Round 1 of 500")
    assert lines_of(*events, (700.0, pulse()))[-1] == f"Waiting for {BRIEF_WAIT.waits_for}"


def test_a_spare_is_told_so_once_though_its_outlook_changes():
    spare = Spare("a seat in a group; this peer is a spare", "nobody has left", 1, 2)
    later = Spare("a seat in a group; this peer is a spare", "1 left", 1, 2)
    round_end = RoundDone(1, 1.0, 0, {}, {}, 0, 0)
    lines = lines_of(*at(0, *JOINED), (10, spare), (12, pulse()), (26, later), (40, pulse()), (41, round_end))
    assert [line[:27] for line in lines[3:]] == ["Spare: nobody has left. Mea", "Round 1 of 500: followed as"]
    seated = lines_of(*at(0, *JOINED), (10, spare), (12, pulse()), (20, StepDone(2, 0, 4.0, 1)))
    assert seated[-1] == "This peer has a seat now: helping with stage 1."


def test_a_wait_before_the_peer_is_in_the_run_is_a_line_at_once():
    assert lines_of((0, Waiting("an answer from the operator's node", "it asks again"))) == [
        "Waiting for an answer from the operator's node: it asks again"
    ]


def test_an_observer_has_a_line_for_each_evaluation():
    joined = Joined("QmAbcdefghij", "observer", 0, 0, "h:2"), Placed(0, 9, 4, "observers hold all stages")
    lines = lines_of(*at(0, *joined, RoundDone(9, 1.0, 0, {}, {}, 0, 0), Evaluated(9, 5.2, 5.1)))
    assert lines[0] == "Joined the run."
    assert lines[2:] == ["Round 9 of 9: followed, loss 5.20, the last"]


def test_pauses_warnings_errors_and_the_end_are_for_everybody():
    events = [Paused("by hand"), PauseEnded(), Warned("WARNING: hot"), GroupBroken("QmL", 3, 1, "gone"), Finished(9)]
    failed = Failed("there is no stage 7", 2)
    assert lines_of(*at(0, *events, failed)) == [event.words for event in (*events, failed)]


def test_warnings_that_nobody_here_can_act_on_are_left_out():
    other, own = (SlowMember("QmL", 1, 9.0, 1.0, 1.0, reason) for reason in ("nobody is free", THIS_PEER))
    assert (other.plain, NotCounted(1, ["stage-1"], IDLE).plain) == (None, None)
    assert (own.plain or "").startswith("This machine is slower than before: a step takes 9 s")
    assert NotCounted(1, ["stage-1"], "void").plain is not None


def test_a_screen_without_verbose_shows_these_lines_and_with_it_all():
    def shown(verbose: bool) -> str:
        out, status = io.StringIO(), Status()
        stream = EventStream([PeerScreen(status, Console(file=out, width=200), verbose=verbose)], status)
        for event in (*JOINED, *a_round(1)):
            stream(event)
        return out.getvalue()

    assert shown(False).count("\n") == 5
    assert "Credit for round 1" in shown(True)
    assert "Credit for round 1" not in shown(False)
