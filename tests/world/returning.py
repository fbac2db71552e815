"""Schedules of leaving and coming back: who leaves, for how long, as a spare or not, who stands still meanwhile, who is
new, with the node or without it; and what must be true of them: no work is lost that anybody still holds, no round is
closed as empty, and nothing that is said of a lost state is false.
"""

import random
import re
from collections.abc import Iterable
from typing import Literal

from protocol.events.activity import Contributed, Finished, Joined, RoundDone
from protocol.events.decisions import NotCounted
from protocol.events.waiting import Waiting
from protocol.identity import contributes_to
from tests.world.owners import Owner, Process
from tests.world.schedule import Fault, Kind, Member, Schedule

RETURNING = 7_000_000
"""From this seed on few hold each state, and leave and come back: an eighth family."""

COMING_SECONDS = 45.0
"""The time within which members leave and newcomers come."""

NOTICED_SECONDS = 10.0
"""The time for which a holder must have been in the swarm, undisturbed, for others to know of it."""

ON_ITS_WAY_SECONDS = 2.0
"""The time within which a contribution reaches everybody who is here."""

LOST = re.compile(r"the state of stage (\d) after round (\d+)$")


def returning(seed: int, chance: random.Random) -> Schedule:
    """The schedule of a seed: few hold each state, and most of them are away for a while."""
    stages = chance.choice((2, 2, 2, 3))
    groups, datacenters = chance.choice(((1, 0), (1, 0), (1, 0), (1, 1), (2, 0), (2, 1)))
    members: list[Member] = []

    def join(name: str, role: Literal["volunteer", "datacenter"], stage: int | None, at: float) -> None:
        latency = chance.choice((0.005, 0.02, 0.08))
        members.append(Member(name, role, stage, round(at, 2), chance.choice((1.0, 1.0, 1.5)), latency))

    for group in range(groups):
        for stage in range(stages):
            join(f"volunteer-{stage}-{group}", "volunteer", stage, chance.uniform(0.0, 2.0))
    for number in range(datacenters):
        join(f"datacenter-{number}", "datacenter", None, chance.uniform(0.0, 2.0))
    for number in range(chance.choice((0, 1, 1, 2))):
        join(f"spare-{number}", "volunteer", chance.randrange(stages), chance.uniform(1.0, 15.0))
    for number in range(chance.choice((0, 0, 1, 1))):
        join(f"newcomer-{number}", "volunteer", chance.randrange(stages), chance.uniform(15.0, COMING_SECONDS))
    rounds, liars = chance.choice((10, 14, 18)), chance.choice((0, 1))
    faults = tuple(sorted(_faults(chance, members), key=lambda fault: fault.at))
    return Schedule(seed, stages, groups, datacenters, rounds, False, tuple(members), faults, grace=2, liars=liars)


def _faults(chance: random.Random, members: list[Member]) -> Iterable[Fault]:
    """Members leave, each for a while; some stand still, and now and then the node is away. In every second schedule
    one leaves, its successor trains on and leaves, too, and the first comes back before it."""
    away: tuple[float, ...] = (1.0, 4.0, 10.0, 20.0, 30.0)
    if chance.random() < 0.5:
        yield from _relay(chance, members)
    for _ in range(chance.choice((1, 2, 2, 3, 4))):
        member, leaves = chance.choice(members), chance.uniform(4.0, COMING_SECONDS)
        how: Kind = chance.choice(("interrupt", "interrupt", "kill", "power"))
        yield Fault(round(leaves, 2), how, (member.name,))
        yield Fault(round(leaves + chance.choice(away), 2), "again", (member.name,))
        if chance.random() < 0.3:
            other, still = chance.choice(members), leaves + chance.uniform(-2.0, 5.0)
            yield Fault(round(still, 2), "freeze", (other.name,))
            yield Fault(round(still + chance.choice((2.0, 6.0, 12.0)), 2), "thaw", (other.name,))
    if chance.random() < 0.3:
        leaves = chance.uniform(4.0, COMING_SECONDS)
        yield Fault(round(leaves, 2), "kill", ("node",))
        yield Fault(round(leaves + chance.choice(away), 2), "start", ("node",))


def _relay(chance: random.Random, members: list[Member]) -> Iterable[Fault]:
    stage = chance.choice([member.stage for member in members if member.stage is not None])
    served = [member.name for member in members if member.stage == stage]
    first, second = chance.sample(served, 2) if len(served) > 1 else (served[0], chance.choice(members).name)
    leaves, trains, alone = chance.uniform(4.0, 15.0), chance.uniform(6.0, 20.0), chance.uniform(1.0, 15.0)
    how: Kind = chance.choice(("interrupt", "kill"))
    yield Fault(round(leaves, 2), how, (first,))
    yield Fault(round(leaves + trains, 2), chance.choice(("interrupt", "kill")), (second,))
    yield Fault(round(leaves + trains + chance.uniform(-3.0, 5.0), 2), "again", (first,))
    yield Fault(round(leaves + trains + 5.0 + alone, 2), "again", (second,))
    if chance.random() < 0.5:
        other = chance.choice([member.name for member in members])
        yield Fault(round(leaves + trains, 2), "freeze", (other,))
        yield Fault(round(leaves + trains + chance.choice((4.0, 12.0)), 2), "thaw", (other,))


def nothing_lost(peers: list[Owner]) -> list[str]:
    """What is wrong with how members came back; empty: nothing."""
    return [*_empty_rounds(peers), *_states(peers), *_false_words(peers)]


def _empty_rounds(peers: list[Owner]) -> Iterable[str]:
    """Who closes a round as empty to which somebody had contributed. (Where a group breaks in a round's first steps,
    and whoever is left stands still, there may be nothing.)"""
    made = [
        (at, owner, event.round)
        for owner in peers
        for run in owner.runs
        for at, event in run.events
        if isinstance(event, Contributed)
    ]
    for owner in peers:
        for then, event in (each for run in owner.runs for each in run.events if isinstance(each[1], RoundDone)):
            for part in (part for part, count in event.contributions.items() if not count):
                authors = {
                    author.name
                    for at, author, round in made
                    if round == event.round and at < then - ON_ITS_WAY_SECONDS
                    if contributes_to(author.role, author.stage or 0, part)
                    if not _withheld(author, round)
                }
                if authors:
                    yield f"{owner.name} closes round {event.round} of {part} as empty; {authors} had contributed to it"


def _withheld(author: Owner, round: int) -> bool:
    """Whether an author was told that its contribution to a round does not count: it came too late."""
    told = (event for run in author.runs for _, event in run.events if isinstance(event, NotCounted))
    return any(event.round == round for event in told)


def _states(peers: list[Owner]) -> Iterable[str]:
    """One state of each part at the end, in however few hands the run was: nobody lies here."""
    digests: dict[str, dict[str, str]] = {}
    for owner in peers:
        for event in (event for run in owner.runs for _, event in run.events if isinstance(event, Finished)):
            for part, digest in event.digests.items():
                digests.setdefault(str(part), {})[owner.name] = digest[:8]
    for part, by_owner in digests.items():
        if len(set(by_owner.values())) > 1:
            yield f"at the end {part} has {len(set(by_owner.values()))} states: {by_owner}"


def _false_words(peers: list[Owner]) -> Iterable[str]:
    """Who says that nobody here holds a state, while somebody has it and has been here for a while. A peer that has
    just stood still itself knows no better."""
    for owner in peers:
        for at, event in ((at, event) for run in owner.runs for at, event in run.events if isinstance(event, Waiting)):
            named = LOST.match(event.what)
            if named is None or any(_stood_still(run, at) for run in owner.runs):
                continue
            stage, round = int(named[1]), int(named[2])
            for other in peers:
                if other is not owner and (other.stage is None or other.stage == stage) and _held(other, round, at):
                    yield f"{owner.name} says at {at:.1f} s that {event.what} is lost, and {other.name} holds it"


def _held(owner: Owner, round: int, at: float) -> bool:
    """Whether somebody had finished a round some time ago, and has been in the swarm, undisturbed, since."""
    return any(
        any(isinstance(event, Joined) and joined < at - NOTICED_SECONDS for joined, event in process.events)
        and (process.ended_at is None or process.ended_at > at)
        and not _stood_still(process, at)
        and any(
            isinstance(event, RoundDone) and event.round >= round and then < at - NOTICED_SECONDS
            for run in owner.runs
            for then, event in run.events
        )
        for process in owner.runs
    )


def _stood_still(process: Process, at: float) -> bool:
    return any(begin - 1.0 <= at <= end + NOTICED_SECONDS for begin, end in process.stops)
