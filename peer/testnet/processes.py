"""The processes of a testnet: real ones, watched until the last round or the first death that chaos did not cause; and
the log of every event with its time.

Children stop when their standard input closes, so even a killed testnet leaves no process behind.
"""

import asyncio
import json
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TextIO

import psutil

from peer.process import heard
from peer.telemetry.damage import Timed
from peer.telemetry.events import Evaluated, Event, Failed, Finished, GroupFormed, Joined, Serving
from peer.telemetry.run_report import Report, strict
from peer.telemetry.terminal import TestnetScreen
from peer.testnet.attackers.crowds import Crowds
from peer.testnet.child import (
    Child,
    Fate,
    TestnetError,
    all_finished,
    all_gone,
    arguments,
    attacker_command,
    came_too_late,
    ended_from_outside,
    found_the_run_over,
    spawn,
    to_blame,
    two_free_ports,
)
from peer.testnet.child import stop as stop_all
from peer.testnet.faults import CONTRIBUTING, Attacker, ChaosItem, Crowd, ends_a_datacenter
from peer.testnet.injection import CHAOS, Injection
from peer.testnet.namespaces import Namespaces
from peer.testnet.peaks import duties, memory_for, watch_peaks
from peer.testnet.swarm import ATTACKER, BOOTSTRAP, Swarm, is_hostile
from peer.testnet.testnet_options import TestnetOptions
from protocol.net.tasks import first_of

BLAME_SECONDS = 8.0
"""Who dies takes its neighbours along within milliseconds; in this time all of them have ended."""

LAST_EVALUATION_SECONDS = 60.0

STILL_SECONDS = 300.0
"""Under chaos: a swarm in which no process says anything for so long will not recover."""

STRAGGLER_SECONDS = 75.0
"""The same once a process has finished, and the others are about to: they serve on for up to a minute where one, an
attacker, never does."""

NAMESPACE_PORT = 7700


@dataclass(slots=True)
class EventLog:
    """`events.jsonl`: {"at": seconds since the start, "process": …, "event": "StepDone", its fields}, one a line."""

    file: TextIO
    began: float = field(default_factory=time.monotonic)
    entries: list[Timed] = field(default_factory=list)

    @staticmethod
    def open(path: Path) -> "EventLog":
        """Begin a log at `path`."""
        return EventLog(path.open("w", buffering=1, encoding="utf-8"))

    def take(self, process: str, event: Event) -> Timed:
        """Keep and write what a process said."""
        entry = Timed(round(self.now(), 4), process, event)
        self.entries.append(entry)
        head = {"at": entry.seconds, "process": process, "event": event.name}
        self.file.write(json.dumps(strict(head | asdict(event)), allow_nan=False) + "\n")
        return entry

    def now(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.began

    def close(self) -> None:
        """Close the file."""
        self.file.close()


@dataclass(slots=True)
class Testnet:
    """The processes, and what they have said. `children` has all that were ever started, the latest of a name last."""

    options: TestnetOptions
    directory: Path
    report: Report
    screen: TestnetScreen
    log: EventLog
    faults: tuple[ChaosItem, ...] = ()
    namespaces: Namespaces | None = None
    command: tuple[str, ...] = (sys.executable, "-m", "peer.cli")
    children: list[Child] = field(default_factory=list)
    ticket: str = ""
    swarm: Swarm = field(init=False)
    tasks: asyncio.TaskGroup = field(default_factory=asyncio.TaskGroup)
    ended: asyncio.Queue[Child] = field(default_factory=asyncio.Queue)
    last_evaluation: asyncio.Event = field(default_factory=asyncio.Event)
    all_joined: asyncio.Event = field(default_factory=asyncio.Event)
    injection: Injection = field(init=False)
    crowds: Crowds = field(init=False)
    listen: str = "127.0.0.1:0"
    evaluate: bool = False

    __test__ = False

    def __post_init__(self) -> None:
        self.swarm = Swarm.of(self.options.groups, self.options.stages, self.options.datacenters)
        self.crowds = Crowds(self.start, self.directory, self.report, self.log.now, lambda: self.ticket)
        self.crowds.expected = any(isinstance(item, Crowd) for item in self.faults)
        tell = partial(self.take, CHAOS)
        self.injection = Injection(self.faults, self.swarm, self, self.namespaces, tell)

    async def run(self, stop: asyncio.Event) -> None:
        """From the first process to the last round; nothing is left running.

        Raises:
            TestnetError: a process died.
        """
        async with self.tasks:
            try:
                await first_of(self._watch(), stop.wait())
            finally:
                await stop_all(self.children)

    async def _watch(self) -> None:
        """Start everybody, and wait until all have finished or one died."""
        options = self.options
        self.evaluate = options.audit or not options.datacenters or ends_a_datacenter(self.faults)
        free = int(psutil.virtual_memory().available)
        memory = memory_for(self.report.manifest, self.swarm, options.memory, self.evaluate, free)
        self.options = options = replace(options, memory=memory)
        if self.namespaces is not None:
            self.listen = f"{await self.namespaces.add(BOOTSTRAP)}:{NAMESPACE_PORT}"
        elif self.faults:
            self.listen = f"127.0.0.1:{two_free_ports()}"  # it may have to be found there again
        await self._wait_until_serving(await self.start(BOOTSTRAP))
        company = self.swarm.company(1) if await self._attack(among_the_first=True) else []
        for name in company:
            await self.start(name)
        if company:
            await self._wait_until_serving(self._latest()[company[0]])
        for name in [each for each in self.swarm.names[1:] if each not in company]:
            await self.start(name)
        await self._attack(among_the_first=False)
        async with asyncio.TaskGroup() as tasks:
            injecting = tasks.create_task(self.injection.run())
            measuring = tasks.create_task(self.crowds.measure(self._honest))
            planned = duties(self.swarm, options.memory)
            looking = tasks.create_task(
                watch_peaks(self.report.manifest, planned, self._running, self.report.note_peak)
            )
            await self._wait_until_finished()
            injecting.cancel()
            measuring.cancel()
            looking.cancel()
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_EVALUATION_SECONDS):
                await self.last_evaluation.wait()

    async def start(self, name: str, command: Sequence[str] = ()) -> Child:
        """Start a process, or start it again with the folder it had; the attacker has a command of its own."""
        folder = self.directory / name.replace(", ", "-").replace(" ", "-")
        log = self.directory / f"{folder.name}.log"
        where = () if self.namespaces is None else await self.namespaces.enter(name)
        said = self.listen, self.ticket, self.evaluate, self.crowds.expected
        asked = command or (*self.command, *arguments(name, self.swarm, self.options, self.directory, *said))
        with log.open("ab" if name in self._latest() else "wb") as errors:
            process = await spawn([*where, *asked], folder, errors)
        child = Child(name, process, log)
        self.children.append(child)
        child.listening = self.tasks.create_task(self._listen(child))
        if not is_hostile(name):
            self.tasks.create_task(self._await_end(child))
        return child

    async def _attack(self, among_the_first: bool) -> bool:
        """Start the attacker, if there is one: a volunteer before the others, who are not to take its seat, a
        datacenter after them, so that it is not the one that evaluates. Whether one has been started."""
        started = False
        for item in self.faults:
            if isinstance(item, Attacker) and among_the_first == (item.kind not in CONTRIBUTING):
                if not among_the_first:
                    await self.all_joined.wait()
                await self._wait_until_serving(await self.start(ATTACKER, attacker_command(item.kind, self.ticket)))
                self.screen.add(ATTACKER)
                self.injection.attacks(item)
                started = True
        return started

    async def start_again(self, name: str) -> None:
        """Start a process that was killed. The bootstrap node serves before this returns: others need it."""
        child = await self.start(name)
        if name == BOOTSTRAP:
            await self._wait_until_serving(child)

    async def join(self, stage: int | None) -> str:
        """Start one process more, a volunteer of `stage` or a datacenter (None); its name."""
        name = self.swarm.add(stage)
        self.screen.add(name)
        await self.start(name)
        return name

    def attacking(self, crowd: Crowd, number: int) -> AbstractAsyncContextManager[None]:
        """A crowd, from its first attack until it has gone."""
        return self.crowds.attacking(crowd, number)

    def signal(self, name: str, number: signal.Signals, fate: Fate | None = None, returns: bool = False) -> bool:
        """Send a process and all its own a signal, or, where it shall leave, to it alone. False: it has ended, or been
        killed before."""
        child = self._latest()[name]
        sent = self.running(name) and child.send(number, to_its_own=fate != "left")
        if sent and fate is not None:
            child.fate, child.returns = fate, returns
        return sent

    def running(self, name: str) -> bool:
        """Whether the latest process of this name has not ended. Who was killed has, even before the kernel says so."""
        child = self._latest()[name]
        return child.running and child.fate != "killed"

    def _running(self) -> list[tuple[str, int]]:
        """The processes that run now, by name and number."""
        return [(name, each.process.pid) for name, each in self._latest().items() if self.running(name)]

    def _latest(self) -> dict[str, Child]:
        return {child.name: child for child in self.children}

    async def _listen(self, child: Child) -> None:
        assert child.process.stdout is not None
        async for event in heard(child.process.stdout):
            (self.crowds.overhear if is_hostile(child.name) else self._hear)(child, event)

    async def _await_end(self, child: Child) -> None:
        await child.wait_until_ended()
        self.ended.put_nowait(child)

    def _hear(self, child: Child, event: Event) -> None:
        self.take(child.name, event)
        match event:
            case Serving(ticket):
                self.ticket = self.ticket or ticket
                self.crowds.dashboard = event.dashboard
                child.serving.set()
            case GroupFormed():
                child.serving.set()
            case Evaluated(round) if round == self.options.rounds:
                self.last_evaluation.set()
            case Joined() if self.report.joined.keys() >= {*self.swarm.names[1:]}:
                self.all_joined.set()
            case Finished():
                child.finished = True
            case Failed():
                child.failed = event

    def take(self, process: str, event: Event) -> None:
        """Tell everybody what a process said, or chaos did."""
        entry = self.log.take(process, event)
        self.report.take(process, event)
        self.screen.take(process, event, entry.seconds)
        self.swarm.take(process, event)
        self.injection.look()

    async def _wait_until_serving(self, child: Child) -> None:
        """Raises TestnetError where it ends instead."""
        if not await child.wait_until_serving() and not child.ended_as_meant:
            raise TestnetError(child.obituary())

    async def _wait_until_finished(self) -> None:
        """Wait until all that chaos has not ended have finished.

        Raises:
            TestnetError: one ended in another way, none is left, or no more comes of it.
        """
        while not all_finished(self._trainees()):
            if all_gone(self._trainees()):
                raise TestnetError("chaos has left nobody to train")
            patience = None  # for how long a silence may last; only chaos makes that a question
            if self.faults:
                finished = any(child.succeeded for child in self._trainees())
                patience = STRAGGLER_SECONDS if finished else STILL_SECONDS
            child = await self._next_end(patience)
            if child is None and came_too_late(self._trainees(), self.children):
                return
            if child is None:
                self._give_up(patience or 0.0)
            elif found_the_run_over(child, self.children):
                child.fate = "left"
            elif not child.ended_as_meant and (child.name == BOOTSTRAP or not child.succeeded):
                raise TestnetError((await self._culprit(child)).obituary())

    @property
    def alive(self) -> frozenset[str]:
        """Who saw the last round: the bootstrap node does by its observer."""
        ended_well = [child for child in self._trainees() if child.succeeded]
        nodes = [child for child in self._latest().values() if child.name == BOOTSTRAP and child.finished]
        return frozenset(child.name for child in [*ended_well, *nodes])

    def _trainees(self) -> list[Child]:
        return [child for child in self._honest() if child.name != BOOTSTRAP]

    def _honest(self) -> list[Child]:
        return [child for child in self._latest().values() if not is_hostile(child.name)]

    def _give_up(self, patience: float) -> None:
        """Raises TestnetError where all have been silent for so long, and no fault is still to end."""
        if self.injection.under_way or self.log.now() - self.log.entries[-1].seconds < patience:
            return
        waiting = "; ".join(child.name for child in self._trainees() if child.running)
        raise TestnetError(f"no process has said anything for {patience:.1f} s; unfinished: {waiting}")

    async def _next_end(self, seconds: float | None) -> Child | None:
        """The next process that has ended; None after so long without one."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                return await self.ended.get()
        return None

    async def _culprit(self, first: Child) -> Child:
        """Who is at fault: whoever a signal ended that chaos did not send, else one that failed by itself, else the
        first to end.

        A neighbour may end before the one that took it along, so this waits for more to end; not for the bootstrap
        node alone, which serves on.
        """
        ended = [first]
        deadline = asyncio.get_running_loop().time() + BLAME_SECONDS
        while any(child.running for child in self._trainees()) and not any(map(ended_from_outside, ended)):
            child = await self._next_end(max(0.0, deadline - asyncio.get_running_loop().time()))
            if child is None:
                break
            ended.append(child)
        return to_blame(ended)
