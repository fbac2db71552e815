"""A volunteer that becomes slow after some good rounds, in virtual time, and the inner steps that its group and a
datacenter beside it keep."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from peer.compute.replica import WholeReplica
from peer.swarm.group.inner_step import InnerStep
from protocol.events.activity import GroupFormed, Joined, RoundDone, StepDone
from tests.world.owners import Owner
from tests.world.test_cases import MakeWorld, join, told
from tests.world.world import World

STAGES, STEPS, GOOD_ROUNDS = 3, 8, 7

VOLUNTEER = 10.0
"""How many times slower than the world's usual ones the volunteers' machines are: a step takes 3.5 s."""

CENTER_SECONDS = 3.0
"""An inner step of the datacenter, whose machine does all else quickly."""

MEASURED_SECONDS = 600.0
"""The time in which steps are counted, from when the slow one begins to be slow."""

Nap = Callable[[int], float]
"""Seconds that the slow one sleeps before each pass of its n-th slow step, from 0."""


def always(step: int) -> float:
    """A step of two microbatches takes 14 s more."""
    return 3.5


@dataclass(slots=True)
class Slowed:
    """The volunteer of `stage` that comes first, and that is slow from the round after `GOOD_ROUNDS` on. Unless it is
    `honest`, what it tells of its passes says nothing of its naps."""

    stage: int
    nap: Nap
    honest: bool
    trainer: Any = None
    steps: set[tuple[int, int]] = field(default_factory=set)
    """The steps in which it was slow: round, and step in it."""

    def seconds(self, step: InnerStep) -> float:
        """How long it sleeps before a pass of this step."""
        trainer = step.pipeline.trainer
        if trainer.index == self.stage and self.trainer is None:
            self.trainer = trainer
        if trainer is not self.trainer or step.round <= GOOD_ROUNDS:
            return 0.0
        self.steps.add((step.round, step.step))
        return self.nap(len(self.steps) - 1)


@contextmanager
def slowed(stage: int, nap: Nap = always, honest: bool = True) -> Iterator[Slowed]:
    """In the block, the first volunteer of a stage becomes slow."""
    slow, forward, backward = Slowed(stage, nap, honest), InnerStep._forward, InnerStep._backward

    async def sleep(step: InnerStep, microbatch: int) -> None:
        if seconds := slow.seconds(step):
            await asyncio.sleep(seconds)
            if slow.honest:
                number, spent = step.number(microbatch), step.seconds
                spent[number] = spent.get(number, 0.0) + seconds

    async def slow_forward(self: InnerStep, microbatch: int) -> None:
        await sleep(self, microbatch)
        await forward(self, microbatch)

    async def slow_backward(self: InnerStep, microbatch: int) -> None:
        await sleep(self, microbatch)
        await backward(self, microbatch)

    with mock.patch.multiple(InnerStep, _forward=slow_forward, _backward=slow_backward):
        yield slow


@dataclass(frozen=True, slots=True)
class Beside:
    """A run beside a slow member, `MEASURED_SECONDS` after it began to be slow: the shares of their earlier steps a
    second that its group and the datacenter have kept since."""

    run: World
    group: list[Owner]
    spares: list[Owner]
    center: Owner
    slow_since: float
    group_kept: float
    center_kept: float

    @property
    def slow_ids(self) -> list[str]:
        """The peer ids of the group, by stage."""
        return [event.peer_id for owner in self.group for event in told(owner, Joined)]


def beside_a_slow_member(world: MakeWorld, stage: int, spares: tuple[int, ...], seconds: float) -> Beside:
    """Play a run with a group whose volunteer of `stage` becomes slow (in a `slowed` block), a datacenter, and free
    volunteers of the stages `spares`."""
    run = world(
        model={"d": 16, "layers": STAGES, "heads": 2, "kv_heads": 2, "ffn": 24, "vocabulary": 300, "context": 16},
        replicas={"groups": 1, "stages": STAGES, "datacenters": 1, "compression": 4},
        inner={"steps": STEPS},
        outer={"rounds": 900},
    )
    inner_step = WholeReplica.inner_step

    def slower(self: WholeReplica, *of: Any) -> float:
        run.loop.spend(CENTER_SECONDS)
        return inner_step(self, *of)

    with mock.patch.object(WholeReplica, "inner_step", slower):
        group = [join(run, f"stage-{each}", "volunteer", each) for each in range(STAGES)]
        center = join(run, "center", "datacenter")
        assert run.run_until(lambda: all(told(each, GroupFormed) for each in group), 60)
        free = [join(run, f"spare-{each}-{number}", "volunteer", each) for number, each in enumerate(spares)]
        for owner in (*group, *free):
            owner.machine.speed = VOLUNTEER
        assert run.run_until(lambda: bool(told(center, RoundDone, lambda event: event.round == 1)), 60)
        begun = run.loop.now
        assert run.run_until(lambda: bool(told(center, RoundDone, lambda event: event.round == GOOD_ROUNDS)), 1000)
        since = run.loop.now
        run.run_for(seconds)
    before, after = (begun, since), (since, run.loop.now)
    kept = [rate(owners, *after) / rate(owners, *before) for owners in ([*group, *free], [center])]
    return Beside(run, group, free, center, since, *kept)


def rate(owners: list[Owner], begins: float, ends: float) -> float:
    """The inner steps of a replica a second between two moments: those that any of its members has taken."""
    taken = {
        (event.round, event.step)
        for owner in owners
        for process in owner.runs
        for at, event in process.events
        if isinstance(event, StepDone) and begins <= at < ends
    }
    return len(taken) / (ends - begins)
