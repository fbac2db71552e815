"""Chaos of the harness: beside processes, links and crowds; and random faults, drawn from a seed."""

import asyncio
import random
from collections.abc import Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from peer.testnet.faults import After, Fault, Kill, Pause, Scheduled, Target
from peer.testnet.injection import FaultRecord, Injection, Processes
from peer.testnet.swarm import BOOTSTRAP, Swarm
from tests.chaos.faults import Crowd, Partition, Random, RandomKind, Slow
from tests.chaos.namespaces import Namespaces

BACK_SECONDS = 1.0
PAUSE_SECONDS = 3.0
LINK_SECONDS = 5.0
SLOW_RATE = "1mbit"
"""Of random faults: when a killed process is started again, how long others last, and what a slow link carries."""


class AttackedProcesses(Processes, Protocol):
    """The processes of a testnet, as far as the harness needs them."""

    def running(self, name: str) -> bool:
        """Whether it has not ended."""

    def attacking(self, crowd: Crowd, number: int) -> AbstractAsyncContextManager[None]:
        """A crowd, from its first attack until it has gone."""


@dataclass
class ChaosInjection(Injection):
    """The faults of a run in the harness; `plans` are for random ones. `namespaces` are needed to disturb links."""

    processes: AttackedProcesses
    plans: Sequence[Random] = ()
    namespaces: Namespaces | None = None

    async def run(self) -> None:
        """Do everything at its time, until cancelled; then everything is undone that ends."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(super().run())
            for plan in self.plans:
                tasks.create_task(self._do_drawn(plan, tasks))

    async def _do_drawn(self, plan: Random, tasks: asyncio.TaskGroup) -> None:
        stages = 1 + max(self.swarm.stages.values())
        for fault in draw(plan, self.swarm.groups, stages):
            await self.until_due(fault.when)
            tasks.create_task(self.do(fault))

    async def apply(self, fault: Scheduled, record: FaultRecord) -> None:
        """Do a fault now, and undo it at its end."""
        match fault:
            case Partition():
                await self._partition(fault, record)
            case Slow():
                await self._slow(fault, record)
            case Crowd():
                await self._crowd(fault, record)
            case _:
                await super().apply(fault, record)

    async def _partition(self, fault: Partition, record: FaultRecord) -> None:
        assert self.namespaces is not None
        one, other = sides(self.swarm, fault)
        if not all(any(map(self.processes.running, side)) for side in (one, other)):
            record.nothing("not applied", one + other, "all of one side are already dead")
            return
        await self.namespaces.cut(record.number, one, other)
        try:
            record.begun("cut off", one + other, f"{'; '.join(one)} from {'; '.join(other)}")
            if fault.seconds is None:
                await self.until(lambda: self.swarm.ended >= fault.last)
            else:
                await asyncio.sleep(fault.seconds)
        finally:
            await self.namespaces.heal(record.number)
            record.ended("healed", one + other)

    async def _slow(self, fault: Slow, record: FaultRecord) -> None:
        assert self.namespaces is not None
        meant = self.swarm.processes(fault.target)
        names = [name for name in meant if self.processes.running(name)]
        if not names:
            record.nothing("not applied", meant, "already dead" if meant else "there is none now")
            return
        try:
            for name in names:
                await self.namespaces.limit(name, fault.rate)
            record.begun(f"slowed to {fault.rate}", names)
            await asyncio.sleep(fault.seconds)
        finally:
            for name in names:
                await self.namespaces.unlimit(name)
            record.ended("quick again", names)

    async def _crowd(self, fault: Crowd, record: FaultRecord) -> None:
        honest = [name for name in self.swarm.names if self.processes.running(name)]
        async with self.processes.attacking(fault, record.number):
            record.begun("attacked", honest, f"all, by {fault.names} names")
            try:
                await asyncio.sleep(fault.seconds)
            finally:
                record.ended("over", honest)


def sides(swarm: Swarm, partition: Partition) -> tuple[list[str], list[str]]:
    """The two sides of a partition. Halves are every other replica; the bootstrap node is in the first."""
    if partition.sides is not None:
        one, other = ([name for target in side for name in swarm.processes(target)] for side in partition.sides)
        return list(dict.fromkeys(one)), [name for name in dict.fromkeys(other) if name not in one]
    replicas = [swarm.group(number) for number in range(swarm.groups)] + [[name] for name in swarm.datacenters]
    first = [BOOTSTRAP, *(name for replica in replicas[::2] for name in replica)]
    return first, [name for name in swarm.names if name not in first]


def draw(plan: Random, groups: int, stages: int) -> Iterator[Fault | Partition | Slow]:
    """Faults without end, in the order of their moments, on average `plan.per_minute` of them a minute."""
    chance = random.Random(plan.seed)
    seconds = 0.0
    while True:
        seconds += chance.expovariate(plan.per_minute / 60)
        kind = plan.kinds[chance.randrange(len(plan.kinds))]
        target = Target("volunteer", chance.randrange(groups), chance.randrange(stages))
        yield _fault(kind, target, After(round(seconds, 1)))


def _fault(kind: RandomKind, target: Target, when: After) -> Fault | Partition | Slow:
    match kind:
        case "kill":
            return Kill(target, when, BACK_SECONDS)
        case "pause":
            return Pause(target, when, PAUSE_SECONDS)
        case "slow":
            return Slow(target, SLOW_RATE, when, LINK_SECONDS)
        case "partition":
            return Partition(None, when, seconds=LINK_SECONDS)
