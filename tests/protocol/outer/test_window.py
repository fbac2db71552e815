"""Timeliness in signatures: what a peer needs to accept, and that nobody who can be heard is left with less."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.manifest_tables import Outer
from protocol.outer.window import SKEW, Window

windows = st.builds(Window, st.integers(SKEW, 9), st.integers(0, 9))


def test_receipts_are_needed_by_lateness():
    window = Window(grace=2, liars=1)
    needed = {clock - 5: window.receipts_needed(clock, 5) for clock in range(4, 13)}
    assert needed == {-1: 0, 0: 0, 1: 0, 2: 0, 3: 1, 4: 1, 5: 2, 6: 2, 7: 3}
    assert window.width == 6


@given(windows, st.integers(1, 1000), st.integers(0, 60), st.integers(0, SKEW))
def test_who_hears_of_it_a_message_later_needs_at_most_one_receipt_more(window: Window, round, late, message):
    first, later = round + late, round + late + message
    assert window.receipts_needed(later, round) <= window.receipts_needed(first, round) + 1


@given(windows, st.integers(1, 1000), st.integers(0, SKEW))
def test_what_an_honest_author_publishes_in_its_round_needs_no_receipt_a_message_later(window: Window, round, message):
    assert window.receipts_needed(round + message, round) == 0


@given(st.integers(1, 1000))
def test_with_overlap_an_author_is_in_time_where_the_others_are_a_round_ahead(round):
    least = Outer(overlap=True, grace=SKEW + 1)
    assert Window(least.grace, least.liars).receipts_needed(round + least.delay + SKEW, round) == 0
    with pytest.raises(ValueError, match="give grace"):
        Outer(overlap=True, grace=SKEW)


@given(windows, st.integers(1, 1000))
def test_the_last_that_liars_can_have_accepted_reaches_the_others_before_the_round_is_closed(window: Window, round):
    latest = max(clock for clock in range(round, round + 60) if window.receipts_needed(clock, round) <= window.liars)
    assert window.is_open(latest + SKEW, round)
    assert not window.is_open(latest + SKEW + 1, round)
    assert window.receipts_needed(latest + SKEW, round) == window.most_receipts


@given(windows, st.integers(1, 1000), st.integers(0, SKEW))
def test_a_revocation_reaches_no_round_that_somebody_has_folded(window: Window, issued, message):
    folded = issued + message - window.width - 1
    assert issued - window.revocable > folded


def test_a_round_ahead_of_the_clock_is_not_yet_open():
    window = Window(grace=2, liars=0)
    assert window.is_open(3, 5)
    assert not window.is_open(3, 6)


@pytest.mark.parametrize(("grace", "liars"), [(SKEW - 1, 0), (SKEW, -1)])
def test_a_grace_too_short_for_a_message_is_refused(grace: int, liars: int):
    with pytest.raises(ValueError, match="grace of at least"):
        Window(grace, liars)
