"""Storms: faults that come one after another, as those of `python -m tests.chaos --chaos random:…`, most of them in the
last two rounds and just after the end.

The network falls in two between whole replicas, so that both halves can finish the run alone, each with contributions
that the other has not; who is killed comes back to the half where it is.
"""

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from tests.world.schedule import Fault, Kind, Member, Moment, Schedule, for_a_while

Blow = Literal["kill", "freeze", "split", "narrow"]

LASTS: dict[Blow, tuple[Kind, tuple[float, ...]]] = {
    "kill": ("start", (0.1, 1.0, 3.0)),
    "freeze": ("thaw", (1.0, 3.0, 8.0)),
    "split": ("heal", (2.0, 5.0, 8.0, 11.0)),
    "narrow": ("wide", (3.0, 5.0, 12.0)),
}
"""What mends a blow, and after how many seconds."""

STORM_SECONDS = 30.0
"""So long a storm goes on."""

WHOLE_SECONDS = 5.0
"""So long the network is whole between two splits. Who does not answer is waited for at the end for 15 seconds: peers
that are apart for longer end apart."""

REST_SECONDS = 15.0
"""So long nothing more happens to one that was killed, stopped or slowed down: it has time to come back."""


def storm(drawn: Schedule, chance: random.Random) -> Schedule:
    """The same members in a storm, which begins in one of the last two rounds, or at the first one's end of the run."""
    rounds = drawn.rounds
    moment = chance.choice(
        (
            Moment("RoundDone", rounds - 1),
            Moment("StepDone", rounds),
            Moment("Contributed", rounds),
            Moment("RoundDone", rounds),
            Moment("Finished"),
        )
    )
    every = chance.choice((2.0, 4.0, 6.0))
    faults: list[Fault] = []
    at, whole = chance.choice((0.0, chance.uniform(0.0, 3.0))), 0.0
    rested = dict.fromkeys((each.name for each in drawn.members), 0.0)
    while at < STORM_SECONDS:
        blow: Blow = chance.choice(("kill", "freeze", "split", "split", "narrow"))
        if blow == "split" and at >= whole:
            struck = _struck(blow, _half(drawn.members, chance), round(at, 2), moment, chance)
            whole = struck[1].at + WHOLE_SECONDS
            faults += struck
        elif blow != "split" and (there := [name for name, when in rested.items() if at >= when]):
            name = chance.choice(there)
            struck = _struck(blow, (name,), round(at, 2), moment, chance)
            rested[name] = struck[1].at + REST_SECONDS
            faults += struck
        at += chance.expovariate(1 / every)
    return replace(drawn, faults=tuple(sorted(faults, key=lambda each: each.at)))


def _struck(blow: Blow, names: tuple[str, ...], at: float, moment: Moment, chance: random.Random) -> list[Fault]:
    """One blow and what mends it."""
    mend, times = LASTS[blow]
    return for_a_while("cut" if blow == "split" else blow, names, at, chance.choice(times), mend, moment)


def _half(members: Sequence[Member], chance: random.Random) -> tuple[str, ...]:
    """Those on one side of a network in two: whole replicas, and some of those that are no part of one."""
    replicas: dict[str, list[str]] = {}
    for each in members:
        replica = each.name.rsplit("-", 1)[-1] if each.name.startswith("volunteer") else each.name
        replicas.setdefault(replica, []).append(each.name)
    some = chance.sample(sorted(replicas), chance.randint(1, max(1, len(replicas) - 1)))
    return tuple(name for replica in some for name in replicas[replica])
