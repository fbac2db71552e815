"""The crowds of a testnet, as it sees them: their processes, whom they attack, and what the honest hold meanwhile."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from peer.telemetry.events import Event, Joined
from peer.telemetry.run_report import Report
from peer.telemetry.toll import Held, Met, Witnessed
from peer.testnet.child import Child, TestnetError, overhear, stop
from peer.testnet.faults import Crowd
from peer.testnet.swarm import ATTACKER
from protocol.wording import size

SAMPLE_SECONDS = 1.0

MOST_GROWTH = 6 << 30
"""Bytes that the honest may gain together while crowds attack, before the testnet gives up: the machine's owner wants
to go on using it."""


@dataclass(slots=True)
class Crowds:
    """`start` starts a process of the testnet by its name and command, `now` is the testnet's clock, and a crowd is
    `expected` or not."""

    start: Callable[[str, Sequence[str]], Awaitable[Child]]
    directory: Path
    report: Report
    now: Callable[[], float]
    ticket: Callable[[], str]
    expected: bool = False
    dashboard: str = ""
    """Its URL."""
    held: list[Held] = field(default_factory=list)
    met: list[Met] = field(default_factory=list)
    told: dict[int, dict[str, object]] = field(default_factory=dict)

    @property
    def witnessed(self) -> Witnessed:
        """All that was seen of the crowds, and of the honest meanwhile."""
        return Witnessed(self.held, self.met, self.told)

    @asynccontextmanager
    async def attacking(self, crowd: Crowd, number: int) -> AsyncIterator[None]:
        """Run a crowd from its first attack until it has gone.

        Raises:
            TestnetError: it does not come about.
        """
        folder = self.directory / f"{ATTACKER}-{number}"
        folder.mkdir(parents=True, exist_ok=True)
        targets = folder / "targets.json"
        peers = [[each.peer_id, each.address] for each in self.report.joined.values()]
        targets.write_text(json.dumps({"peers": peers, "dashboard": urlsplit(self.dashboard).netloc}))
        asked = [crowd.kind, str(crowd.names), str(crowd.seconds), self.ticket(), str(targets)]
        child = await self.start(folder.name, [sys.executable, "-m", "peer.testnet.attackers.hostile_process", *asked])
        try:
            if not await child.wait_until_serving():
                raise TestnetError(child.obituary())
            yield
        finally:
            try:
                await stop([child])
            finally:  # also where the run ends meanwhile, and with it this task
                with suppress(OSError, ValueError):
                    self.told[number] = json.loads((folder / "outcomes.json").read_text())

    def overhear(self, hostile: Child, event: Event) -> None:
        """Take up what an attacker or a crowd's process says."""
        overhear(hostile, event)
        number = hostile.name.removeprefix(f"{ATTACKER}-")
        if isinstance(event, Joined) and number.isdecimal():
            self.met.append(Met(int(number), self.now(), event.peer_id, event.role))

    async def measure(self, honest: Callable[[], Iterable[Child]]) -> None:
        """Follow the memory of the honest, for as long as the run lasts.

        Raises:
            TestnetError: they hold more than this machine should bear.
        """
        first: dict[str, int] = {}
        while self.expected:
            growth = 0
            for child in honest():
                own, children = _resident(child.process.pid)
                if not own:
                    continue  # it has ended
                for process, held in ((child.name, own), (f"{child.name}, its children", children)):
                    self.held.append(Held(self.now(), process, held))
                    growth += held - first.setdefault(process, held)
            if self.met and growth > MOST_GROWTH:
                raise TestnetError(f"the honest processes have grown by {size(growth)}: the attack has won")
            await asyncio.sleep(SAMPLE_SECONDS)


def _resident(pid: int) -> tuple[int, int]:
    """Bytes in memory of a process, and of its children."""
    try:
        process = psutil.Process(pid)
        own, children = process.memory_info().rss, 0
        for child in process.children(recursive=True):
            children += child.memory_info().rss
    except psutil.Error:
        return 0, 0
    return own, children
