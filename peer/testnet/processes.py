"""The processes of a testnet: real ones, watched until the last round or the first death that chaos did not cause.

Children stop when their standard input closes, so even a killed testnet leaves no process behind.
"""

import asyncio
import signal
import sys
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import IO, Any

import psutil
import torch

from peer.compute.capacity import free_memory
from peer.process import read_events
from peer.telemetry.terminal import TestnetScreen
from peer.testnet.child import (
    Child,
    Fate,
    TestnetError,
    all_finished,
    all_gone,
    arguments,
    came_too_late,
    ended_from_outside,
    found_the_run_over,
    spawn,
    to_blame,
    two_free_ports,
)
from peer.testnet.child import stop as stop_all
from peer.testnet.event_log import EventLog
from peer.testnet.faults import Fault, ends_a_datacenter
from peer.testnet.injection import CHAOS, Injection
from peer.testnet.peaks import duties, memory_for, watch_peaks
from peer.testnet.swarm import BOOTSTRAP, Swarm
from peer.testnet.testnet_options import TestnetOptions
from protocol.events.activity import Evaluated, Failed, Finished, GroupFormed, Serving
from protocol.events.event import Event
from protocol.net.tasks import first_of, wait_at_most

BLAME_SECONDS = 8.0
"""Time in which all neighbours of a process that died have ended: it takes them along within milliseconds."""

LAST_EVALUATION_SECONDS = 60.0

STILL_SECONDS = 300.0
"""Under chaos: a swarm in which no process has emitted an event for this long will not recover."""

STRAGGLER_SECONDS = 75.0
"""The same once a process has finished. The others are about to: they serve on for up to a minute where one of them
never does."""

OnEvent = Callable[[Child, Event], None]


@dataclass(slots=True)
class Testnet:
    """The processes, and their events. `children` has all that were ever started, the latest of a name last."""

    options: TestnetOptions
    directory: Path
    screen: TestnetScreen
    log: EventLog
    faults: Sequence[Fault] = ()
    command: tuple[str, ...] = (sys.executable, "-m", "peer.cli")
    children: list[Child] = field(default_factory=list)
    ticket: str = ""
    swarm: Swarm = field(init=False)
    tasks: asyncio.TaskGroup = field(default_factory=asyncio.TaskGroup)
    ended: asyncio.Queue[Child] = field(default_factory=asyncio.Queue)
    last_evaluation: asyncio.Event = field(default_factory=asyncio.Event)
    injection: Injection = field(init=False)
    listen: str = ""
    evaluate: bool = False

    __test__ = False

    def __post_init__(self) -> None:
        self.swarm = Swarm.of(self.options.groups, self.options.stages, self.options.datacenters)
        self.injection = Injection(self.faults, self.swarm, self, partial(self.take, CHAOS))

    async def run(self, stop: asyncio.Event) -> None:
        """Run from the first process to the last round; nothing is left running.

        Raises:
            TestnetError: a process died.
        """
        async with self.tasks:
            try:
                await first_of(self._watch(), stop.wait())
            finally:
                await self.stop()

    async def stop(self) -> None:
        """End all processes."""
        await stop_all(self.children)

    async def _watch(self) -> None:
        """Start everybody, and wait until all have finished or one died."""
        options = self.options
        self.evaluate = options.audit or not options.datacenters or ends_a_datacenter(self.faults)
        free = int(psutil.virtual_memory().available)
        card = free_memory(torch.device(options.device)) if options.device == "cuda" else None
        memory = memory_for(self.screen.report.manifest, self.swarm, options.memory, self.evaluate, free, card)
        self.options = replace(options, memory=memory)
        self.listen = await self.address()
        await self.wait_until_serving(await self.start(BOOTSTRAP))
        await self.start_trainees()
        async with asyncio.TaskGroup() as tasks:
            beside = [tasks.create_task(work) for work in self.beside()]
            await self._wait_until_finished()
            for task in beside:
                task.cancel()
        await wait_at_most(LAST_EVALUATION_SECONDS, self.last_evaluation.wait())

    async def address(self) -> str:
        """Choose where the bootstrap node listens. After a fault it may have to be found there again."""
        return f"127.0.0.1:{two_free_ports() if self.faults else 0}"

    async def start_trainees(self) -> None:
        """Start all processes but the bootstrap node."""
        for name in self.swarm.names[1:]:
            await self.start(name)

    def beside(self) -> list[Coroutine[Any, Any, None]]:
        """The work that goes on while the swarm trains: faults, and measuring memory."""
        report, planned = self.screen.report, duties(self.swarm, self.options.memory)
        host_alone = self.options.device == "cuda"
        watching = watch_peaks(report.manifest, planned, self._running, report.note_peak, host_alone)
        return [self.injection.run(), watching]

    async def start(self, name: str) -> Child:
        """Start a process, or start it again with the folder it had."""
        child = await self.begin(name, await self.command_of(name), self.handle)
        self.children.append(child)
        self.tasks.create_task(self._await_end(child))
        return child

    async def command_of(self, name: str) -> list[str]:
        """The command that starts a process."""
        given = self.listen, self.ticket, self.evaluate
        return [*self.command, *arguments(name, self.swarm, self.options, self.directory, *given)]

    async def begin(self, name: str, command: Sequence[str], on_event: OnEvent) -> Child:
        """Start a process by its command; its events go to `on_event`."""
        folder = self.directory / name.replace(", ", "-").replace(" ", "-")
        log = self.directory / f"{folder.name}.log"
        with log.open("ab" if name in self.latest() else "wb") as errors:
            process = await self.spawn(command, folder, errors)
        child = Child(name, process, log)
        child.listening = self.tasks.create_task(self._listen(child, on_event))
        return child

    async def spawn(self, command: Sequence[str], folder: Path, errors: IO[bytes]) -> asyncio.subprocess.Process:
        """Start a process that keeps its files in `folder`."""
        return await spawn(command, folder, errors)

    async def start_again(self, name: str) -> None:
        """Start a process that was killed. The bootstrap node serves before this returns: others need it."""
        child = await self.start(name)
        child.late = True
        if name == BOOTSTRAP:
            await self.wait_until_serving(child)

    async def join(self, stage: int | None) -> str:
        """Start one process more, a volunteer of `stage` or a datacenter (None); its name."""
        name = self.swarm.add(stage)
        self.screen.add(name)
        child = await self.start(name)
        child.late = True
        return name

    def signal(self, name: str, number: signal.Signals, fate: Fate | None = None, returns: bool = False) -> bool:
        """Send a process and all its own a signal, or, where it shall leave, to it alone. False: it has ended, or been
        killed before."""
        child = self.latest()[name]
        sent = self.running(name) and child.send(number, to_its_own=fate != "left")
        if sent and fate is not None:
            child.fate, child.returns = fate, returns
        return sent

    def running(self, name: str) -> bool:
        """Whether the latest process of this name has not ended. Who was killed has, even before the kernel says so."""
        child = self.latest()[name]
        return child.running and child.fate != "killed"

    def _running(self) -> list[tuple[str, int]]:
        """The processes that run now, by name and number."""
        return [(name, child.process.pid) for name, child in self.latest().items() if self.running(name)]

    def latest(self) -> dict[str, Child]:
        """The latest process of each name."""
        return {child.name: child for child in self.children}

    async def _listen(self, child: Child, on_event: OnEvent) -> None:
        assert child.process.stdout is not None
        async for event in read_events(child.process.stdout):
            on_event(child, event)

    async def _await_end(self, child: Child) -> None:
        await child.wait_until_ended()
        self.ended.put_nowait(child)

    def handle(self, child: Child, event: Event) -> None:
        """Follow an event of a process."""
        self.take(child.name, event)
        match event:
            case Serving(ticket):
                self.ticket = self.ticket or ticket
                child.serving.set()
            case GroupFormed():
                child.serving.set()
            case Evaluated(round) if round == self.options.rounds:
                self.last_evaluation.set()
            case Finished():
                child.finished = True
            case Failed():
                child.failed = event

    def take(self, process: str, event: Event) -> None:
        """Pass on an event of a process, or of chaos, to all that follow them."""
        entry = self.log.take(process, event)
        self.screen.report.take(process, event)
        self.screen.take(process, event, entry.seconds)
        self.swarm.take(process, event)
        self.injection.look()

    async def wait_until_serving(self, child: Child) -> None:
        """Wait until a process serves.

        Raises:
            TestnetError: it has ended instead.
        """
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
            if child is None and came_too_late(self._trainees()):
                return
            if child is None:
                self._give_up(patience or 0.0)
            elif found_the_run_over(child):
                child.fate = "left"
            elif not child.ended_as_meant and (child.name == BOOTSTRAP or not child.succeeded):
                raise TestnetError((await self._culprit(child)).obituary())

    @property
    def alive(self) -> frozenset[str]:
        """The processes that saw the last round: the bootstrap node does by its observer."""
        ended_well = [child for child in self._trainees() if child.succeeded]
        nodes = [child for child in self.latest().values() if child.name == BOOTSTRAP and child.finished]
        return frozenset(child.name for child in [*ended_well, *nodes])

    def _trainees(self) -> list[Child]:
        return [child for child in self.latest().values() if child.name != BOOTSTRAP]

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
        """Return the process at fault: one that a signal ended that chaos did not send, else one that failed by itself,
        else the first to end.

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
