"""Chaos: faults of a run are done at their moments and undone at their ends; random faults are drawn from a seed."""

import asyncio
import itertools
import random
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Protocol

from peer.telemetry.events import Injected
from peer.testnet.child import Fate
from peer.testnet.faults import (
    After,
    Attacker,
    ChaosItem,
    Crowd,
    Fault,
    Join,
    Kill,
    Leave,
    Moment,
    Partition,
    Pause,
    Random,
    RandomKind,
    Slow,
    Target,
    When,
)
from peer.testnet.namespaces import Namespaces
from peer.testnet.swarm import ATTACKER, Swarm
from protocol.net.tasks import Notifier

CHAOS = "chaos"
"""Who says `Injected`, where processes have names."""

BACK_SECONDS = 1.0
PAUSE_SECONDS = 3.0
LINK_SECONDS = 5.0
SLOW_RATE = "1mbit"
"""Of random faults: when a killed process is started again, how long others last, and what a slow link carries."""


class Processes(Protocol):
    """What chaos does to processes, by name."""

    def signal(self, name: str, number: signal.Signals, fate: Fate | None = None, returns: bool = False) -> bool:
        """Send a signal; False: it was dead already."""

    def running(self, name: str) -> bool:
        """Whether it has not ended."""

    async def start_again(self, name: str) -> None:
        """Start a killed process with the same folder."""

    async def join(self, stage: int | None) -> str:
        """Start one process more; its name."""

    def attacking(self, crowd: Crowd, number: int) -> AbstractAsyncContextManager[None]:
        """A crowd, from its first attack until it has gone."""


@dataclass(slots=True)
class Injection:
    """The faults of a run. `tell` hears each as it is done."""

    items: tuple[ChaosItem, ...]
    swarm: Swarm
    processes: Processes
    namespaces: Namespaces | None
    tell: Callable[[Injected], None]
    numbers: "itertools.count[int]" = field(default_factory=itertools.count)
    news: Notifier = field(default_factory=Notifier)
    began: float | None = None
    under_way: int = 0

    def look(self) -> None:
        """Look whether a fault is due, after something was said."""
        if self.began is None and self.swarm.has_reached(Moment(1)):
            self.began = asyncio.get_running_loop().time()
        self.news.ring()

    async def run(self) -> None:
        """Do everything at its time, until cancelled; then everything is undone that ends."""
        async with asyncio.TaskGroup() as tasks:
            for item in self.items:
                if isinstance(item, Attacker):
                    continue  # it has been there from the start
                tasks.create_task(self._do_drawn(item, tasks) if isinstance(item, Random) else self._do(item))

    def attacks(self, attacker: Attacker) -> None:
        """Tell that an attacker has joined."""
        FaultRecord(next(self.numbers), attacker, self.tell).begun("joined", [ATTACKER])

    async def _do_drawn(self, plan: Random, tasks: asyncio.TaskGroup) -> None:
        stages = 1 + max(self.swarm.stages.values())
        for fault in draw(plan, self.swarm.groups, stages):
            await self._until_due(fault.when)
            tasks.create_task(self._do(fault))

    async def _do(self, fault: Fault) -> None:
        record = FaultRecord(next(self.numbers), fault, self.tell)
        try:
            await self._until_due(fault.when)
        except asyncio.CancelledError:
            record.nothing("not done", [], "the run was over before")
            raise
        self.under_way += 1
        try:
            await self._apply(fault, record)
        finally:
            self.under_way -= 1

    async def _apply(self, fault: Fault, record: "FaultRecord") -> None:
        match fault:
            case Kill():
                await self._kill(fault, record)
            case Pause():
                await self._pause(fault, record)
            case Leave(target):
                self._signal(self.swarm.processes(target), signal.SIGINT, record, "told to leave", "left")
            case Join(stage):
                record.begun("joined", [await self.processes.join(stage)])
            case Partition():
                await self._partition(fault, record)
            case Slow():
                await self._slow(fault, record)
            case Crowd():
                await self._crowd(fault, record)

    async def _until_due(self, when: When) -> None:
        if isinstance(when, Moment):
            await self._until(lambda: self.swarm.has_reached(when))
        else:
            await self._until(lambda: self.began is not None)
            assert self.began is not None
            await asyncio.sleep(self.began + when.seconds - asyncio.get_running_loop().time())

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await self.news.wait()

    def _signal(
        self,
        names: list[str],
        number: signal.Signals,
        record: "FaultRecord",
        action: str,
        fate: Fate | None = None,
        returns: bool = False,
    ) -> list[str]:
        """Send everybody a signal; who got it. The dead are recorded too."""
        hit = [name for name in names if self.processes.signal(name, number, fate, returns)]
        if hit:
            record.begun(action, hit)
        if dead := [name for name in names if name not in hit]:
            record.nothing("not applied", dead, "already dead")
        if not names:
            record.nothing("not applied", [], "there is none now")
        return hit

    async def _kill(self, fault: Kill, record: "FaultRecord") -> None:
        names = self.swarm.processes(fault.target)
        hit = self._signal(names, signal.SIGKILL, record, "killed", "killed", returns=fault.back is not None)
        if fault.back is not None and hit:
            await asyncio.sleep(fault.back)
            for name in hit:
                await self.processes.start_again(name)
            record.ended("started again", hit)

    async def _pause(self, fault: Pause, record: "FaultRecord") -> None:
        hit = self._signal(self.swarm.processes(fault.target), signal.SIGSTOP, record, "paused")
        try:
            await asyncio.sleep(fault.seconds if hit else 0)
        finally:
            resumed = [name for name in hit if self.processes.signal(name, signal.SIGCONT)]
            if resumed:
                record.ended("resumed", resumed)

    async def _partition(self, fault: Partition, record: "FaultRecord") -> None:
        assert self.namespaces is not None
        one, other = self.swarm.sides(fault)
        if not all(any(map(self.processes.running, side)) for side in (one, other)):
            record.nothing("not applied", one + other, "all of one side are already dead")
            return
        await self.namespaces.cut(record.number, one, other)
        try:
            record.begun("cut off", one + other, f"{'; '.join(one)} from {'; '.join(other)}")
            if fault.seconds is None:
                await self._until(lambda: self.swarm.ended >= fault.last)
            else:
                await asyncio.sleep(fault.seconds)
        finally:
            await self.namespaces.heal(record.number)
            record.ended("healed", one + other)

    async def _slow(self, fault: Slow, record: "FaultRecord") -> None:
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

    async def _crowd(self, fault: Crowd, record: "FaultRecord") -> None:
        honest = [name for name in self.swarm.names if self.processes.running(name)]
        async with self.processes.attacking(fault, record.number):
            record.begun("attacked", honest, f"all, by {fault.names} names")
            try:
                await asyncio.sleep(fault.seconds)
            finally:
                record.ended("over", honest)


@dataclass(frozen=True, slots=True)
class FaultRecord:
    """Tells what becomes of one fault."""

    number: int
    fault: Fault | Attacker
    tell: Callable[[Injected], None]

    def begun(self, action: str, processes: list[str], reason: str = "") -> None:
        """It is done."""
        self.tell(Injected(self.number, str(self.fault), action, processes, True, reason))

    def ended(self, action: str, processes: list[str]) -> None:
        """It is undone."""
        self.tell(Injected(self.number, str(self.fault), action, processes, False))

    def nothing(self, action: str, processes: list[str], reason: str) -> None:
        """It is not done."""
        self.tell(Injected(self.number, str(self.fault), action, processes, False, reason))


def draw(plan: Random, groups: int, stages: int) -> Iterator[Fault]:
    """Faults without end, in the order of their moments, on average `plan.per_minute` of them a minute."""
    chance = random.Random(plan.seed)
    seconds = 0.0
    while True:
        seconds += chance.expovariate(plan.per_minute / 60)
        kind = plan.kinds[chance.randrange(len(plan.kinds))]
        target = Target("volunteer", chance.randrange(groups), chance.randrange(stages))
        yield _fault(kind, target, After(round(seconds, 1)))


def _fault(kind: RandomKind, target: Target, when: After) -> Fault:
    match kind:
        case "kill":
            return Kill(target, when, BACK_SECONDS)
        case "pause":
            return Pause(target, when, PAUSE_SECONDS)
        case "slow":
            return Slow(target, SLOW_RATE, when, LINK_SECONDS)
        case "partition":
            return Partition(None, when, seconds=LINK_SECONDS)
