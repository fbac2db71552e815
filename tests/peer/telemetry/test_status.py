"""What a daemon is doing, as its events say."""

from dataclasses import replace

from peer.telemetry.status import EventStream, Status
from protocol.events.activity import (
    Contributed,
    Credited,
    Evaluated,
    Failed,
    Finished,
    GroupBroken,
    GroupFormed,
    Joined,
    Paused,
    PauseEnded,
    Progress,
    Pulse,
    Resumed,
    RoundDone,
    StepDone,
)
from protocol.events.decisions import CaughtUp, Left, Recalled
from protocol.events.event import Event
from protocol.events.group_decisions import NOBODY_FREE, CompressionChosen, MemberRecovered, SlowMember
from protocol.events.waiting import Waiting


def after(*events: Event) -> Status:
    made = Status()
    for second, event in enumerate(events):
        made.take(event, float(second))
    return made


DONE = RoundDone(3, 2.0, 1024, {"embedding": 2}, {}, 0, 0)
JOINED = Joined("QmA", "volunteer", 1, 0, "h:1")


def test_a_story_from_joining_to_the_end():
    story = [
        (JOINED, "waiting"),
        (Resumed(1), "waiting"),
        (CaughtUp(2), "waiting"),
        (GroupFormed("QmA", 0, ["QmA"]), "waiting"),
        (StepDone(3, 0, 5.0, 100), "training"),
        (GroupBroken("QmA", 3, 1, "gone"), "waiting"),
        (StepDone(3, 1, None, 100), "training"),
        (Contributed(3, 2), "waiting"),
        (DONE, "waiting"),
        (Left("QmA", "its owner stops it"), "leaving"),
        (Paused("by hand"), "paused"),
        (PauseEnded(), "starting"),
        (Finished(3), "finished"),
        (Failed("it broke", 1), "failed"),
    ]
    made = Status()
    for second, (event, state) in enumerate(story):
        made.take(event, float(second))
        assert made.state == state, event
    assert (made.round, made.step, made.loss, made.tokens) == (4, 0, 5.0, 200)


def test_tokens_a_second_are_those_of_the_last_steps_while_it_trains():
    steps = [StepDone(1, step, None, 100) for step in range(5)]
    assert after(*steps).tokens_per_second == 100
    assert after(*steps, Waiting("a group")).tokens_per_second == 0
    assert after(*steps, Progress("mirror a: asking another")).tokens_per_second == 100
    assert after(steps[0]).tokens_per_second == 0


def test_what_a_peer_has_given_outlives_its_pauses():
    made = after(JOINED, StepDone(3, 0, 5.0, 100), Paused("by hand"), PauseEnded(), JOINED, StepDone(3, 1, 5.0, 50))
    assert (made.tokens, made.given) == (50, 150)


def test_a_round_in_which_others_were_waited_for_says_nothing_of_the_time_that_is_left():
    made = after(replace(JOINED))
    made.rounds = 10
    for at, round in ((10.0, 1), (20.0, 2), (300.0, 3), (310.0, 4), (320.0, 5)):
        made.take(replace(DONE, round=round), at)
    assert made.seconds_a_round == 10.0
    assert made.seconds_left(322.0) == 48.0


START = Waiting("1 datacenter (0 of 1)", "the run begins when all 2 replicas are there", 1, 2)
ROUND = Waiting("contributions to round 3, of QmB", "half of them are here", 1, 2, round=3)
SPARE = Waiting("a seat in a group; this peer is a spare", "stage 1 has 1 volunteer, 2 are needed", 1, 2)


def test_a_wait_lasts_until_what_ends_it_and_since_it_began():
    made = after(JOINED, START)
    assert made.waits_for == "1 datacenter (0 of 1): the run begins when all 2 replicas are there"
    assert START.words == f"Waits for {made.waits_for}"
    made.take(Waiting("1 volunteer of stage 1 (0 of 1)", START.until, 0, 2), 5.0)  # the same wait with other numbers
    assert (made.waits_for.split(":")[0], made.waits_since) == ("1 volunteer of stage 1 (0 of 1)", 1.0)
    made.take(SPARE, 6.0)
    assert (made.waiting, made.waits_since) == (SPARE, 6.0)


def test_a_wait_ends_with_what_ends_it():
    for event in (
        StepDone(3, 0, None, 1),
        GroupFormed("QmA", 0, []),
        Finished(3),
        Paused("by hand"),
        Left("", "x"),
        DONE,
    ):
        ended = after(JOINED, ROUND, event)
        assert (ended.waiting, ended.waits_for) == (None, ""), event
    assert after(JOINED, SPARE, DONE).waiting == SPARE  # of no round: it goes on when one is over
    assert after(JOINED, SPARE, Progress("mirror a: asking another")).waiting == SPARE


def test_a_wait_that_goes_on_unchanged_is_told_once():
    said: list[Event] = []
    stream = EventStream([said.append])
    for event in (START, START, SPARE, SPARE, START, DONE, START):
        stream(event)
    assert said == [START, SPARE, START, DONE]


def test_a_wait_of_every_round_passes_by_until_it_has_lasted_long():
    brief = replace(ROUND, brief=True)
    assert (brief.level, brief.words) == ("debug", None)
    assert brief.passing == "waits for contributions to round 3, of QmB: half of them are here"
    assert (ROUND.level, ROUND.passing) == ("info", None)


def test_rates_are_those_between_two_pulses_and_begin_anew_with_a_new_place():
    made = after(JOINED, Pulse(0, 100, 0, 0, 3, 0), Pulse(500, 600, 50, 0, 4, 1))
    assert (made.up, made.down, made.peers, made.lost) == (1000, 50, 4, 1)
    again = after(JOINED, Pulse(500, 0, 0, 0, 3, 0), JOINED, Pulse(0, 0, 0, 0, 3, 0), Pulse(10, 0, 0, 0, 3, 0))
    assert again.up == 10
    assert again.joined == 0.0


def test_the_held_out_losses_are_the_last():
    assert after(Evaluated(1, 5.0, 4.0), Evaluated(2, 4.5, 4.25)).held_out == (4.5, 4.25)


def test_credit_adds_up_over_rounds_and_a_rounds_later_word_replaces_the_earlier():
    doing = Status()
    for event in (Credited(1, 100, ["a"]), Credited(1, 300, ["a"]), Credited(2, 50, ["a", "b"])):
        doing.take(event, 0.0)
    assert doing.credit == 350


def test_credit_goes_on_from_what_the_peer_had_when_it_was_started():
    doing = Status()
    for event in (Recalled(9, 1000, [(8, 10), (9, 100)]), Credited(9, 300, ["a"]), Credited(10, 1, ["a"])):
        doing.take(event, 0.0)
    assert doing.credit == 1000 + 10 + 300 + 1


def test_what_counts_since_joining_begins_anew_with_each_joining():
    made = after(JOINED, StepDone(3, 0, 5.0, 100), CompressionChosen(16, "slow links"), JOINED)
    assert (made.joins, made.last_step, made.tokens, made.compression, made.loss) == (2, None, 0, 0, 5.0)
    made.take(StepDone(3, 1, 4.0, 10), 9.0)
    assert (made.tokens, made.step_seconds) == (10, None)


def test_who_is_slow_is_shown_until_it_has_recovered_or_the_group_is_another():
    slow = SlowMember("QmSlow", 2, 14.2, 1.1, 0.9, NOBODY_FREE)
    finding = (
        "stage 2 (peer QmSlow) takes 14.2 s a step; its group took 1.1 s before, and it says that it could in 0.9 s"
    )
    assert slow.finding == finding
    assert slow.words == f"S{finding[1:]}; {NOBODY_FREE}."
    for end in (
        MemberRecovered("QmSlow", 2),
        GroupBroken("QmA", 1, 1, "lost"),
        Paused("heat"),
        GroupFormed("QmA", 0, [], ""),
    ):
        made = after(JOINED, slow)
        assert made.slow == finding
        made.take(end, 9.0)
        assert made.slow == ""
    assert "stage 2 (peer QmSlow), or one behind it, takes" in SlowMember("QmSlow", 2, 2, 1, 0, "", True).finding


def test_a_steps_seconds_are_those_since_the_one_before_it_in_its_round():
    made = after(StepDone(1, 0, 5.0, 1), StepDone(1, 1, 5.0, 1))
    assert made.step_seconds == 1.0
    for event in (StepDone(1, 3, 5.0, 1), RoundDone(1, 2.0, 1, {}, {}, 0, 0), StepDone(2, 0, 5.0, 1)):
        made.take(event, 9.0)
        assert made.step_seconds is None or isinstance(event, RoundDone)


def test_a_pulse_has_moved_the_bytes_since_the_one_before_it():
    made = after(JOINED, Pulse(5, 100, 1, 0, 3, 0))
    assert made.moved == Pulse(5, 100, 1, 0, 3, 0)
    made.take(Pulse(7, 100, 4, 9, 3, 0), 9.0)
    assert made.moved == Pulse(2, 0, 3, 9, 3, 0)


def test_the_run_stays_over_whatever_the_peer_does_then():
    made = after(Finished(3), Left("", "its owner stops it"))
    assert made.over


def test_a_stream_folds_an_event_once_and_then_tells_each_listener_while_it_listens():
    said: list[tuple[str, int]] = []
    stream = EventStream()
    stream.listeners.append(lambda event: said.append(("first", stream.status.tokens)))
    with stream.also(lambda event: said.append(("second", stream.status.tokens))):
        stream(StepDone(1, 0, None, 10))
    stream(StepDone(1, 1, None, 10))
    assert said == [("first", 10), ("second", 10), ("first", 20)]
