"""Who is slow, decided from invented steps."""

from collections.abc import Callable
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer.swarm.group.slowness import (
    MOST_DEBT,
    NEIGHBOURS_KEPT,
    PROMISE,
    TOLERANCE,
    WINDOW_STEPS,
    Backoffs,
    Member,
    SlowFinding,
    SlownessWatch,
    StepTimes,
    debt_limit,
    is_worth_a_try,
)
from protocol.identity import PeerId
from protocol.patience import CALLED_LAST_SECONDS, MOST_CALLED_LAST_SECONDS, SLOW_STEPS

BEFORE, ME, BEHIND, FURTHER = map(PeerId, ("before", "me", "behind", "further"))
MICROBATCHES, TOKENS = 4, 100
KIND = (8, False)
PASSES = 0.2
QUICK = StepTimes(1.0, 0.05, 0.1, (PASSES,) * 3)
SPEED = TOKENS / PASSES
MEMBERS = tuple(Member(peer, SPEED) for peer in (ME, BEHIND, FURTHER))


def longer(
    seconds: float, before: float = 0.0, behind: float = 0.0, passes: tuple[float, ...] = (0.0, 0.0, 0.0)
) -> StepTimes:
    """A step that takes so much longer than a quick one; the rest is what each side has of that."""
    own = tuple(now + more / MICROBATCHES for now, more in zip(QUICK.passes, passes, strict=True))
    return StepTimes(QUICK.seconds + seconds, QUICK.before + before, QUICK.behind + behind, own)


def watch(steps: int = WINDOW_STEPS) -> SlownessWatch:
    """What is known after some quick steps."""
    made = SlownessWatch(MICROBATCHES, TOKENS)
    for _ in range(steps):
        made.note(KIND, QUICK, BEFORE, MEMBERS)
    return made


def slow_after(made: SlownessWatch, step: StepTimes, peer: PeerId, further: int = 0, most: int = 100) -> int | None:
    """The number of such steps after which a peer is slow; None: it is not after `most`."""
    for count in range(1, most + 1):
        made.note(KIND, step, BEFORE, MEMBERS)
        if made.slow(KIND, peer, further) is not None:
            return count
    return None


def test_a_neighbour_that_makes_steps_much_longer_is_slow_after_a_few():
    for step, peer in ((longer(6.0, behind=6.0), BEHIND), (longer(6.0, before=6.0), BEFORE)):
        made = watch()
        assert slow_after(made, step, peer) == SLOW_STEPS
        finding = made.slow(KIND, peer)
        assert finding is not None
        assert (finding.peer, finding.seconds, finding.usual) == (peer, 7.0, 1.0)
        assert finding.promised == MICROBATCHES * PASSES * (peer == BEHIND)  # the stage before tells of no passes


def test_the_other_neighbour_has_nothing_to_do_with_it():
    assert slow_after(watch(), longer(6.0, behind=6.0), BEFORE) is None
    assert slow_after(watch(), longer(6.0, before=6.0), BEHIND) is None


def test_who_is_slow_itself_blames_neither_neighbour():
    made = watch()
    assert slow_after(made, longer(6.0, passes=(6.0, 0.0, 0.0)), ME) == SLOW_STEPS
    assert made.slow(KIND, BEFORE) is made.slow(KIND, BEHIND) is None


def test_one_or_two_steps_that_a_machine_swaps_in_make_nobody_slow():
    made = watch()
    for _ in range(SLOW_STEPS - 1):
        made.note(KIND, longer(9.0, behind=9.0), BEFORE, MEMBERS)
        assert made.slow(KIND, BEHIND) is None


def test_steps_of_minutes_need_not_be_many():
    """Twenty times as long is below what makes a breach."""
    assert slow_after(watch(), longer(19.0, behind=19.0), BEHIND) == 2
    gross = longer(100.0, behind=100.0)
    assert [slow_after(watch(), gross, BEHIND, further) for further in range(3)] == [1, 2, 3]


def test_where_a_later_stage_may_be_the_slow_one_the_stage_beside_that_acts_first():
    hidden = longer(6.0, behind=6.0)
    assert slow_after(watch(), hidden, BEHIND, further=0) == SLOW_STEPS
    made = watch()
    assert slow_after(made, hidden, BEHIND, further=1) == SLOW_STEPS + 1
    finding = made.slow(KIND, BEHIND, 1)
    assert finding is not None
    assert finding.or_further
    slight = [slow_after(watch(), longer(0.4, behind=0.4), BEHIND, further) or 100 for further in range(3)]
    assert slight == sorted(set(slight))


def test_a_neighbour_that_tells_of_its_own_slow_passes_needs_no_such_patience():
    made = watch()
    assert slow_after(made, longer(6.0, behind=6.0, passes=(0.0, 6.0, 0.0)), BEHIND, further=2) == SLOW_STEPS
    finding = made.slow(KIND, BEHIND, 2)
    assert finding is not None
    assert not finding.or_further


def test_a_stage_further_behind_that_says_itself_that_it_is_slow_is_not_its_neighbours_debt():
    step = longer(6.0, behind=6.0, passes=(0.0, 0.0, 6.0))
    borne_out = (*MEMBERS[:2], Member(FURTHER, TOKENS / step.passes[2]))
    made = watch()
    for _ in range(50):
        made.note(KIND, step, BEFORE, borne_out)
    assert made.slow(KIND, BEHIND) is None
    assert slow_after(watch(), step, BEHIND, further=1) == SLOW_STEPS + 1  # so says the neighbour alone


@pytest.mark.parametrize(
    "nap",
    [
        lambda step: 0.9 * TOLERANCE,
        lambda step: TOLERANCE + 0.01,
        lambda step: 6.0,
        lambda step: 19.0 if step % 20 == 0 else 0.0,
        lambda step: 19.0 if step % 140 == 0 else 0.0,
        lambda step: 0.0005 * step,
        lambda step: 2.0 if step // 50 % 2 else 0.0,
        lambda step: 19.0 if step % 40 < 2 else 0.0,
    ],
    ids=["below", "just above", "much", "often", "seldom", "gradually", "in turns", "two at once"],
)
def test_however_a_neighbour_goes_about_it_its_group_keeps_most_of_its_steps(nap: Callable[[int], float]):
    """Once it is found a spare is as quick as the group was. Any of these for ever would cost up to 93 %."""
    made, spent, steps, is_slow = watch(), 0.0, 1500, True
    for step in range(steps):
        seconds = nap(step) if is_slow else 0.0
        spent += QUICK.seconds + seconds
        made.note(KIND, longer(seconds, behind=seconds), BEFORE, MEMBERS)
        is_slow = is_slow and made.slow(KIND, BEHIND) is None
    assert steps * QUICK.seconds / spent >= 0.8


@given(st.lists(st.floats(0.0, 30.0), min_size=100, max_size=400))
def test_who_is_not_found_has_cost_no_more_than_the_tolerance_and_a_debt(naps: list[float]):
    made, cost = watch(), 0.0
    for nap in naps:
        made.note(KIND, longer(nap, behind=nap), BEFORE, MEMBERS)
        if made.slow(KIND, BEHIND) is not None:
            return
        cost += nap
    debt = debt_limit(QUICK) + SLOW_STEPS * max(naps)
    assert cost <= TOLERANCE * QUICK.seconds * len(naps) + debt


def test_what_is_usual_never_follows_slow_steps():
    made = watch()
    for more in accumulate([0.001] * 2000):
        made.note(KIND, longer(more, behind=more), BEFORE, MEMBERS)
    assert made.usual[KIND] == QUICK
    for _ in range(WINDOW_STEPS):
        made.note(KIND, StepTimes(0.5, 0.0, 0.0, QUICK.passes), BEFORE, MEMBERS)
    assert made.usual[KIND].seconds == 0.5


def test_steps_of_another_kind_are_not_compared():
    made = watch()
    for _ in range(50):
        made.note((2, False), longer(3.0, behind=3.0), BEFORE, MEMBERS)
    assert made.slow((2, False), BEHIND) is None
    assert made.usual[(2, False)].seconds == 4.0


def test_who_is_slow_from_the_first_step_on_is_compared_with_what_it_says_it_could():
    """It is the slowest of its group, and would not be if it did as it says."""
    slow = longer(8.0, behind=8.0, passes=(0.0, 8.0, 0.0))
    made = SlownessWatch(MICROBATCHES, TOKENS)
    assert slow_after(made, slow, BEHIND) == WINDOW_STEPS + SLOW_STEPS
    honest = (MEMBERS[0], Member(BEHIND, TOKENS / slow.passes[1]), MEMBERS[2])
    made = SlownessWatch(MICROBATCHES, TOKENS)
    for _ in range(100):
        made.note(KIND, slow, BEFORE, honest)
    assert made.slow(KIND, BEHIND) is None  # it has always said so, and was taken for want of another


def test_a_speed_that_is_not_quite_that_of_the_trial_is_no_broken_promise():
    nearly = longer(0.7, behind=0.7, passes=(0.0, (PROMISE - 1.01) * PASSES * MICROBATCHES, 0.0))
    assert slow_after(SlownessWatch(MICROBATCHES, TOKENS), nearly, BEHIND) is None


def test_a_neighbour_that_is_quick_again_has_recovered_soon():
    made = watch()
    for _ in range(1000):
        made.note(KIND, longer(6.0, behind=6.0), BEFORE, MEMBERS)
    assert made.debts[BEHIND].seconds == MOST_DEBT * debt_limit(QUICK, 2)
    assert not made.has_recovered(KIND, BEHIND)
    steps = 0
    while not made.has_recovered(KIND, BEHIND):
        made.note(KIND, QUICK, BEFORE, MEMBERS)
        steps += 1
    assert steps < 100


def test_with_other_members_all_debts_are_forgotten():
    made = watch()
    slow_after(made, longer(6.0, behind=6.0), BEHIND)
    made.forgive()
    assert made.slow(KIND, BEHIND) is None


def test_a_spare_that_says_it_is_no_quicker_is_not_tried():
    slow = SlowFinding(BEHIND, 14.0, 1.0, 0.8)
    assert is_worth_a_try(slow, 0.0)  # it does not say
    assert is_worth_a_try(slow, 5.0)
    assert not is_worth_a_try(slow, 13.0)


def test_who_was_replaced_is_called_last_for_longer_each_time():
    replaced = Backoffs(CALLED_LAST_SECONDS, MOST_CALLED_LAST_SECONDS)
    assert not replaced.holds(BEHIND, 0.0)
    replaced.note(BEHIND, 0.0)
    assert replaced.holds(BEHIND, CALLED_LAST_SECONDS - 1)
    assert not replaced.holds(BEHIND, CALLED_LAST_SECONDS)
    replaced.note(BEHIND, 1000.0)
    assert replaced.holds(BEHIND, 1000.0 + 2 * CALLED_LAST_SECONDS - 1)
    for _ in range(20):
        replaced.note(BEHIND, 0.0)
    assert not replaced.holds(BEHIND, MOST_CALLED_LAST_SECONDS)


def test_strangers_do_not_fill_the_memory():
    made, replaced = watch(), Backoffs(CALLED_LAST_SECONDS, MOST_CALLED_LAST_SECONDS)
    for number in range(10 * NEIGHBOURS_KEPT):
        peer = PeerId(f"peer-{number}")
        replaced.note(peer, 0.0)
        made.note(KIND, QUICK, peer, (MEMBERS[0], Member(PeerId(f"behind-{number}"), 1.0), MEMBERS[2]))
    assert max(map(len, (made.debts, made.promised, replaced.peers))) == NEIGHBOURS_KEPT
