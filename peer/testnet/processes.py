"""The processes of a testnet: real ones on loopback, watched until the last round or the first death.

Children stop when their standard input closes, so even a killed testnet leaves no process behind.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from peer.events import Evaluated, Event, Failed, Finished, Serving, from_line
from peer.process import INTERRUPTED
from peer.report import Report
from peer.screen import TestnetScreen
from peer.testnet.options import TestnetOptions
from protocol.errors import HetpeerError, LostMemberError, UnreachableError

LINE_BYTES = 2**20
"""The longest line a child prints is an event with a few digests."""

BLAME_SECONDS = 8.0
"""Who dies takes its neighbours along within milliseconds; in this time all of them have ended."""

LAST_WORDS_SECONDS = 2.0
"""For reading what an ended process wrote last; a child of its own may hold the pipe open longer."""

CONSEQUENCES = (UnreachableError.exit_code, LostMemberError.exit_code)
"""What a process fails with because another one has gone."""

STOPPED = (0, INTERRUPTED)
"""How a process ends that SIGTERM or SIGINT has asked to leave: in order, so only an unfinished run gives it away."""

LAST_EVALUATION_SECONDS = 60.0
STOP_SECONDS = 10.0
KILL_SECONDS = 5.0
LOG_LINES = 8


class TestnetError(HetpeerError):
    """A process died, or the run was no success."""

    __test__ = False


@dataclass(slots=True, eq=False)
class Child:
    """One process of the testnet."""

    name: str
    process: asyncio.subprocess.Process
    log: Path
    failed: Failed | None = None
    finished: bool = False
    listening: asyncio.Task[None] | None = None

    async def wait_until_ended(self) -> None:
        """Wait for its end, and until its last words have been heard."""
        await self.process.wait()
        if self.listening is not None:
            await asyncio.wait((self.listening,), timeout=LAST_WORDS_SECONDS)

    @property
    def succeeded(self) -> bool:
        """Whether it saw the last round and then ended well."""
        return self.finished and self.process.returncode == 0

    @property
    def ended_from_outside(self) -> bool:
        """Whether a signal ended it, at once or in order: no other process's death does that."""
        code = self.process.returncode
        return code is not None and not self.succeeded and (code < 0 or code in STOPPED)

    def obituary(self) -> str:
        """How it ended, in words."""
        code = self.process.returncode
        who = f"{self.name} (process {self.process.pid})"
        if code is not None and code < 0:
            return f"{who} was killed by {signal.Signals(-code).name}"
        if self.failed is not None:
            return f"{who} failed: {self.failed.message}"
        if code in STOPPED:
            return f"{who} was stopped before the last round"
        tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-LOG_LINES:])
        return f"{who} ended early with exit code {code}" + (f"; it last said:\n{tail}" if tail else "")


@dataclass(slots=True)
class Testnet:
    """The processes, and what they have said."""

    options: TestnetOptions
    directory: Path
    report: Report
    screen: TestnetScreen
    children: list[Child] = field(default_factory=list)
    ticket: asyncio.Future[str] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    last_evaluation: asyncio.Event = field(default_factory=asyncio.Event)
    command: tuple[str, ...] = (sys.executable, "-m", "peer.cli")

    __test__ = False

    async def run(self, stop: asyncio.Event) -> None:
        """From the first process to the last round; nothing is left running.

        Raises:
            TestnetError: a process died.
        """
        async with asyncio.TaskGroup() as tasks:
            stopping = tasks.create_task(stop.wait())
            try:
                await self._watch(tasks, stopping)
            finally:
                stopping.cancel()
                await self._stop()

    async def _watch(self, tasks: asyncio.TaskGroup, stopping: asyncio.Task[Any]) -> None:
        """Start everybody, and wait until all have finished, one died, or the user stops it."""
        bootstrap = await self._start_bootstrap(tasks)
        if not await self._served(bootstrap, stopping):
            return
        trainees = [await self._start(tasks, *each) for each in self._trainees(self.ticket.result())]
        if await self._all_finished(trainees, bootstrap, stopping):
            with suppress(TimeoutError):
                await asyncio.wait_for(self.last_evaluation.wait(), LAST_EVALUATION_SECONDS)

    def names(self) -> list[str]:
        """All processes."""
        return ["bootstrap", *(name for name, _ in self._trainees(""))]

    def _trainees(self, ticket: str) -> Iterable[tuple[str, list[str]]]:
        common = ["--device", "cpu", "--threads", "1"]
        for group in range(1, self.options.groups + 1):
            for stage in range(self.options.stages):
                yield f"volunteer {group}, stage {stage}", ["join", ticket, "--stage", str(stage), *common]
        for number in range(1, self.options.datacenters + 1):
            yield f"datacenter {number}", ["replica", ticket, *common]

    async def _start_bootstrap(self, tasks: asyncio.TaskGroup) -> Child:
        data = ["--data", str(self.options.data)] if self.options.data else []
        evaluate = [] if self.options.datacenters else ["--evaluate"]
        arguments = ["bootstrap", str(self.directory / "run.toml"), "--listen", "127.0.0.1:0", *data, *evaluate]
        return await self._start(tasks, "bootstrap", arguments)

    async def _start(self, tasks: asyncio.TaskGroup, name: str, arguments: list[str]) -> Child:
        folder = self.directory / name.replace(", ", "-").replace(" ", "-")
        log = self.directory / f"{folder.name}.log"
        with log.open("wb") as errors:
            process = await asyncio.create_subprocess_exec(
                *self.command,
                *arguments,
                "--dir",
                str(folder),
                "--json",
                "--until-stdin-closes",
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                limit=LINE_BYTES,
                start_new_session=True,  # the terminal's Ctrl-C is for the testnet, which stops its children
                env=os.environ | {"OMP_NUM_THREADS": "1"},
            )
        child = Child(name, process, log)
        self.children.append(child)
        child.listening = tasks.create_task(self._listen(child))
        return child

    async def _listen(self, child: Child) -> None:
        assert child.process.stdout is not None
        async for line in child.process.stdout:
            with suppress(ValueError):
                self._hear(child, from_line(line.decode()))

    def _hear(self, child: Child, event: Event) -> None:
        self.report.take(child.name, event)
        self.screen.take(child.name, event)
        match event:
            case Serving(ticket) if not self.ticket.done():
                self.ticket.set_result(ticket)
            case Evaluated(round) if round == self.options.rounds:
                self.last_evaluation.set()
            case Finished():
                child.finished = True
            case Failed():
                child.failed = event
            case _:
                pass

    async def _served(self, bootstrap: Child, stopping: asyncio.Task[Any]) -> bool:
        """Wait for the ticket; False after a stop.

        Raises:
            TestnetError: the bootstrap node ended instead.
        """
        ended = asyncio.ensure_future(bootstrap.wait_until_ended())
        await asyncio.wait((self.ticket, ended, stopping), return_when=asyncio.FIRST_COMPLETED)
        if ended.done() and not self.ticket.done():
            raise TestnetError(bootstrap.obituary())
        ended.cancel()
        return self.ticket.done()

    async def _all_finished(self, trainees: list[Child], bootstrap: Child, stopping: asyncio.Task[Any]) -> bool:
        """Wait until all have finished; False after a stop.

        Raises:
            TestnetError: one ended in another way.
        """
        running = {asyncio.ensure_future(child.wait_until_ended()): child for child in [*trainees, bootstrap]}
        finished: set[str] = set()
        while len(finished) < len(trainees):
            done, _ = await asyncio.wait((*running, stopping), return_when=asyncio.FIRST_COMPLETED)
            if stopping in done:
                return False
            for each in done:
                child = running.pop(each)
                if child is bootstrap or not child.succeeded:
                    raise TestnetError((await self._culprit(child, running, bootstrap)).obituary())
                finished.add(child.name)
        for each in running:
            each.cancel()
        return True

    async def _culprit(self, first: Child, running: dict[asyncio.Task[None], Child], bootstrap: Child) -> Child:
        """Who is at fault: whoever a signal ended, else one that failed by itself, else the first to end.

        A neighbour may end before the one that took it along, so this waits for more to end; not for the bootstrap
        node alone, which serves on.
        """
        ended = [first]
        deadline = asyncio.get_running_loop().time() + BLAME_SECONDS
        while {*running.values()} - {bootstrap} and not any(child.ended_from_outside for child in ended):
            left = deadline - asyncio.get_running_loop().time()
            done, _ = await asyncio.wait(running, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                break
            ended += [running.pop(each) for each in done]
        from_outside = [child for child in ended if child.ended_from_outside]
        by_itself = [child for child in ended if not child.succeeded and child.process.returncode not in CONSEQUENCES]
        return [*from_outside, *by_itself, first][0]

    async def _stop(self) -> None:
        """Close every child's standard input; those that linger are terminated, then killed with all their own."""
        for child in self.children:
            if child.process.stdin is not None:
                child.process.stdin.close()
        for end, seconds in ((None, STOP_SECONDS), (signal.SIGTERM, KILL_SECONDS), (signal.SIGKILL, KILL_SECONDS)):
            left = [child for child in self.children if child.process.returncode is None]
            if not left:
                return
            for child in left:
                with suppress(ProcessLookupError):
                    _send(child.process.pid, end)
            await asyncio.wait([asyncio.ensure_future(child.process.wait()) for child in left], timeout=seconds)


def _send(pid: int, end: signal.Signals | None) -> None:
    """SIGTERM is for the child, which then ends its own; SIGKILL is for its whole group, of which it is the leader."""
    if end is signal.SIGKILL:
        os.killpg(pid, end)
    elif end is not None:
        os.kill(pid, end)
