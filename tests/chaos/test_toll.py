"""What crowds cost, from invented logs: two honest processes that each do a step a second until the attack begins."""

from peer.testnet.event_log import Timed
from protocol.events.activity import Finished, Injected, StepDone
from protocol.events.decisions import Avoided
from protocol.events.event import Event
from tests.chaos.toll import AttackCost, BanStats, CrowdEvidence, HostileSighting, Memory, MemorySample, tolls

BEGAN, ENDED, OVER = 10.0, 20.0, 40.0
HONEST = ("A", "B")


def steps(since: float, until: float, every: float) -> list[Timed]:
    moments = [since + every * number for number in range(1, round((until - since) / every) + 1)]
    return [Timed(at, process, StepDone(1, 0, None, 1)) for at in moments for process in HONEST]


def toll(*said: Timed, witnessed: CrowdEvidence | None = None, number: int = 3, over: float = OVER) -> AttackCost:
    crowd: list[Event] = [
        Injected(number, "crowd:clock*2@round=2+10s", "attacked", [*HONEST], True),
        Injected(number, "crowd:clock*2@round=2+10s", "over", [*HONEST], False),
    ]
    log = [Timed(BEGAN, "chaos", crowd[0]), Timed(ENDED, "chaos", crowd[1]), Timed(over, "A", Finished(2)), *said]
    (found,) = tolls(sorted(log, key=lambda each: each.seconds), witnessed or CrowdEvidence())
    return found


def test_the_pace_is_told_before_during_and_after():
    found = toll(*steps(0, BEGAN, 1.0), *steps(BEGAN, ENDED, 2.0), *steps(ENDED, OVER, 0.5))
    assert (found.before, found.during, found.after) == (2.0, 1.0, 4.0)


def test_who_stands_still_has_a_pace_of_zero_and_an_attack_beyond_the_runs_end_is_measured_until_there():
    assert toll(*steps(0, BEGAN, 1.0)).during == 0.0
    assert toll(*steps(0, BEGAN, 1.0), *steps(BEGAN, 15.0, 1.0), over=15.0).during == 2.0


def test_over_a_moment_there_is_no_pace():
    assert toll(*steps(7.5, BEGAN, 1.0), *steps(ENDED, 21.0, 1.0)).before is None


def test_memory_is_that_right_before_the_most_of_the_attack_and_the_last():
    sizes = {1.0: 7, 6.0: 5, 9.0: 8, 12.0: 9, 15.0: 6, 30.0: 8}
    held = [MemorySample(at, "A", size << 20) for at, size in sizes.items()]
    found = toll(witnessed=CrowdEvidence(held=held))
    assert found.memory == {"A": Memory(5.0, 9.0, 8.0)}  # not what it held when the attack was about to be told of
    assert found.most_growth == 4.0


def test_names_are_shunned_from_when_somebody_honest_first_avoids_them():
    met = [
        HostileSighting(3, 10.0, "x", "clock"),
        HostileSighting(3, 11.0, "y", "clock"),
        HostileSighting(3, 11.0, "z", "spam"),
        HostileSighting(4, 1.0, "o", "spam"),
    ]
    said = [
        Timed(at, "B", Avoided(peer, 10.0, "")) for at, peer in ((12.0, "x"), (13.0, "x"), (17.0, "y"), (12.0, "o"))
    ]
    found = toll(*said, witnessed=CrowdEvidence(met=met, told={3: {"names": 3}}))
    assert found.shunned == {"clock": BanStats(2, 2, 4.0, 6.0), "spam": BanStats(1, 0, None, None)}
    assert found.told == {"names": 3}
