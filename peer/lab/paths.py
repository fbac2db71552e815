"""Loose paths: which member of each stage computes which pass, in which order, in virtual time.

In a pool every stage has members of unequal speeds, and nobody waits for anybody. A member of stage 0 draws the next
microbatch of the round when it is free; a microbatch goes on to the member of the next stage that would be done with it
first, and its gradient comes back by the same path. A backward pass goes before forward passes that wait. The last
stage does both passes of a microbatch at once.

Time is in forward passes of a member of speed 1; a backward pass, which computes the activations again, takes three.
"""

import heapq
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

Way = Literal["forward", "backward"]

COST: dict[Way, float] = {"forward": 1.0, "backward": 3.0}

AHEAD = 2.0
"""How many microbatches are in flight, for each that would do if all were always busy."""


@dataclass(frozen=True, slots=True)
class Pass:
    """One pass of one microbatch at a member of a stage, and when it ended. At the last stage `backward` is both."""

    way: Way
    microbatch: int
    stage: int
    member: int
    ended: float


@dataclass(slots=True)
class _Member:
    """What a member has to do, and when it will have done all that it was given."""

    speed: float
    forward: deque[int] = field(default_factory=deque)
    backward: deque[int] = field(default_factory=deque)
    busy: bool = False
    due: float = 0.0
    in_flight: int = 0


def schedule(speeds: Sequence[Sequence[float]], microbatches: int) -> list[Pass]:
    """All passes of a round of `microbatches` in the order in which they end. `speeds` are those of each stage's
    members. With one member a stage it is a pipeline that is never drained.

    Raises:
        ValueError: a stage has no member, or a speed is not positive.
    """
    if not all(speeds) or not all(speed > 0 and math.isfinite(speed) for stage in speeds for speed in stage):
        raise ValueError("each stage of a pool needs members, and each member a positive speed")
    stages = [[_Member(speed) for speed in stage] for stage in speeds]
    last, total = len(stages) - 1, sum(speeds[0])
    most = [max(1, round(AHEAD * len(stages) * len(speeds[0]) * speed / total)) for speed in speeds[0]]
    paths: dict[int, list[int]] = {}
    running: list[tuple[float, int, Way, int, int]] = []
    done: list[Pass] = []
    now, drawn = 0.0, 0

    def give(way: Way, microbatch: int, stage: int, number: int) -> None:
        member = stages[stage][number]
        (member.forward if way == "forward" else member.backward).append(microbatch)
        member.due = max(member.due, now) + cost(way, stage) / member.speed

    def cost(way: Way, stage: int) -> float:
        return COST["backward" if stage == last else way]

    def begin() -> None:
        """Let whoever is free begin what is next."""
        nonlocal drawn
        for number, member in enumerate(stages[0]):
            idle = not (member.busy or member.forward or member.backward)
            if idle and drawn < microbatches and member.in_flight < most[number]:
                paths[drawn] = [number]
                member.in_flight += 1
                give("forward", drawn, 0, number)
                drawn += 1
        for stage, members in enumerate(stages):
            for number, member in enumerate(members):
                if member.busy or not (member.backward or member.forward):
                    continue
                way: Way = "backward" if member.backward else "forward"
                microbatch = (member.backward or member.forward).popleft()
                member.busy = True
                ends = now + cost(way, stage) / member.speed
                heapq.heappush(running, (ends, microbatch, way, stage, number))

    begin()
    while running:
        now, microbatch, way, stage, number = heapq.heappop(running)
        member = stages[stage][number]
        member.busy = False
        both = way == "forward" and stage == last
        done.append(Pass("backward" if both else way, microbatch, stage, number, now))
        if way == "forward" and not both:
            soonest = [max(each.due, now) + cost("forward", stage + 1) / each.speed for each in stages[stage + 1]]
            chosen = soonest.index(min(soonest))
            paths[microbatch].append(chosen)
            give("forward", microbatch, stage + 1, chosen)
        elif stage > 0:
            give("backward", microbatch, stage - 1, paths[microbatch][stage - 1])
        else:
            member.in_flight -= 1
        begin()
    return done


def inner_steps(total: int, speeds: Sequence[int]) -> list[int]:
    """How many of `total` inner steps each replica takes where all take as long: in proportion to its speed, at least
    one, and `total` in all.

    Raises:
        ValueError: they are too few for one each.
    """
    if total < len(speeds):
        raise ValueError(f"{total} inner steps are too few for {len(speeds)} replicas")
    exact = [total * speed / sum(speeds) for speed in speeds]
    steps = [max(1, math.floor(each)) for each in exact]
    while sum(steps) < total:
        steps[max(range(len(steps)), key=lambda i: exact[i] - steps[i])] += 1
    while sum(steps) > total:
        steps[max(range(len(steps)), key=lambda i: steps[i] - exact[i] if steps[i] > 1 else -math.inf)] -= 1
    return steps
