"""A testnet with attackers in it, and with each process in a network namespace of its own where links are disturbed."""

import asyncio
import sys
from collections.abc import Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any

from peer.testnet.child import Child
from peer.testnet.child import stop as stop_all
from peer.testnet.injection import CHAOS
from peer.testnet.processes import OnEvent, Testnet
from peer.testnet.swarm import BOOTSTRAP
from protocol.events.activity import Joined, Serving
from protocol.events.event import Event
from tests.chaos.attackers import ATTACKER
from tests.chaos.attackers.crowds import Crowds, keep_event
from tests.chaos.faults import CONTRIBUTING, Attacker, ChaosItem, Crowd, Random
from tests.chaos.injection import ChaosInjection
from tests.chaos.namespaces import Namespaces
from tests.reference.forks import spawn

NAMESPACE_PORT = 7700

ATTACKED_STAGE = 1
"""The stage of an attacker that is a volunteer."""


@dataclass
class AttackedTestnet(Testnet):
    """The processes, and those that attack them: `hostile` has all of these that were ever started."""

    faults: Sequence[ChaosItem] = ()
    namespaces: Namespaces | None = None
    hostile: list[Child] = field(default_factory=list)
    crowds: Crowds = field(init=False)
    all_joined: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        super().__post_init__()
        plans = [item for item in self.faults if isinstance(item, Random)]
        scheduled = [item for item in self.faults if not isinstance(item, Random | Attacker)]
        tell = partial(self.take, CHAOS)
        self.injection = ChaosInjection(scheduled, self.swarm, self, tell, plans=plans, namespaces=self.namespaces)
        expected = any(isinstance(item, Crowd) for item in self.faults)
        report = self.screen.report
        self.crowds = Crowds(self.start_hostile, self.directory, report, self.log.now, lambda: self.ticket, expected)

    async def stop(self) -> None:
        """End all processes."""
        await stop_all([*self.children, *self.hostile])

    async def address(self) -> str:
        """Choose where the bootstrap node listens."""
        if self.namespaces is None:
            return await super().address()
        return f"{await self.namespaces.add(BOOTSTRAP)}:{NAMESPACE_PORT}"

    async def command_of(self, name: str) -> list[str]:
        """The command that starts a process, in its namespace if it has one."""
        dashboard = ["--dashboard", "0"] if name == BOOTSTRAP and self.crowds.expected else []
        return [*await self._inside(name), *await super().command_of(name), *dashboard]

    async def _inside(self, name: str) -> tuple[str, ...]:
        return () if self.namespaces is None else await self.namespaces.enter(name)

    async def spawn(self, command: Sequence[str], folder: Path, errors: IO[bytes]) -> Any:
        """Start a process that keeps its files in `folder`: a fork, which begins sooner, where there can be one."""
        return await spawn(command, folder, errors)

    async def start_hostile(self, name: str, command: Sequence[str], on_event: OnEvent) -> Child:
        """Start an attacker, or a crowd's process."""
        child = await self.begin(name, [*await self._inside(name), *command], on_event)
        self.hostile.append(child)
        return child

    async def start_trainees(self) -> None:
        """Start all processes but the bootstrap node. One that attacks a pipeline starts first, with the rest of its
        group, so that nobody else has its seat; one that contributes starts last, so that it is not the one that
        evaluates."""
        attacker = next((item for item in self.faults if isinstance(item, Attacker)), None)
        if attacker is None or attacker.kind in CONTRIBUTING:
            await super().start_trainees()
            if attacker is not None:
                await self.all_joined.wait()
                await self._attack(attacker)
            return
        await self._attack(attacker)
        stages = self.swarm.stages.items()
        group = [name for name, stage in stages if stage != ATTACKED_STAGE][: self.options.stages - 1]
        for name in group:
            await self.start(name)
        await self.wait_until_serving(self.children[-len(group)])
        for name in self.swarm.names[1:]:
            if name not in group:
                await self.start(name)

    async def _attack(self, attacker: Attacker) -> None:
        command = [sys.executable, "-m", "tests.chaos.attackers.attacker", attacker.kind, self.ticket]
        await self.wait_until_serving(await self.start_hostile(ATTACKER, command, keep_event))
        self.screen.add(ATTACKER)
        self.injection.record(attacker).begun("joined", [ATTACKER])

    def attacking(self, crowd: Crowd, number: int) -> AbstractAsyncContextManager[None]:
        """A crowd, from its first attack until it has gone."""
        return self.crowds.attacking(crowd, number)

    def beside(self) -> list[Coroutine[Any, Any, None]]:
        """The work that goes on while the swarm trains: faults, and measuring memory."""
        return [*super().beside(), self.crowds.measure(self.latest)]

    def handle(self, child: Child, event: Event) -> None:
        """Follow an event of a process."""
        super().handle(child, event)
        match event:
            case Serving():
                self.crowds.dashboard = event.dashboard
            case Joined() if self.screen.report.joined.keys() >= {*self.swarm.names[1:]}:
                self.all_joined.set()
            case _:
                pass
