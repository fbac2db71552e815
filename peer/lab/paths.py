"""Loose paths: which member of each stage computes which pass, in which order, in virtual time.

In a pool every stage has members of unequal speeds, and nobody waits for anybody. A member of stage 0 draws the next
microbatch of the round when it is free; a microbatch goes on to the member of the next stage that would be done with it
first, and its gradient comes back by the same path. A backward pass goes before forward passes that wait. The last
stage does both passes of a microbatch at once. Members may go away and come back: what was in flight through them is
drawn again.

Time is in forward passes of a member of speed 1; a backward pass, which computes the activations again, takes three.
"""

import heapq
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

Way = Literal["forward", "backward"]

COST: dict[Way, float] = {"forward": 1.0, "backward": 3.0}

AHEAD = 2.0
"""How many microbatches are in flight, for each that would do if all were always busy."""

AWAY = 0.1
"""How long a member stays away, as a share of a round."""


@dataclass(frozen=True, slots=True)
class Pass:
    """One pass of one microbatch at a member of a stage, and when it ended. At the last stage `backward` is both.

    `text` is the place of what it reads among all that is drawn in the round. A microbatch that is lost is drawn again,
    with the same text and a number of its own.
    """

    way: Way
    microbatch: int
    text: int
    stage: int
    member: int
    ended: float


@dataclass(frozen=True, slots=True)
class Absence:
    """A member of a stage is away from one time to another."""

    stage: int
    member: int
    begins: float
    ends: float


LEAVES, RETURNS, ARRIVES, ENDED = range(4)

Happening = tuple[float, int, int, Way, int, int]
"""When, what, of which microbatch, its way, and at which member of which stage. Of leaving and returning only the last
two mean something."""


@dataclass(slots=True)
class VirtualMember:
    """What a member has to do, and when it will have done all that it was given."""

    speed: float
    most: int
    """Microbatches in flight that a member of stage 0 may have drawn."""
    forward: deque[int] = field(default_factory=deque)
    backward: deque[int] = field(default_factory=deque)
    running: int | None = None
    """The microbatch of the pass that it computes."""
    due: float = 0.0
    holds: set[int] = field(default_factory=set)
    """The microbatches that it has been given and whose gradients have not gone back through it."""
    away: bool = False


@dataclass(slots=True)
class VirtualPool:
    """A round of a pool, in virtual time. `link`: how long a frame takes from one stage to the next."""

    stages: list[list[VirtualMember]]
    microbatches: int
    link: float
    now: float = 0.0
    drawn: int = 0
    finished: int = 0
    again: deque[int] = field(default_factory=deque)
    """The texts of microbatches that were lost."""
    texts: list[int] = field(default_factory=list)
    """The text of each microbatch."""
    paths: list[list[int]] = field(default_factory=list)
    """The members of stages 0, 1, … that each microbatch has taken so far."""
    waiting: list[deque[int]] = field(default_factory=list)
    """By stage, the microbatches for which nobody is there."""
    events: list[Happening] = field(default_factory=list)
    done: list[Pass] = field(default_factory=list)

    @property
    def last(self) -> int:
        """The last stage."""
        return len(self.stages) - 1

    def play(self, absences: Sequence[Absence]) -> list[Pass]:
        """All passes of the round in the order in which they end."""
        for each in absences:
            heapq.heappush(self.events, (each.begins, LEAVES, 0, "forward", each.stage, each.member))
            heapq.heappush(self.events, (each.ends, RETURNS, 0, "forward", each.stage, each.member))
        self._begin()
        while self.events and self.finished < self.microbatches:
            self.now, what, microbatch, way, stage, number = heapq.heappop(self.events)
            if what == LEAVES:
                self._leave(stage, number)
            elif what == RETURNS:
                self._return(stage, number)
            elif what == ARRIVES:
                self._take(way, microbatch, stage, number)
            else:
                self._end(way, microbatch, stage, number)
            self._begin()
        return self.done

    def _begin(self) -> None:
        """Let whoever is free begin what is next."""
        for number, member in enumerate(self.stages[0]):
            idle = member.running is None and not (member.away or member.forward or member.backward)
            if idle and len(member.holds) < member.most and (self.again or self.drawn < self.microbatches):
                self._draw(number)
        for stage, members in enumerate(self.stages):
            for number, member in enumerate(members):
                if member.running is None and not member.away and (member.backward or member.forward):
                    way: Way = "backward" if member.backward else "forward"
                    member.running = (member.backward or member.forward).popleft()
                    ends = self.now + self._cost(way, stage) / member.speed
                    heapq.heappush(self.events, (ends, ENDED, member.running, way, stage, number))

    def _draw(self, number: int) -> None:
        """A member of stage 0 takes up what was lost, or the next text."""
        if self.again:
            text = self.again.popleft()
        else:
            text, self.drawn = self.drawn, self.drawn + 1
        self.texts.append(text)
        self.paths.append([number])
        self._expect("forward", 0, number, self.now)
        self._take("forward", len(self.texts) - 1, 0, number)

    def _take(self, way: Way, microbatch: int, stage: int, number: int) -> None:
        """A microbatch is at a member, which may have gone, or have gone and come back without what it had of it."""
        member = self.stages[stage][number]
        if member.away or (way == "backward" and microbatch not in member.holds):
            self._lose(microbatch)
            return
        member.holds.add(microbatch)
        (member.forward if way == "forward" else member.backward).append(microbatch)

    def _expect(self, way: Way, stage: int, number: int, arrival: float) -> None:
        """A member will have a pass more to do from some time on."""
        member = self.stages[stage][number]
        member.due = max(member.due, arrival) + self._cost(way, stage) / member.speed

    def _end(self, way: Way, microbatch: int, stage: int, number: int) -> None:
        """A pass has ended, and its microbatch goes on, or back, or is through."""
        member = self.stages[stage][number]
        if member.running != microbatch:
            return  # it went away meanwhile
        member.running = None
        back = way == "backward" or stage == self.last
        text = self.texts[microbatch]
        self.done.append(Pass("backward" if back else "forward", microbatch, text, stage, number, self.now))
        if not back:
            self._go_on(microbatch, stage + 1)
            return
        member.holds.discard(microbatch)
        if stage:
            self._send("backward", microbatch, stage - 1, self.paths[microbatch][stage - 1])
        else:
            self.finished += 1

    def _go_on(self, microbatch: int, stage: int) -> None:
        """Send a microbatch to the member of a stage that would be done with it first."""
        there = [(number, each) for number, each in enumerate(self.stages[stage]) if not each.away]
        if not there:
            self.waiting[stage].append(microbatch)
            return
        cost, arrival = self._cost("forward", stage), self.now + self.link
        number, _ = min(there, key=lambda pair: max(pair[1].due, arrival) + cost / pair[1].speed)
        self.paths[microbatch].append(number)
        self._send("forward", microbatch, stage, number)

    def _send(self, way: Way, microbatch: int, stage: int, number: int) -> None:
        self._expect(way, stage, number, self.now + self.link)
        if self.link:
            heapq.heappush(self.events, (self.now + self.link, ARRIVES, microbatch, way, stage, number))
        else:
            self._take(way, microbatch, stage, number)

    def _leave(self, stage: int, number: int) -> None:
        """A member goes. What it computes and what waits for it is lost; what is elsewhere, when it comes back here."""
        member = self.stages[stage][number]
        own = [*member.forward, *member.backward, *([] if member.running is None else [member.running])]
        member.away, member.running, member.due = True, None, 0.0
        member.forward.clear()
        member.backward.clear()
        member.holds.clear()
        for microbatch in own:
            self._lose(microbatch)

    def _return(self, stage: int, number: int) -> None:
        self.stages[stage][number].away = False
        while self.waiting[stage]:
            self._go_on(self.waiting[stage].popleft(), stage)

    def _lose(self, microbatch: int) -> None:
        """Nobody goes on with a microbatch: its text is drawn again."""
        for stage, number in enumerate(self.paths[microbatch]):
            self.stages[stage][number].holds.discard(microbatch)
        self.again.append(self.texts[microbatch])

    def _cost(self, way: Way, stage: int) -> float:
        return COST["backward" if stage == self.last else way]


def schedule(
    speeds: Sequence[Sequence[float]], microbatches: int, link: float = 0.0, absences: Sequence[Absence] = ()
) -> list[Pass]:
    """All passes of a round of `microbatches` in the order in which they end. `speeds` are those of each stage's
    members; `link` is the time that a frame takes. With one member a stage it is a pipeline that is never drained.

    Raises:
        ValueError: a stage has no member, or a speed is not positive.
    """
    if not all(speeds) or not all(speed > 0 and math.isfinite(speed) for stage in speeds for speed in stage):
        raise ValueError("each stage of a pool needs members, and each member a positive speed")
    passes = sum(COST.values()) * len(speeds) * len(speeds[0]) / sum(speeds[0])
    links = 2 * link * (len(speeds) - 1)
    in_flight = AHEAD * len(speeds) * len(speeds[0]) * (1 + links / passes)
    share = in_flight / sum(speeds[0])
    stages = [[VirtualMember(speed, max(1, round(share * speed))) for speed in members] for members in speeds]
    return VirtualPool(stages, microbatches, link, waiting=[deque() for _ in stages]).play(absences)


def absences(speeds: Sequence[Sequence[float]], microbatches: int, often: float, seed: Sequence[int]) -> list[Absence]:
    """Each member goes away `often` times in a round, on the average and by chance, for a tenth of the round each
    time."""
    chance = np.random.default_rng(seed)
    slowest = min(sum(members) for members in speeds)
    whole = microbatches * sum(COST.values()) / slowest
    found = []
    for stage, members in enumerate(speeds):
        for member in range(len(members)):
            back = 0.0
            for begins in sorted(chance.uniform(0, whole, chance.poisson(often))):
                if begins >= back:
                    back = float(begins) + AWAY * whole
                    found.append(Absence(stage, member, float(begins), back))
    return found
