"""The phases of a peer in a run, and the table of them: what a peer may do follows from what is proved of the run."""

import re
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.identity import EMBEDDING, stage_part
from protocol.outer.phases import (
    PHASES,
    PartView,
    RunPhase,
    RunView,
    is_abreast,
    lacking_parts,
    phase_of,
    stands,
    target,
)
from protocol.outer.window import SKEW

STAGE = stage_part(1)
LAST = 40

rounds = st.integers(0, LAST)
part_views = st.builds(PartView, rounds, st.none() | rounds, st.booleans(), st.booleans(), rounds)
views = st.builds(
    RunView,
    last=st.just(LAST),
    finished=rounds,
    run=rounds,
    parts=st.fixed_dictionaries({STAGE: part_views, EMBEDDING: part_views}),
    present=st.booleans(),
    confirmed=st.booleans(),
    begun=st.booleans(),
    is_over=st.booleans(),
    compared=st.booleans(),
    left=st.booleans(),
)


def seen(finished: int, run: int, newest: int, held: int | None, present: bool = False, **more: bool) -> RunView:
    part = PartView(newest, held, more.pop("arriving", False), more.pop("complete", False))
    return RunView(LAST, finished, run, {STAGE: part}, present=present, **more)


def test_a_run_of_which_nothing_is_known_begins():
    assert phase_of(seen(0, 0, 0, None, begun=False)) is RunPhase.GATHERING
    assert phase_of(seen(0, 0, 0, None)) is RunPhase.TRAINING


def test_a_peer_whose_state_is_older_than_the_proved_one_waits_for_a_holder_and_trains_no_further():
    assert phase_of(seen(9, 19, 19, None)) is RunPhase.AWAITING_STATE
    assert phase_of(seen(9, 19, 19, 15)) is RunPhase.AWAITING_STATE  # who is here is behind, too
    assert phase_of(seen(9, 19, 19, 19)) is RunPhase.CATCHING_UP
    assert phase_of(seen(0, 19, 18, None, begun=False)) is RunPhase.AWAITING_STATE  # no run that begins


def test_the_holder_of_the_newest_state_goes_on_though_nobody_else_is_here():
    assert phase_of(seen(19, 19, 19, None)) is RunPhase.TRAINING


def test_a_peer_stopped_within_a_round_goes_on_if_all_of_that_round_is_on_its_disk():
    assert phase_of(seen(18, 19, 19, None)) is RunPhase.AWAITING_STATE
    assert phase_of(seen(18, 19, 19, None, arriving=True, complete=True)) is RunPhase.TRAINING
    assert phase_of(seen(17, 19, 19, None, arriving=True, complete=True)) is RunPhase.AWAITING_STATE


def test_a_present_peer_may_be_behind_by_what_messages_take_if_what_it_misses_still_comes():
    assert phase_of(seen(17, 18, 18, None, present=True)) is RunPhase.TRAINING
    assert phase_of(seen(17, 17 + SKEW, 18, 19, present=True)) is RunPhase.TRAINING
    assert phase_of(seen(17, 17 + SKEW, 18, None, present=True, arriving=True)) is RunPhase.TRAINING
    assert phase_of(seen(17, 17 + SKEW, 18, None, present=True)) is RunPhase.AWAITING_STATE
    assert phase_of(seen(17, 18 + SKEW, 19, 20, present=True)) is RunPhase.CATCHING_UP


def test_a_peer_that_has_missed_the_end_trains_no_more_and_one_that_has_finished_settles():
    assert phase_of(seen(9, LAST, LAST, LAST, is_over=True)) is RunPhase.MISSED_END
    assert phase_of(seen(LAST, LAST, LAST, None)) is RunPhase.SETTLING
    assert phase_of(seen(LAST, LAST, LAST, None, is_over=True, compared=True)) is RunPhase.LINGERING
    assert phase_of(seen(LAST, LAST, LAST, None, left=True)) is RunPhase.DONE


@given(views)
def test_whoever_trains_holds_what_is_proved_or_is_present(view: RunView):
    if phase_of(view) in (RunPhase.TRAINING, RunPhase.GATHERING) and not view.present:
        for part in view.parts.values():
            assert part.newest <= view.finished + part.complete
        assert view.run <= view.finished + 1
        assert view.confirmed


def test_a_process_that_has_just_begun_trains_on_no_word_but_its_folders():
    assert phase_of(seen(19, 19, 19, None, confirmed=False)) is RunPhase.CATCHING_UP
    assert phase_of(seen(0, 0, 0, None, begun=False, confirmed=False)) is RunPhase.CATCHING_UP
    assert phase_of(seen(9, 19, 19, None, confirmed=False)) is RunPhase.AWAITING_STATE
    assert phase_of(seen(19, 19, 19, None, present=True, confirmed=False)) is RunPhase.TRAINING


@given(views)
def test_nobody_trains_in_a_round_that_its_own_state_has_closed(view: RunView):
    closed = max(part.closed for part in view.parts.values())
    if phase_of(view) in (RunPhase.TRAINING, RunPhase.GATHERING):
        assert closed <= view.finished
    assert target(view) >= closed


@given(views)
def test_whoever_waits_for_a_state_can_name_it_and_whoever_catches_up_can_come_closer(view: RunView):
    phase = phase_of(view)
    if phase is RunPhase.AWAITING_STATE:
        assert all(not stands(view, view.parts[part]) for part in lacking_parts(view))
        assert lacking_parts(view)
    if phase is RunPhase.CATCHING_UP:
        assert not lacking_parts(view)
        closed = max(part.closed for part in view.parts.values())
        assert view.finished <= target(view) <= max(view.run, view.finished, closed)


def test_whoever_catches_up_has_a_state_to_take_or_awaits_one_that_others_are_about_to_have():
    """Else it would wait for ever, with nothing to do. All views of three rounds, in which the run is known to be at
    most a round behind the newest state."""
    some, flags = range(4), (False, True)
    for finished, run, newest, held, arriving, complete in product(some, some, some, (None, *some), flags, flags):
        view = seen(finished, run, newest, held, arriving=arriving, complete=complete)
        if run < newest - 1 or phase_of(view) is not RunPhase.CATCHING_UP or target(view) > finished:
            continue
        assert arriving, view
        assert held <= finished, view


@given(views, rounds)
def test_a_holder_that_comes_ends_every_wait_for_a_state(view: RunView, later: int):
    if phase_of(view) is RunPhase.AWAITING_STATE:
        back = max(view.run, *(part.newest for part in view.parts.values()))
        parts = {name: replace(part, held=max(back, part.held or 0)) for name, part in view.parts.items()}
        assert phase_of(replace(view, run=back, parts=parts)) is RunPhase.CATCHING_UP


@given(views)
def test_what_a_peer_catches_up_with_makes_it_abreast(view: RunView):
    if phase_of(view) is RunPhase.CATCHING_UP:
        goal = target(view)
        after = replace(view, finished=goal, present=True, confirmed=True)
        parts = {name: replace(part, held=max(goal + 1, part.held or 0)) for name, part in view.parts.items()}
        assert is_abreast(replace(after, run=min(view.run, goal + SKEW), parts=parts))


@given(views, views)
def test_a_phase_is_only_followed_by_those_that_its_rule_names(before: RunView, after: RunView):
    """Over the facts that can change at a peer: rounds rise, an end stays an end, and its own last state is compared
    once."""
    after = replace(
        after,
        finished=max(before.finished, after.finished),
        is_over=before.is_over or after.is_over,
        left=before.left or after.left,
        begun=before.begun or after.begun,
        confirmed=before.confirmed or after.confirmed,
    )
    if before.finished >= LAST:
        after = replace(after, is_over=before.is_over)
    first, second = phase_of(before), phase_of(after)
    if first is not second and not (first is RunPhase.GATHERING and second in (RunPhase.SETTLING, RunPhase.LINGERING)):
        if second is RunPhase.LINGERING and first is not RunPhase.SETTLING:
            return  # its last state is compared after it has finished
        assert second in PHASES[first].next, (first, second)


@pytest.mark.parametrize("phase", list(RunPhase))
def test_every_phase_has_a_rule_that_says_who_ends_it_its_bound_and_what_is_told(phase: RunPhase):
    rule = PHASES[phase]
    assert rule.ended_by
    assert rule.bound
    assert rule.shown
    assert phase not in rule.next


def test_the_page_has_the_table():
    page = (Path(__file__).parents[3] / "docs/design/catching-up.md").read_text()
    shown = re.findall(r"^\| `([a-z ]+)` \| (.+?) \| (.+?) \| (.+?) \| (.+?) \|$", page, re.MULTILINE)
    assert shown == [
        (
            str(phase),
            rule.ended_by,
            rule.bound,
            rule.shown,
            ", ".join(p.value for p in RunPhase if p in rule.next) or "–",
        )
        for phase, rule in PHASES.items()
    ]
