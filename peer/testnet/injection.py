"""Chaos: the faults of a run, done at their moments and undone at their ends."""

import asyncio
import itertools
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from peer.testnet.child import Fate
from peer.testnet.faults import Join, Kill, Leave, Moment, Pause, Scheduled, When
from peer.testnet.swarm import Swarm
from protocol.events.activity import Injected
from protocol.net.tasks import Notifier

CHAOS = "chaos"
"""The name under which `Injected` is emitted, where processes have names."""


class Processes(Protocol):
    """The processes of a testnet by name, as far as chaos needs them."""

    def signal(self, name: str, number: signal.Signals, fate: Fate | None = None, returns: bool = False) -> bool:
        """Send a signal; False: it was dead already."""

    async def start_again(self, name: str) -> None:
        """Start a killed process with the same folder."""

    async def join(self, stage: int | None) -> str:
        """Start one process more; its name."""


@dataclass(slots=True)
class Injection:
    """The faults of a run. `emit` is called with each as it is done and undone."""

    faults: Sequence[Scheduled]
    swarm: Swarm
    processes: Processes
    emit: Callable[[Injected], None]
    numbers: "itertools.count[int]" = field(default_factory=itertools.count)
    news: Notifier = field(default_factory=Notifier)
    began: float | None = None
    under_way: int = 0

    def look(self) -> None:
        """Look whether a fault is due, after an event."""
        if self.began is None and self.swarm.has_reached(Moment(1)):
            self.began = asyncio.get_running_loop().time()
        self.news.ring()

    async def run(self) -> None:
        """Do everything at its time, until cancelled; then everything is undone that ends."""
        async with asyncio.TaskGroup() as tasks:
            for fault in self.faults:
                tasks.create_task(self.do(fault))

    async def do(self, fault: Scheduled) -> None:
        """Do one fault at its moment, and undo it at its end."""
        record = self.record(fault)
        try:
            await self.until_due(fault.when)
        except asyncio.CancelledError:
            record.nothing("not done", [], "the run was over before")
            raise
        self.under_way += 1
        try:
            await self.apply(fault, record)
        finally:
            self.under_way -= 1

    def record(self, fault: object) -> "FaultRecord":
        """The record of one fault more."""
        return FaultRecord(next(self.numbers), str(fault), self.emit)

    async def apply(self, fault: Scheduled, record: "FaultRecord") -> None:
        """Do a fault now, and undo it at its end."""
        match fault:
            case Kill():
                await self._kill(fault, record)
            case Pause():
                await self._pause(fault, record)
            case Leave(target):
                self._signal(self.swarm.processes(target), signal.SIGINT, record, "told to leave", "left")
            case Join(stage):
                record.begun("joined", [await self.processes.join(stage)])

    async def until_due(self, when: When) -> None:
        """Wait for a fault's moment."""
        if isinstance(when, Moment):
            await self.until(lambda: self.swarm.has_reached(when))
        else:
            await self.until(lambda: self.began is not None)
            assert self.began is not None
            await asyncio.sleep(self.began + when.seconds - asyncio.get_running_loop().time())

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition holds after an event."""
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
        """Send a signal to all of them, and record it, also for the dead; the names of those that got it."""
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


@dataclass(frozen=True, slots=True)
class FaultRecord:
    """A fault, and the events of what becomes of it."""

    number: int
    fault: str
    emit: Callable[[Injected], None]

    def begun(self, action: str, processes: list[str], reason: str = "") -> None:
        """Emit that the fault has begun."""
        self.emit(Injected(self.number, self.fault, action, processes, True, reason))

    def ended(self, action: str, processes: list[str]) -> None:
        """Emit that the fault has ended."""
        self.emit(Injected(self.number, self.fault, action, processes, False))

    def nothing(self, action: str, processes: list[str], reason: str) -> None:
        """Emit that the fault was not possible."""
        self.emit(Injected(self.number, self.fault, action, processes, False, reason))
