"""The crowds of a testnet, as it sees them: their processes, whom they attack, and what the honest hold meanwhile."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from peer.telemetry.run_report import Report
from peer.testnet.child import Child, TestnetError, stop
from peer.testnet.processes import OnEvent
from protocol.events.activity import Joined, Progress
from protocol.events.event import Event
from protocol.events.lines import to_line
from protocol.wording import size
from tests.chaos.attackers import ATTACK, ATTACKER
from tests.chaos.faults import Crowd
from tests.chaos.toll import CrowdEvidence, HostileSighting, MemorySample

SAMPLE_SECONDS = 1.0

MOST_GROWTH = 6 << 30
"""Bytes that the honest may gain together while crowds attack, before the testnet gives up: the machine's owner wants
to go on using it."""


@dataclass(slots=True)
class Crowds:
    """The crowds of a run. `start` starts a process by its name and command, and passes its events on; `now` is the
    testnet's clock; a crowd is `expected` or not."""

    start: Callable[[str, Sequence[str], OnEvent], Awaitable[Child]]
    directory: Path
    report: Report
    now: Callable[[], float]
    ticket: Callable[[], str]
    expected: bool = False
    dashboard: str = ""
    """Its URL."""
    held: list[MemorySample] = field(default_factory=list)
    met: list[HostileSighting] = field(default_factory=list)
    told: dict[int, dict[str, object]] = field(default_factory=dict)

    @property
    def witnessed(self) -> CrowdEvidence:
        """All that was seen of the crowds, and of the honest meanwhile."""
        return CrowdEvidence(self.held, self.met, self.told)

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
        command = [sys.executable, "-m", "tests.chaos.attackers.hostile_process", *asked]
        child = await self.start(folder.name, command, self.handle)
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

    def handle(self, hostile: Child, event: Event) -> None:
        """Follow an event of a crowd's process."""
        keep_event(hostile, event)
        if isinstance(event, Joined):
            number = int(hostile.name.removeprefix(f"{ATTACKER}-"))
            self.met.append(HostileSighting(number, self.now(), event.peer_id, event.role))

    async def measure(self, honest: Callable[[], Mapping[str, Child]]) -> None:
        """Follow the memory of the honest, for as long as the run lasts.

        Raises:
            TestnetError: they hold more than this machine should bear.
        """
        first: dict[str, int] = {}
        while self.expected:
            growth = 0
            for child in honest().values():
                own, children = _resident(child.process.pid)
                if not own:
                    continue  # it has ended
                for process, held in ((child.name, own), (f"{child.name}, its children", children)):
                    self.held.append(MemorySample(self.now(), process, held))
                    growth += held - first.setdefault(process, held)
            if self.met and growth > MOST_GROWTH:
                raise TestnetError(f"the honest processes have grown by {size(growth)}: the attack has won")
            await asyncio.sleep(SAMPLE_SECONDS)


def keep_event(hostile: Child, event: Event) -> None:
    """Keep an event of a hostile process beside its log: it is no part of the report. Note when the attack begins."""
    with hostile.log.with_suffix(".jsonl").open("a") as file:
        file.write(to_line(event) + "\n")
    if isinstance(event, Joined) or (isinstance(event, Progress) and event.doing.startswith(ATTACK)):
        hostile.serving.set()


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
