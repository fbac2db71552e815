"""Whom an audit suspects: harm again and again, and the same places again and again."""

import pytest

from peer.swarm.verdicts import (
    AUDITS_KEPT,
    COPIED_PLACES,
    COPIED_ROUNDS,
    FLOOR_NATS,
    HARMFUL_AUDITS,
    SCORES_TOLD,
    Verdicts,
    harmful,
    trial_objection,
)
from protocol.identity import PeerId
from protocol.outer.window import Window

A, B, C, D = (PeerId(name) for name in "ABCD")
HONEST = {B: 0.02, C: 0.05, D: 0.03}


def test_who_raises_the_loss_while_the_others_lower_it_does_harm():
    assert harmful({A: -0.5, **HONEST}) == {A}


def test_a_gain_near_zero_is_no_harm():
    assert harmful({A: -FLOOR_NATS / 2, **HONEST}) == set()


def test_a_round_that_goes_badly_for_all_blames_nobody():
    assert harmful({A: -0.5, B: -0.45, C: -0.6, D: -0.5}) == set()


def test_in_such_a_round_who_is_far_worse_is_still_found():
    assert harmful({A: -5.0, B: -0.45, C: -0.6, D: -0.5}) == {A}


def test_two_of_five_cannot_hide_each_other():
    assert harmful({A: -5.0, PeerId("E"): -0.5, **HONEST}) == {A, "E"}


def test_who_trains_alone_is_measured_by_the_floor_alone():
    assert harmful({A: -0.5}) == {A}
    assert harmful({}) == set()


def test_harm_in_a_few_rounds_is_a_suspicion_from_the_first_of_them_told_once():
    verdicts, told = Verdicts(), {}
    for round in range(4, 10):
        told[round] = verdicts.add_gains(round, {A: -0.5, **HONEST})
    (suspicion,) = told.pop(4 + HARMFUL_AUDITS - 1)
    assert (suspicion.peer, suspicion.since) == (A, 4)
    assert (
        suspicion.reason == "held-out loss is 1.500 nats higher with its contributions to rounds 4, 5, 6 than without"
    )
    assert not any(told.values())


def test_a_suspicion_comes_early_enough_to_take_all_the_harm_out_again():
    assert Window(grace=3, liars=1).revocable >= HARMFUL_AUDITS


def test_harm_now_and_then_is_forgotten():
    verdicts = Verdicts()
    for round in range(1, 40):
        bad = round % 3 == 0
        assert verdicts.add_gains(round, {A: -0.5 if bad else 0.01, **HONEST}) == []
    assert verdicts.harm[A] <= verdicts.gains[A].keys()
    assert len(verdicts.gains[A]) == AUDITS_KEPT


def test_rounds_in_which_it_was_not_drawn_do_not_clear_it():
    verdicts = Verdicts()
    found = [verdicts.add_gains(round, {A: -0.5, **HONEST} if round % 10 == 0 else HONEST) for round in range(1, 31)]
    assert [each.since for each in found[29]] == [10]


def test_what_a_late_part_gains_adds_to_its_authors_round():
    verdicts = Verdicts()
    verdicts.add_gains(1, {A: -0.5, **HONEST})
    assert verdicts.under_watch(A)
    verdicts.add_gains(1, {A: 0.75})
    assert verdicts.gains[A][1] == 0.25
    assert not verdicts.under_watch(A)


def test_who_did_harm_is_watched_until_it_is_suspected():
    verdicts = Verdicts()
    assert not verdicts.under_watch(A)
    for round in range(1, HARMFUL_AUDITS):
        verdicts.add_gains(round, {A: -0.5, **HONEST})
        assert verdicts.under_watch(A)
        assert not verdicts.under_watch(B)
    verdicts.add_gains(HARMFUL_AUDITS, {A: -0.5, **HONEST})
    assert not verdicts.under_watch(A)


def test_a_newcomer_may_count_that_does_no_harm_and_copies_nobody():
    assert trial_objection(0.02, 0.1) == trial_objection(-0.005, 0.0) == ""
    assert "0.050 nats higher" in trial_objection(-0.05, 0.0)
    assert trial_objection(0.02, 0.9) == "90% of its places are another's"


def test_scores_are_mean_gains_of_who_gained_least():
    verdicts = Verdicts()
    verdicts.add_gains(1, {A: -0.5, B: 0.25})
    verdicts.add_gains(2, {A: -0.25})
    assert verdicts.scores() == {A: -0.375, B: 0.25}
    verdicts.add_gains(3, {PeerId(f"Q{number}"): 1.0 + number for number in range(30)})
    assert list(verdicts.scores())[:3] == [A, B, "Q0"]
    assert len(verdicts.scores()) == SCORES_TOLD


def test_two_that_send_the_same_places_again_and_again_are_both_named_and_no_harm_is_said_of_them():
    verdicts = Verdicts()
    found = [verdicts.add_overlaps(round, {(A, B): 0.9, (B, C): 0.1}) for round in range(1, 6)]
    named = found.pop(COPIED_ROUNDS - 1)
    assert [(each.peer, each.since) for each in named] == [(A, 0), (B, 0)]
    assert named[0].reason.startswith("90% of the places in its contribution are also peer B's")
    assert not any(found)


@pytest.mark.parametrize("shares", [[COPIED_PLACES / 2] * 9, [0.9] * (COPIED_ROUNDS - 1)])
def test_a_little_overlap_or_a_lot_in_few_rounds_is_no_copy(shares: list[float]):
    verdicts = Verdicts()
    assert not any(verdicts.add_overlaps(round, {(A, B): share}) for round, share in enumerate(shares, start=1))


def test_one_round_heard_twice_is_one_round():
    verdicts = Verdicts()
    assert not any(verdicts.add_overlaps(1, {(A, B): 0.9}) for _ in range(9))
