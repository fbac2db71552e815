"""What faults cost, from invented logs: a group of A and B whose steps take a second, and a datacenter D."""

import pytest

from peer.testnet.event_log import Timed
from protocol.events.activity import GroupBroken, GroupFormed, Injected, Joined, RoundDone, StepDone
from protocol.events.event import Event
from tests.chaos.damage import Damage, damages, seconds_lost

STEPS = 4
GROUP = ("A", "B")


def formed() -> list[Timed]:
    said = [Timed(0.0, name, GroupFormed("the group", 0, list(GROUP))) for name in GROUP]
    return [*said, Timed(0.0, "D", Joined("the datacenter", "datacenter", 0, 2, "h:1"))]


def step(seconds: float, round: int, number: int, *processes: str) -> list[Timed]:
    """Inner step `number` (from 1), told by these processes a hundredth of a second apart."""
    event: Event = StepDone(round, number - 1, None, 1)
    return [Timed(seconds + 0.01 * late, name, event) for late, name in enumerate(processes)]


def ended(seconds: float, round: int, *processes: str) -> list[Timed]:
    return [Timed(seconds, name, RoundDone(round, 1.0, 1, {}, {}, 0, 0)) for name in processes]


def chaos(seconds: float, action: str, *processes: str, number: int = 0, begins: bool = True, why: str = "") -> Timed:
    return Timed(seconds, "chaos", Injected(number, f"fault {number}", action, list(processes), begins, why))


def broken(seconds: float, process: str, round: int, number: int) -> Timed:
    return Timed(seconds, process, GroupBroken("the group", round, number - 1, "gone"))


def one_round(start: float, round: int, *processes: str) -> list[Timed]:
    """A round from `start`: a step a second, and its end half a second after the last."""
    steps = [entry for n in range(1, STEPS + 1) for entry in step(start + n, round, n, *processes)]
    return [*steps, *ended(start + STEPS + 0.5, round, *processes)]


def cost(*entries: list[Timed] | Timed, rounds: int = 1) -> list[Damage]:
    flat = [each for entry in entries for each in (entry if isinstance(entry, list) else [entry])]
    return damages(sorted([*formed(), *flat], key=lambda each: each.seconds), rounds, STEPS)


def test_an_undisturbed_run_has_no_damage():
    assert cost(one_round(0, 1, *GROUP, "D")) == []


def test_a_pause_costs_what_its_step_took_longer():
    (damage,) = cost(
        one_round(0, 1, "D"),
        step(1, 1, 1, *GROUP),
        chaos(1.5, "paused", "B"),
        chaos(4.5, "resumed", "B", begins=False),
        step(5, 1, 2, *GROUP),  # 4 seconds after step 1 instead of 1
        step(6, 1, 3, *GROUP),
        step(7, 1, 4, *GROUP),
        ended(7.5, 1, *GROUP),
    )
    assert damage.fault == "fault 0"
    assert damage.actions == ["paused B", "resumed"]
    assert damage.seconds == 1.5
    assert damage.place == (1, 1)
    assert damage.seconds_lost == pytest.approx(3.0, abs=0.05)
    assert damage.steps_lost == 0


def test_a_step_that_was_told_just_after_the_fault_is_not_the_end_of_its_stall():
    (damage,) = cost(
        step(1, 1, 1, *GROUP),
        chaos(1.995, "paused", "B"),
        step(2, 1, 2, *GROUP),
        chaos(5.0, "resumed", "B", begins=False),
        step(6, 1, 3, *GROUP),
        step(7, 1, 4, *GROUP),
    )
    assert damage.seconds_lost == pytest.approx(3.0, abs=0.05)


def test_what_is_usual_is_learnt_from_undisturbed_times_alone():
    (damage,) = cost(
        one_round(0, 1, "D"),
        chaos(4.6, "paused", "D"),
        chaos(8.6, "resumed", "D", begins=False),
        one_round(8.5, 2, "D"),  # its first step 5 seconds after the end of round 1, not 1
        one_round(13.0, 3, "D"),
        rounds=3,
    )
    assert damage.seconds_lost == pytest.approx(4.0, abs=0.05)


def test_a_killed_member_costs_until_the_group_goes_on_and_the_step_in_flight():
    (damage,) = cost(
        step(1, 1, 1, *GROUP),
        step(2, 1, 2, *GROUP),
        chaos(2.5, "killed", "B"),
        broken(2.6, "A", 1, 3),
        Timed(5.0, "C", GroupFormed("the group", 0, ["A", "C"])),
        step(8, 1, 3, "A", "C"),
        step(9, 1, 4, "A", "C"),
        ended(9.5, 1, "A", "C"),
    )
    assert damage.seconds_lost == pytest.approx(5.0, abs=0.05)
    assert damage.steps_lost == 1


def test_a_step_that_one_had_done_and_does_again_counts_once():
    (damage,) = cost(
        step(1, 1, 1, *GROUP),
        step(2, 1, 2, "A"),
        chaos(2.1, "killed", "B"),
        broken(2.2, "A", 1, 2),
        step(5, 1, 2, "A", "C"),
        step(6, 1, 3, "A", "C"),
        step(7, 1, 4, "A", "C"),
        ended(7.5, 1, "A", "C"),
    )
    assert damage.steps_lost == 1


def test_a_round_that_begins_again_loses_all_steps_it_had():
    (damage,) = cost(
        step(1, 1, 1, "D"),
        step(2, 1, 2, "D"),
        step(3, 1, 3, "D"),
        chaos(3.5, "killed", "D"),
        chaos(6.0, "started again", "D", begins=False),
        one_round(10, 1, "D"),
    )
    assert damage.steps_lost == 3
    assert damage.actions == ["killed D", "started again"]
    assert damage.seconds_lost == pytest.approx(7.0, abs=0.05)


def test_who_never_comes_back_misses_the_rest_and_stands_still_to_the_end():
    (damage,) = cost(
        one_round(0, 1, "D", *GROUP),
        step(5.5, 2, 1, "D", *GROUP),
        chaos(6.0, "killed", "D"),
        [entry for n in (2, 3, 4) for entry in step(4.5 + n, 2, n, *GROUP)],
        ended(9.0, 2, *GROUP),
        one_round(9.0, 3, *GROUP),
        rounds=3,
    )
    assert (damage.steps_lost, damage.steps_missed) == (0, 3 + STEPS)
    assert damage.seconds_lost == pytest.approx(13.5 - 5.5, abs=0.05)


def test_steps_that_were_left_out_are_missed():
    (damage,) = cost(
        one_round(0, 1, *GROUP),
        step(5.5, 2, 1, *GROUP),
        chaos(6.0, "paused", "A"),
        chaos(12.0, "resumed", "A", begins=False),
        one_round(13, 3, *GROUP),  # the others had finished round 2 without it
        rounds=3,
    )
    assert (damage.steps_lost, damage.steps_missed) == (0, 3)


def test_a_pause_after_the_last_step_costs_no_step():
    (damage,) = cost(
        one_round(0, 1, "D"),
        chaos(4.6, "paused", "D"),
        chaos(8.0, "resumed", "D", begins=False),
        step(9, 1, 4, "A"),
    )
    assert (damage.seconds_lost, damage.steps_lost) == (0.0, 0)


def test_only_the_replica_that_was_hit_is_counted():
    (damage,) = cost(
        step(1, 1, 1, *GROUP, "D"),
        step(2, 1, 2, *GROUP),
        step(3, 1, 3, *GROUP),
        step(4, 1, 4, *GROUP),
        chaos(1.5, "paused", "A"),
        chaos(1.6, "resumed", "A", begins=False),
        step(50, 1, 2, "D"),
        step(51, 1, 3, "D"),
        step(52, 1, 4, "D"),
    )
    assert damage.seconds_lost == pytest.approx(0.0, abs=0.05)


def test_a_partition_is_held_against_all_it_cut_the_worst_seconds_and_all_steps():
    (damage,) = cost(
        step(1, 1, 1, *GROUP, "D"),
        chaos(1.5, "cut off", "A", "B", "D", why="A; B from D"),
        broken(1.6, "A", 1, 2),
        chaos(3.0, "healed", "A", "B", "D", begins=False),
        step(5, 1, 2, *GROUP),
        step(6, 1, 3, *GROUP),
        step(7, 1, 4, *GROUP),
        step(9, 1, 2, "D"),
        step(10, 1, 3, "D"),
        step(11, 1, 4, "D"),
    )
    assert damage.actions == ["cut off A; B from D", "healed"]
    assert damage.seconds_lost == pytest.approx(7.0, abs=0.05)
    assert damage.steps_lost == 1


def test_the_bootstrap_node_is_everybodys():
    (damage,) = cost(
        step(1, 1, 1, "D"),
        chaos(1.5, "killed", "bootstrap"),
        chaos(2.5, "started again", "bootstrap", begins=False),
        step(5, 1, 2, "D"),
        step(6, 1, 3, "D"),
        step(7, 1, 4, "D"),
    )
    assert damage.seconds_lost == pytest.approx(3.0, abs=0.05)


def test_two_faults_on_one_replica_share_nothing():
    first, second = cost(
        step(1, 1, 1, *GROUP),
        chaos(1.5, "killed", "B", number=0),
        broken(1.6, "A", 1, 2),
        step(5, 1, 2, "A"),
        chaos(5.5, "killed", "A", number=1),
        chaos(6.0, "started again", "A", number=1, begins=False),
        step(9, 1, 1, "A"),
        step(10, 1, 2, "A"),
        step(11, 1, 3, "A"),
        step(12, 1, 4, "A"),
    )
    assert (first.steps_lost, second.steps_lost) == (1, 2)


@pytest.mark.parametrize(("action", "why"), [("not applied", "already dead"), ("not done", "the run was over before")])
def test_what_was_never_done_cost_nothing(action: str, why: str):
    (damage,) = cost(one_round(0, 1, "D"), chaos(2.5, action, "D", begins=False, why=why))
    assert damage.seconds is None
    assert damage.actions == [f"{action} D: {why}"]
    assert (damage.seconds_lost, damage.steps_lost) == (0.0, 0)


def test_a_newcomer_costs_nothing():
    (damage,) = cost(one_round(0, 1, "D"), chaos(2.5, "joined", "E"))
    assert (damage.seconds_lost, damage.steps_lost) == (0.0, 0)


def test_a_fault_before_the_first_step_is_no_error():
    (damage,) = cost(chaos(0.5, "killed", "D"), Timed(9.0, "A", GroupFormed("the group", 0, [])))
    assert damage.place == (0, 0)


def test_time_that_is_lost_to_two_faults_at_once_is_summed_once():
    def lost(since: float, until: float) -> Damage:
        return Damage("…", [], since, (1, 1), until - since, 0, 0, (since, until))

    assert seconds_lost([]) == 0.0
    assert seconds_lost([lost(20, 21), lost(1, 4), lost(2, 3), lost(3.5, 8)]) == 4.5 + 1
    assert seconds_lost([Damage("…", [], None, (1, 1), 0.0, 0, 0), lost(1, 4), lost(4, 6)]) == 3 + 2


def test_a_fault_says_when_its_replica_stood_still():
    (damage,) = cost(
        step(1, 1, 1, "D"),
        chaos(1.5, "paused", "D"),
        chaos(4.5, "resumed", "D", begins=False),
        step(5, 1, 2, "D"),
        step(6, 1, 3, "D"),
        step(7, 1, 4, "D"),
    )
    assert damage.stood_still == (1, 5)
