"""A swarm of real processes, each on a host of its own: an operator's node and volunteers, and what they say."""

import asyncio
import random
import signal
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.shaped.hosts import Hosts
from peer.process import heard
from peer.telemetry.events import Failed, Finished, Injected, Joined, RoundDone, Serving
from peer.testnet.child import Child, stop
from peer.testnet.event_log import EventLog, Timed
from peer.testnet.testnet_options import to_toml
from tests.reference.forks import spawn
from tests.reference.processes import TEXT

NODE, CHAOS = "node", "chaos"
PORT = 7700
END_SECONDS = 60.0
"""Behind the first volunteer that has finished; who was killed late may find the run over."""


class SwarmError(RuntimeError):
    """A process ended that should not have."""


@dataclass(frozen=True, slots=True)
class Volunteer:
    """One volunteer. `seconds`: of a microbatch's passes, in which it waits; None: it computes. The link's rate is in
    Mb/s."""

    name: str
    stage: int
    megabits: float
    seconds: float | None


@dataclass(slots=True)
class Swarm:
    """The processes of a run, and the log of what they say. The node is on the host behind the volunteers' ones."""

    on: Hosts
    folder: Path
    tables: dict[str, dict[str, Any]]
    volunteers: list[Volunteer]
    log: EventLog
    tasks: asyncio.TaskGroup = field(default_factory=asyncio.TaskGroup)
    latest: dict[str, Child] = field(default_factory=dict)
    serving: asyncio.Future[str] = field(init=False)
    ended: asyncio.Queue[Child] = field(default_factory=asyncio.Queue)
    done: int = 0
    """The last round that somebody has done."""

    async def run(self, rounds: int, kills: float, again: float, chance: random.Random, most_seconds: float) -> None:
        """To the end. With `kills` somebody is killed so often, by seconds, and starts again `again` later.

        Raises:
            SwarmError: a process ended by itself before the run did, or the run takes longer than `most_seconds`.
        """
        self.serving = asyncio.get_running_loop().create_future()
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "run.toml").write_text(to_toml(self.tables))
        (self.folder / "text.txt").write_text(8 * TEXT)
        try:
            async with asyncio.timeout(most_seconds), self.tasks:
                try:
                    await self._start(NODE, len(self.volunteers), self._node())
                    ticket = await self.serving
                    for number in range(len(self.volunteers)):
                        await self._join(number, ticket)
                    killing = self.tasks.create_task(self._kill(rounds, kills, again, chance, ticket))
                    await self._until_over()
                    killing.cancel()
                finally:
                    await stop(self.latest.values())
        except TimeoutError:
            raise SwarmError(f"the run did not end within {most_seconds:.0f} s") from None

    def _node(self) -> list[str]:
        where = ["--listen", f"{self.on.address(len(self.volunteers))}:{PORT}", "--data", str(self.folder / "text.txt")]
        return [sys.executable, "-m", "peer.cli", "bootstrap", str(self.folder / "run.toml"), *where, "--no-keep-model"]

    async def _join(self, number: int, ticket: str) -> None:
        one = self.volunteers[number]
        module = ["peer.cli"] if one.seconds is None else ["benchmarks.shaped.waiting", str(one.seconds)]
        own = ["--device", "cpu", "--threads", "1", "--precision", "fp32", "--priority", "normal"]
        stage = ["--stage", str(one.stage)]
        await self._start(one.name, number, [sys.executable, "-m", *module, "join", ticket, *stage, *own])

    async def _start(self, name: str, host: int, command: list[str]) -> None:
        log = self.folder / f"{name}.log"
        with log.open("ab") as errors:
            process = await spawn([*self.on.enter(host), *command], self.folder / name, errors)
        child = self.latest[name] = Child(name, process, log)
        child.listening = self.tasks.create_task(self._listen(child))
        self.tasks.create_task(self._await_end(child))

    async def _listen(self, child: Child) -> None:
        assert child.process.stdout is not None
        async for event in heard(child.process.stdout):
            self.log.take(child.name, event)
            match event:
                case Serving(ticket) if not self.serving.done():
                    self.serving.set_result(ticket)
                case RoundDone(round):
                    self.done = max(self.done, round)
                case Finished():
                    child.finished = True
                case Failed():
                    child.failed = event
                case _:
                    pass

    async def _await_end(self, child: Child) -> None:
        await child.wait_until_ended()
        self.ended.put_nowait(child)
        if child.name == NODE and not self.serving.done():
            self.serving.set_exception(SwarmError(child.obituary()))

    async def _until_over(self) -> None:
        """Wait until all volunteers have ended, each as it should."""
        while any(child.running for name, child in self.latest.items() if name != NODE):
            over = any(child.finished for child in self.latest.values())
            try:
                async with asyncio.timeout(END_SECONDS if over else None):
                    child = await self.ended.get()
            except TimeoutError:
                return
            if child.name == NODE or not (child.ended_as_meant or child.process.returncode == 0):
                raise SwarmError(child.obituary())

    async def _kill(self, rounds: int, kills: float, again: float, chance: random.Random, ticket: str) -> None:
        """Kill somebody every so often, as long as the run lasts and nobody else is away."""
        number = 0
        due = time.monotonic()
        while kills:
            due += kills
            await asyncio.sleep(due - time.monotonic())
            if self.done >= rounds:
                return
            there = [each for each, one in enumerate(self.volunteers) if self.latest[one.name].running]
            joined = {entry.process for entry in self.log.entries if isinstance(entry.event, Joined)}
            if len(there) < len(self.volunteers) or len(joined) < len(self.volunteers):
                continue
            number += 1
            self.tasks.create_task(self._kill_one(number, chance.choice(there), again, ticket))

    async def _kill_one(self, number: int, whom: int, again: float, ticket: str) -> None:
        name = self.volunteers[whom].name
        child = self.latest[name]
        child.fate, child.returns = "killed", True
        child.send(signal.SIGKILL, to_its_own=True)
        self.log.take(CHAOS, Injected(number, f"kill:{name}", "killed", [name], True))
        await asyncio.sleep(again)
        await self._join(whom, ticket)
        self.log.take(CHAOS, Injected(number, f"kill:{name}", "started again", [name], False))


def play(
    on: Hosts,
    folder: Path,
    tables: dict[str, dict[str, Any]],
    volunteers: list[Volunteer],
    rounds: int,
    kills: float,
    again: float,
    chance: random.Random,
    most_seconds: float,
) -> list[Timed]:
    """One run to its end, and what everybody said, with seconds since its start."""
    with ExitStack() as stack:
        folder.mkdir(parents=True, exist_ok=True)
        log = EventLog.open(folder / "events.jsonl")
        stack.callback(log.close)
        for number, each in enumerate(volunteers):
            on.limit(each.megabits, 1, first=number)
        swarm = Swarm(on, folder, tables, volunteers, log)
        asyncio.run(swarm.run(rounds, kills, again, chance, most_seconds))
        return log.entries
