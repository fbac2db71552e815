"""A seed draws a schedule: the families of seeds. Each keeps its stories when another is added."""

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from tests.world.dense import dense
from tests.world.returning import RETURNING, returning
from tests.world.schedule import Fault, Kind, Member, Schedule
from tests.world.storms import storm

MORE = 1_000_000
"""From this seed on schedules have more: a second family, so that the first stays as it was."""

DENSE = 2_000_000
"""From this seed on few kinds of faults come thick and fast, where they may hurt (`dense.py`): a third family."""

STORMS = 3_000_000
"""From this seed on the run's end is in a storm (`storms.py`): a fourth family."""

EARLY = 4_000_000
"""From this seed on runs begin before all their replicas are there: a fifth family."""

LAPPING = 5_000_000
"""From this seed on inner steps overlap, with all that the second family has: a sixth family."""

UNEVEN = 6_000_000
"""From this seed on replicas take as many inner steps as they can, and are more often of unequal speeds, with all that
the second family has: a seventh family."""

QUIET_SECONDS = 40.0
"""From the first start to the last fault."""


def draw(seed: int) -> Schedule:
    """The schedule of a seed."""
    if seed >= RETURNING:
        return returning(seed, random.Random(f"hetpeer world returning {seed}"))
    chance = random.Random(f"hetpeer world {seed}")
    stages = chance.choice((2, 2, 2, 3))
    groups, datacenters = chance.choice(((1, 0), (1, 1), (2, 0), (1, 2), (2, 1), (0, 2), (0, 3)))
    members: list[Member] = []

    def join(name: str, role: Literal["volunteer", "datacenter", "observer"], stage: int | None = None) -> None:
        late = chance.random() < 0.2
        members.append(
            Member(
                name,
                role,
                stage,
                at=round(chance.uniform(0, 25.0) if late else chance.uniform(0, 2.0), 2),
                speed=chance.choice((1.0, 1.0, 1.0, 1.5, 3.0)),
                latency=chance.choice((0.005, 0.02, 0.08)),
                skew=chance.choice((0.0, 0.0, 0.0, -2.0, 3.0)),
            )
        )

    for group in range(groups):
        for stage in range(stages):
            join(f"volunteer-{stage}-{group}", "volunteer", stage)
    for number in range(datacenters):
        join(f"datacenter-{number}", "datacenter")
    spares = chance.choice((0, 0, 1, 2)) if groups else 0
    for number in range(spares):
        stage = chance.randrange(stages)
        join(f"spare-{stage}-{number}", "volunteer", stage)
    if chance.random() < 0.5:
        join("observer", "observer")
    while len(members) < 5:
        join(f"observer-{len(members)}", "observer")
    faults = _faults(chance, members)
    overlap = chance.random() < 0.2
    drawn = Schedule(seed, stages, groups, datacenters, 4 + chance.randrange(3), overlap, tuple(members), faults)
    if seed >= UNEVEN:
        return _uneven(drawn, random.Random(f"hetpeer world uneven {seed}"))
    if seed >= LAPPING:
        return replace(_with_more(drawn, random.Random(f"hetpeer world lapping {seed}")), step_overlap=1)
    if seed >= EARLY:
        return _beginning_early(drawn, random.Random(f"hetpeer world early {seed}"))
    if seed >= STORMS:
        return storm(drawn, random.Random(f"hetpeer world storm {seed}"))
    if seed >= DENSE:
        return dense(drawn, random.Random(f"hetpeer world dense {seed}"))
    return _with_more(drawn, random.Random(f"hetpeer world more {seed}")) if seed >= MORE else drawn


def _beginning_early(drawn: Schedule, chance: random.Random) -> Schedule:
    """The same schedule, in which the run waits for few seconds, and many come later than that or never."""
    starts = (
        each.at if chance.random() < 0.5 else round(each.at + chance.uniform(0, 25.0), 2) for each in drawn.members
    )
    members = tuple(replace(each, at=at) for each, at in zip(drawn.members, starts, strict=True))
    more = chance.choice((0, 0, 1, 2))
    return replace(drawn, members=members, datacenters=drawn.datacenters + more, gather=chance.choice((0.0, 2.0, 8.0)))


def _uneven(drawn: Schedule, chance: random.Random) -> Schedule:
    """The second family's schedule, in which replicas of other speeds take other numbers of steps."""
    more = _with_more(drawn, chance)
    speeds = {group: chance.choice((0.5, 1.0, 2.0, 4.0)) for group in range(drawn.groups + drawn.datacenters)}

    def speed(member: Member) -> float:
        *_, number = member.name.split("-")
        return member.speed * speeds.get(int(number), 1.0) if number.isdecimal() else member.speed

    members = tuple(replace(each, speed=speed(each)) for each in more.members)
    step_overlap = chance.choice((0, 0, 1))
    return replace(more, members=members, most_steps=chance.choice((8, 16)), step_overlap=step_overlap)


def _with_more(drawn: Schedule, chance: random.Random) -> Schedule:
    """The same schedule with more of what there is: rounds that are closed, certificates that end, an observer that
    audits, a gateway, disks that are full or slow, and who comes back only after the end."""
    members, faults = list(drawn.members), list(drawn.faults)
    rounds, grace, liars = drawn.rounds, None, None
    if chance.random() < 0.6:
        rounds, grace, liars = rounds + 4, 2 + drawn.overlap, chance.choice((0, 1))
    life = chance.choice((None, None, 20.0, 40.0))
    if chance.random() < 0.4:
        members = [each for each in members if each.name != "observer"]
        members.append(Member("observer", "observer", at=round(chance.uniform(0, 5.0), 2), audits=True))

    def at(kind: Kind, when: float, name: str) -> None:
        faults.append(Fault(round(when, 2), kind, (name,)))

    if chance.random() < 0.35:
        members = [replace(each, door=chance.choice(("node", "gateway"))) for each in members]
        members.append(Member("gateway", "gateway", at=0.0, latency=chance.choice((0.005, 0.02, 0.08))))
        when = chance.uniform(4.0, QUIET_SECONDS - 20)
        at("kill", when, "node")
        at("start", when + chance.choice((5.0, 20.0, 40.0)), "node")
    for _ in range(chance.choice((0, 0, 1, 1, 2))):
        name, when = chance.choice(drawn.members).name, chance.uniform(1.0, QUIET_SECONDS - 10)
        away = chance.choice((0.1, 1.0, 3.0, 8.0, 20.0))
        if chance.random() < 0.6:
            at("full", when, name)
            at("room", when + away, name)
            at("start", when + away + 0.5, name)
        else:
            at("slow", when, name)
            at("fast", when + away, name)
    spared = [each.name for each in members if each.role == "observer" or each.name.startswith("spare")]
    others = drawn.datacenters + drawn.groups > 1
    spared += [each.name for each in members if others and each.role == "datacenter"]
    if spared and chance.random() < 0.4:
        at("leave", chance.uniform(QUIET_SECONDS - 20, QUIET_SECONDS), chance.choice(spared))
    faults.sort(key=lambda each: each.at)
    more = replace(drawn, members=tuple(members), faults=tuple(faults), rounds=rounds, grace=grace, liars=liars)
    return replace(more, life=life)


def _faults(chance: random.Random, members: Sequence[Member]) -> tuple[Fault, ...]:
    """What happens, and how each is mended."""
    faults: list[Fault] = []

    def at(kind: Kind, when: float, *names: str) -> None:
        faults.append(Fault(round(when, 2), kind, names))

    cut_until = 0.0
    for _ in range(chance.choice((0, 1, 1, 2, 2, 3, 4, 5))):
        when = chance.uniform(1.0, QUIET_SECONDS - 10)
        name = chance.choice((*(each.name for each in members), "node"))
        away = chance.choice((0.1, 1.0, 3.0, 8.0, 20.0))
        kind = chance.choice(("kill", "power", "wipe", "interrupt", "freeze", "pause", "cut"))
        if kind == "cut" and when > cut_until:
            size = chance.randint(1, max(1, len(members) // 2))
            at("cut", when, *chance.sample([each.name for each in members], size))
            cut_until = when + away
            at("heal", cut_until)
        elif kind == "freeze":
            at("freeze", when, name)
            at("thaw", when + away, name)
        elif kind == "pause" and name != "node":
            at("pause", when, name)
            at("resume", when + away, name)
        elif kind in ("kill", "power", "wipe", "interrupt"):
            at("kill" if name == "node" and kind != "interrupt" else kind, when, name)  # type: ignore[arg-type]
            at("start", when + away, name)
    return tuple(sorted(faults, key=lambda each: each.at))
