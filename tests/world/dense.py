"""Dense schedules: two or three kinds of faults only, six to sixteen of them, and these where they may hurt.

A schedule that draws from everything seldom hits the one second that matters. Here a seed first chooses what happens at
all, and its aim: one victim again and again, all at about the same moment, certain rounds, or the run's end. Moments
are what somebody tells (`Moment`), so that they are met however fast a run goes.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal, get_args

from tests.world.schedule import Fault, Kind, Member, Moment, Schedule, for_a_while

Blow = Literal["kill", "power", "wipe", "interrupt", "freeze", "pause", "cut", "slow", "node", "blackout"]
"""What is done to whom: `node`, the operator's is killed; `blackout`, power fails everywhere; others as in `Kind`."""

Aim = Literal["anywhere", "victim", "together", "rounds", "end"]

MENDED_BY: dict[Blow, Kind] = {"interrupt": "again", "freeze": "thaw", "pause": "resume", "cut": "heal", "slow": "fast"}
"""What mends a blow; the others, a start."""

TIMED_SECONDS = 30.0
"""Faults that have no moment come within this time."""

LAST_SECONDS = 12.0
"""So long after the last round something still happens: the others are waited for, and the node is asked."""

PAUSE_SECONDS = 60.0
"""So long some are paused: who is still there after that has not understood."""

SLOW = 20.0
"""So many times slower is who is far too slow: a step takes it some eight seconds, where others take half a one."""

Draw = Callable[[], tuple[float, Moment | None]]
"""Draws when something happens."""


def dense(drawn: Schedule, chance: random.Random) -> Schedule:
    """The same members with other faults; now and then one that is far too slow, certificates that last for 20
    seconds, and rounds that are closed before the end."""
    grace, liars, rounds = None, None, drawn.rounds
    if chance.random() < 0.35:
        rounds, grace, liars = rounds + 4, 2 + drawn.overlap, chance.choice((0, 1))
    members = _with_a_slow_one(drawn, chance)
    faults = _faults(replace(drawn, rounds=rounds, members=members), chance)
    life = chance.choice((None, None, 20.0))
    more = replace(drawn, members=members, faults=faults, rounds=rounds, grace=grace, liars=liars)
    return replace(more, life=life)


def _with_a_slow_one(drawn: Schedule, chance: random.Random) -> tuple[Member, ...]:
    """The members; now and then one of them, who is not needed, is twenty times slower."""
    slow = chance.choice(_spared(drawn) or [""]) if chance.random() < 0.25 else ""
    return tuple(replace(each, speed=SLOW) if each.name == slow else each for each in drawn.members)


def _spared(drawn: Schedule) -> list[str]:
    """Who may be away for long without stopping the run: observers, datacenters beside others, and volunteers of a
    stage that has more than it needs."""
    others = drawn.datacenters + drawn.groups > 1
    count = [sum(each.stage == stage for each in drawn.members) for stage in range(drawn.stages)]
    return [
        each.name
        for each in drawn.members
        if each.role == "observer"
        or (each.role == "datacenter" and others)
        or (each.stage is not None and count[each.stage] > drawn.groups)
    ]


def _faults(drawn: Schedule, chance: random.Random) -> tuple[Fault, ...]:
    """What happens, each thing with what mends it."""
    blows = chance.sample(get_args(Blow), chance.choice((2, 2, 3)))
    aim: Aim = chance.choice(get_args(Aim))
    victims = _victims(drawn, aim, chance)
    draw = _moments(drawn, aim, victims, chance)
    faults: list[Fault] = []
    for _ in range(chance.randint(6, 16)):
        faults += _struck(drawn, chance.choice(blows), victims, draw(), chance)
    if (spared := _spared(drawn)) and chance.random() < 0.3:
        name, (at, moment) = chance.choice(spared), draw()
        faults.append(Fault(at, "lose", (name,), moment))
    if spared and chance.random() < 0.3:  # over the end
        name, (at, moment) = chance.choice(spared), _in_a_round(drawn.rounds, "", chance)
        faults.append(Fault(at, "pause", (name,), moment))
        faults.append(Fault(round(chance.uniform(0.0, 20.0), 2), "resume", (name,), Moment("Finished")))
    return tuple(sorted(faults, key=lambda each: (str(each.after or ""), each.at)))


def _victims(drawn: Schedule, aim: Aim, chance: random.Random) -> Sequence[str]:
    names = [each.name for each in drawn.members]
    return [chance.choice(names)] if aim == "victim" else chance.sample(names, chance.randint(2, len(names)))


def _moments(drawn: Schedule, aim: Aim, victims: Sequence[str], chance: random.Random) -> Draw:
    """How this schedule draws when something happens."""

    def timed() -> tuple[float, Moment | None]:
        return round(chance.uniform(1.0, TIMED_SECONDS), 2), None

    def in_a_round() -> tuple[float, Moment | None]:
        name = chance.choice(("", *victims))
        return _in_a_round(chance.randint(1, drawn.rounds), name, chance)

    def at_the_end() -> tuple[float, Moment | None]:
        name = chance.choice(("", "", *victims))
        last = chance.choice((Moment("RoundDone", drawn.rounds, name), Moment("Finished", 0, name)))
        return round(chance.uniform(0.0, LAST_SECONDS), 2), last

    def either() -> tuple[float, Moment | None]:
        return chance.choice((timed, in_a_round, in_a_round))()

    together = either()

    def at_once() -> tuple[float, Moment | None]:
        return round(together[0] + chance.uniform(0.0, 1.0), 2), together[1]

    ways: dict[Aim, Draw] = {"anywhere": timed, "together": at_once, "rounds": in_a_round, "end": at_the_end}
    return ways.get(aim, either)


def _in_a_round(round_: int, name: str, chance: random.Random) -> tuple[float, Moment]:
    """Shortly after somebody has got so far in a round."""
    event = chance.choice(("StepDone", "StepDone", "Contributed", "RoundDone", "GroupFormed"))
    moment = Moment(event, round_ if event != "GroupFormed" else 0, name)
    return round(chance.choice((0.0, chance.uniform(0.0, 1.0), chance.uniform(0.0, 4.0))), 2), moment


def _struck(
    drawn: Schedule, blow: Blow, victims: Sequence[str], when: tuple[float, Moment | None], chance: random.Random
) -> list[Fault]:
    """One blow, and what mends it after a short while, as most are; a pause and a freeze may last for longer."""
    at, moment = when
    away = chance.choice((0.1, 0.3, 1.0, 1.0, 3.0, 3.0, 8.0))
    if blow in ("freeze", "pause"):
        away = chance.choice((away, away, 20.0, PAUSE_SECONDS if blow == "pause" else 8.0))
    name = chance.choice(victims)

    def pair(kind: Kind, *names: str, mend: Kind = "start") -> list[Fault]:
        return for_a_while(kind, names, at, away, mend, moment)

    match blow:
        case "node":
            return pair("kill", "node")
        case "blackout":
            everybody = [each.name for each in drawn.members]
            dark = [fault for each in everybody for fault in pair("power", each)]
            return [*pair("kill", "node"), *dark]
        case "cut":
            some = chance.sample(list(victims), chance.randint(1, len(victims)))
            return pair("cut", *some, mend="heal")
        case "wipe" if name != victims[0]:
            return pair("kill", name)  # where all lose what they hold, the run is lost
        case _:
            return pair(blow, name, mend=MENDED_BY.get(blow, "start"))
