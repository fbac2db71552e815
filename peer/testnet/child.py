"""One process of a testnet: its command line, how it lives, and how it ended, in words."""

import asyncio
import os
import signal
import socket
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Literal

from peer.process import INTERRUPTED, LINE_BYTES
from peer.testnet.swarm import BOOTSTRAP, Swarm
from peer.testnet.testnet_options import TestnetOptions
from protocol.errors import HetpeerError, LostMemberError, ResourceError, UnreachableError
from protocol.events.activity import Failed
from protocol.net.tasks import Children, first_of

LAST_WORDS_SECONDS = 2.0
"""The seconds for reading what an ended process wrote last; a child of its own may hold the pipe open longer."""

CONSEQUENCES = (UnreachableError.exit_code, LostMemberError.exit_code)
"""The exit codes of a process that fails because another one has gone."""

STOPPED = (0, INTERRUPTED)
"""The exit codes of a process that SIGTERM or SIGINT has asked to leave: in order, so only an unfinished run gives it
away."""

LOG_LINES = 8

STOP_SECONDS = 10.0
KILL_SECONDS = 5.0

Fate = Literal["killed", "left"]


class TestnetError(HetpeerError):
    """A process died, or the run was no success."""

    __test__ = False


def arguments(
    name: str, swarm: Swarm, options: TestnetOptions, directory: Path, listen: str, ticket: str, evaluate: bool
) -> list[str]:
    """The arguments of `hetpeer` for the process `name`; `evaluate`: an observer beside the bootstrap node does."""
    if name == BOOTSTRAP:
        data = ["--data", str(options.data)] if options.data else []
        more = ["--audit", "--revoke"] if options.audit else ["--evaluate"] if evaluate else ["--no-keep-model"]
        return ["bootstrap", str(directory / "run.toml"), "--listen", listen, *data, *more]
    common = ["--memory", options.memory]
    common += ["--device", options.device, "--threads", "1"]
    if options.device == "cpu":
        common += ["--precision", "fp32"]  # as in the lab, whatever the CPU is good at
    if name in swarm.stages:
        return ["join", ticket, "--stage", str(swarm.stages[name]), "--priority", "normal", *common]
    return ["replica", ticket, *common]


def own_options(folder: Path) -> list[str]:
    """The options by which a process keeps its files in `folder`, prints its events, and ends with this one."""
    return ["--dir", str(folder), "--json", "--until-stdin-closes"]


async def spawn(command: Sequence[str], folder: Path, errors: IO[bytes]) -> asyncio.subprocess.Process:
    """Start a process with a folder of its own; what it logs goes to `errors`."""
    return await asyncio.create_subprocess_exec(
        *command,
        *own_options(folder),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=errors,
        limit=LINE_BYTES,
        start_new_session=True,  # the terminal's Ctrl-C is for the testnet, which stops its children
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


def two_free_ports() -> int:
    """The first of two neighbouring ports on loopback that are free now.

    Raises:
        ResourceError: there are none.
    """
    for _ in range(100):
        with socket.socket() as one, socket.socket() as other, suppress(OSError, OverflowError):
            one.bind(("127.0.0.1", 0))
            port = int(one.getsockname()[1])
            other.bind(("127.0.0.1", port + 1))
            return port
    raise ResourceError("no two neighbouring ports are free on 127.0.0.1")


@dataclass(slots=True, eq=False)
class Child:
    """One process of the testnet. Chaos started it if it is `late`. `fate` is what chaos did to it, `returns` whether
    it will be started again."""

    name: str
    process: asyncio.subprocess.Process
    log: Path
    failed: Failed | None = None
    finished: bool = False
    fate: Fate | None = None
    returns: bool = False
    late: bool = False
    serving: asyncio.Event = field(default_factory=asyncio.Event)
    listening: asyncio.Task[None] | None = None

    async def wait_until_ended(self) -> None:
        """Wait for its end, and until its last words have been heard."""
        await self.process.wait()
        if self.listening is not None:
            await asyncio.wait((self.listening,), timeout=LAST_WORDS_SECONDS)

    async def wait_until_serving(self) -> bool:
        """Wait until it serves; False: it has ended instead."""
        await first_of(self.serving.wait(), self.wait_until_ended())
        return self.serving.is_set()

    @property
    def running(self) -> bool:
        """Whether the process has not ended."""
        return self.process.returncode is None

    @property
    def succeeded(self) -> bool:
        """Whether the process saw the last round and then ended well."""
        return self.finished and self.process.returncode == 0

    @property
    def ended_as_meant(self) -> bool:
        """Whether chaos ended it: killed, or gone in order when told to leave."""
        return self.fate == "killed" or (self.fate == "left" and self.process.returncode in STOPPED)

    def obituary(self) -> str:
        """The end of the process, in words."""
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

    def send(self, number: signal.Signals, to_its_own: bool) -> bool:
        """A signal to it alone, or to it and all its own, of whose group it is the leader; False: it has ended."""
        if not self.running:
            return False
        with suppress(ProcessLookupError):
            (os.killpg if to_its_own else os.kill)(self.process.pid, number)
        return True


async def stop(children: Iterable[Child]) -> None:
    """Close every child's standard input; those that linger are terminated, then killed with all their own."""
    children = list(children)
    for child in children:
        if child.process.stdin is not None:
            child.process.stdin.close()
    for end, seconds in ((None, STOP_SECONDS), (signal.SIGTERM, KILL_SECONDS), (signal.SIGKILL, KILL_SECONDS)):
        still_running = [child for child in children if child.running]
        if not still_running:
            return
        for child in still_running:
            if end is not None:  # SIGTERM is for the child, which then ends its own
                child.send(end, to_its_own=end is signal.SIGKILL)
        async with Children() as ending:
            await asyncio.wait([ending.spawn(child.process.wait()) for child in still_running], timeout=seconds)


def all_finished(children: Iterable[Child]) -> bool:
    """Whether at least one has seen the last round, and nobody runs or is missing whom chaos has not ended."""
    children = list(children)
    over = all(not child.running and (child.succeeded or child.fate) for child in children)
    return over and any(child.succeeded for child in children)


def all_gone(children: Iterable[Child]) -> bool:
    """Whether chaos has ended everybody, for good."""
    return all(child.fate and not child.returns and not child.running for child in children)


def ended_from_outside(child: Child) -> bool:
    """Whether a signal ended it that chaos did not send, at once or in order: no other process's death does that."""
    code = child.process.returncode
    ended = code is not None and not child.succeeded and (code < 0 or code in STOPPED)
    return ended and not child.ended_as_meant


def to_blame(ended: Sequence[Child]) -> Child:
    """Return the process at fault of those that ended, in this order: one that was ended from outside, else one that
    failed by itself, else the first; never one that chaos ended, if there is another."""
    from_outside = [child for child in ended if ended_from_outside(child)]
    left = [child for child in ended if not child.ended_as_meant and not child.succeeded]
    by_itself = [child for child in left if child.process.returncode not in CONSEQUENCES]
    return [*from_outside, *by_itself, *left, *ended][0]


def found_the_run_over(child: Child) -> bool:
    """Whether chaos started it, and it ended well without the last round: the others had gone by then."""
    return child.late and child.process.returncode == 0 and not child.succeeded


def came_too_late(trainees: Sequence[Child]) -> bool:
    """Whether all that still run were started by chaos, and came when the others had finished and gone."""
    return any(child.succeeded for child in trainees) and all(child.late for child in trainees if child.running)
