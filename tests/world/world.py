"""A world: an operator's node and peers, each a process on a machine of its own, that run the product's own code.

What a person would start is started here: `serve_node`, and `run_with_pauses` with a journal. Keys, folders,
certificates, records, messages, contributions and states are real ones; folders lie in memory.
"""

import asyncio
import random
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from bootstrap.admission.admission_policy import OBSERVER_FOLDER
from bootstrap.admission.operator_lists import add_invitation
from bootstrap.genesis import create_run
from bootstrap.monitor.watch import Monitor
from bootstrap.node import Listen, as_operator, serve_node
from peer.cli.bootstrap import _become_gateway
from peer.cli.observer import keep_model
from peer.daemon import run_with_pauses
from peer.process import first_error
from peer.settings import PeerSettings
from peer.telemetry.journal import Journal
from peer.telemetry.status import EventStream
from protocol import clock
from protocol.errors import HetpeerError
from protocol.events.activity import Finished
from protocol.events.event import Event
from protocol.manifest import Manifest
from protocol.run.run_files import Descriptor
from protocol.trust.attestations import GRANTED, grant
from protocol.trust.keys import load_or_create
from protocol.trust.membership_card import Authority
from protocol.trust.ticket import Ticket
from tests.world.directory import Directory
from tests.world.disk import Disk
from tests.world.evidence import Evidence
from tests.world.loop import HOST, Task, VirtualLoop, in_host
from tests.world.network import Network
from tests.world.owners import Owner, Process, Program
from tests.world.rpc import Grid, is_of_grpc

EPOCH = 1_800_000_000.0
"""The time when every world begins, in seconds since 1970."""

DOOR = 7700

STEP_SECONDS = 0.03
"""What every call of a torch thread takes on a machine of speed 1."""

CERTIFICATE_SECONDS = 3 * 86400.0
"""The life of certificates, where a world does not say another."""


@dataclass(slots=True)
class Failure:
    """An exception that nobody was to see."""

    process: str
    error: BaseException | str


class World:
    """Everything there is, in virtual time. `folder` is empty at the beginning."""

    def __init__(
        self,
        manifest: Manifest,
        folder: Path,
        seed: int,
        files: Path,
        life: float = CERTIFICATE_SECONDS,
        keeps_model: bool = False,
    ) -> None:
        self.keeps_model = keeps_model
        self.manifest, self.folder, self.seed, self.files, self.life = manifest, folder, seed, files, life
        self.random = random.Random(seed)
        self.loop = VirtualLoop()
        self.network = Network(self.loop)
        self.grid = Grid(self.network, self.wall, self.failed)
        self.directory = Directory(self.network, self.wall)
        self.disk = Disk(self.random, self.loop.spend)
        self.evidence = Evidence(manifest)
        self.owners: dict[str, Owner] = {}
        self._invited: dict[str, Ticket] = {}
        """The tickets that make gateways of those who have them."""
        self._awaited: list[tuple[Callable[[str, Event], bool], Callable[[], object]]] = []
        """What happens when somebody tells such an event, once."""
        self.failures: list[Failure] = []
        self.ticket: Ticket | None = None
        self.monitor: Monitor | None = None
        self.closed = False
        self.loop.set_exception_handler(self._unseen)
        self.loop.cost = lambda executor, host: (
            STEP_SECONDS * host.machine.speed if getattr(executor, "_thread_name_prefix", "") == "torch" else 0.0
        )
        self.descriptor: Descriptor = create_run(manifest, files)
        self.add("node", "node")

    def wall(self, process: Process) -> float:
        """What the clock of a process's machine shows."""
        return EPOCH + self.loop.now + process.machine.skew

    def failed(self, process: Process, error: BaseException) -> None:
        """Note an exception that a handler has raised."""
        self.failures.append(Failure(process.name, error))

    def _unseen(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Note what asyncio would have written to the log."""
        task = context.get("task") or context.get("future")
        host = task.host if isinstance(task, Task) else HOST.get()
        if not self.closed and (host is None or not host.dead):
            name = host.name if host is not None else "nobody"
            self.failures.append(Failure(name, context.get("exception") or context["message"]))

    # Owners, and what they do

    def add(
        self,
        name: str,
        role: Program,
        stage: int | None = None,
        settings: Mapping[str, Any] | None = None,
        **machine: Any,
    ) -> Owner:
        """Somebody more, with a machine and an empty folder."""
        folder = self.folder / name
        if role == "node":
            shutil.copytree(self.files, folder)
        else:
            folder.mkdir()
            self.disk.keep(folder)
        owner = Owner(name, self.network.machine(name, **machine), folder, role, stage, settings=settings or {})
        self.owners[name] = owner
        return owner

    def name_attester(self, owner: Owner) -> None:
        """Write the operator's word that an observer is its own, as `hetpeer bootstrap` does for the one beside it."""
        authority = Authority(self.descriptor.run_id, self.descriptor.operator)
        word = grant(load_or_create(self.owners["node"].folder), authority, load_or_create(owner.folder).peer_id)
        (owner.folder / GRANTED).write_bytes(word)

    def start(self, owner: Owner) -> Process:
        """The owner starts the program, by the same command as every time."""
        process = Process(owner.name, owner.machine, started_at=self.loop.now)
        process.was_full = owner.folder in self.disk.full
        owner.machine.powered = True
        owner.runs.append(process)
        context = in_host(process)
        programs = {"node": self._node, "gateway": self._gateway}
        work = programs.get(owner.role, self._peer)(process, owner)
        process.task = self.loop.create_task(self._run(process, work), context=context)
        return process

    async def _run(self, process: Process, work: Any) -> None:
        """What `peer.process` does around every command."""
        stop = process.stop = asyncio.Event()
        code = 0
        try:
            await work(stop)
            code = 130 if stop.is_set() else 0
        except HetpeerError as error:
            code, process.error = (130 if stop.is_set() else error.exit_code), str(error)
        except BaseExceptionGroup as group:
            try:
                said = first_error(group)
                code, process.error = (130 if stop.is_set() else said.exit_code), str(said)
            except BaseExceptionGroup as bug:
                self.failed(process, bug)
                code = 1
        except Exception as error:
            self.failed(process, error)
            code = 1
        process.exit_code, process.ended_at = code, self.loop.now
        left = [each for each in self.loop.tasks.get(process, []) if not each.done() and each is not process.task]
        left = [each for each in left if not is_of_grpc(each)]
        if left:
            self.failures.append(Failure(process.name, f"tasks are left: {left}"))
        self.network.died(process)

    def _node(self, process: Process, owner: Owner) -> Callable[[asyncio.Event], Any]:
        async def work(stop: asyncio.Event) -> None:
            identity = load_or_create(owner.folder)
            monitor = self.monitor = Monitor.of(self.manifest, self.descriptor.run_id, owner.folder)

            serves = asyncio.Event()

            def up(ticket: Ticket) -> None:
                self.ticket = ticket
                serves.set()

            async def hold(held: Callable[[], None]) -> None:
                await serves.wait()
                await self._hold(process, owner, stop, held)

            where = Listen(owner.machine.address, DOOR)
            rights = as_operator(identity, self.life)
            async with asyncio.TaskGroup() as tasks:
                how = {"monitor": monitor, "keeps": self.keeps_model}
                tasks.create_task(serve_node(self.descriptor, owner.folder, where, rights, up, stop, **how))
                if self.keeps_model:
                    tasks.create_task(keep_model(monitor, hold, EventStream([self._teller(process)]), stop))

        return work

    def _gateway(self, process: Process, owner: Owner) -> Callable[[asyncio.Event], Any]:
        async def work(stop: asyncio.Event) -> None:
            assert self.ticket is not None
            if owner.door == "node":  # it has no ticket of its own yet
                token = add_invitation(self.owners["node"].folder, 1, 86400, clock.unix_time(), gateway=True)
                self._invited[owner.name], owner.door = replace(self.ticket, token=token), ""

            def up(ticket: Ticket) -> None:
                owner.ticket = ticket

            terminal: Any = SimpleNamespace(emit=self._teller(process))
            served, rights = await _become_gateway(self.life, self._invited[owner.name], owner.folder, None, terminal)
            await serve_node(served, owner.folder, Listen(owner.machine.address, DOOR), rights, up, stop)

        return work

    def _teller(self, process: Process) -> Callable[[Event], None]:
        def tell(event: Event) -> None:
            process.events.append((self.loop.now, event))
            for due in [each for each in self._awaited if each[0](process.name, event)]:
                self._awaited.remove(due)
                due[1]()

        return tell

    async def _hold(self, process: Process, owner: Owner, stop: asyncio.Event, held: Callable[[], None]) -> None:
        """What the process does that holds the model beside the node: here, in the node's own."""
        assert self.ticket is not None
        folder = owner.folder / OBSERVER_FOLDER
        folder.mkdir(exist_ok=True)
        settings = self._settings(folder, "observer", stay=True, hold=True)
        emit = EventStream([lambda event: held() if isinstance(event, Finished) else None, self._teller(process)])
        await run_with_pauses(stop, settings, emit)

    def _settings(self, folder: Path, role: Any, ticket: Ticket | None = None, **more: Any) -> PeerSettings:
        """What the owner of a peer has asked for: `more`, beside the usual or in its place; `ticket`: or the node's."""
        ticket = ticket or self.ticket
        assert ticket is not None
        usual = {"device": "cpu", "precision": "fp32", "max_memory": 10**12, "max_disk": 10**12}
        return PeerSettings(ticket=ticket, role=role, directory=folder, **usual | more)

    def _peer(self, process: Process, owner: Owner) -> Callable[[asyncio.Event], Any]:
        async def work(stop: asyncio.Event) -> None:
            wished = {"stage": owner.stage, "stay": owner.stays, "audit": owner.audits} | dict(owner.settings)
            settings = self._settings(owner.folder, owner.role, self.owners[owner.door].ticket, **wished)
            emit = EventStream([self._teller(process)], process.status)
            with emit.also(Journal(owner.folder, emit, emit.status)):
                await run_with_pauses(stop, settings, emit)

        return work

    def interrupt(self, process: Process) -> None:
        """Ctrl-C."""
        if process.stop is not None:
            process.stop.set()

    def kill(self, process: Process) -> None:
        """SIGKILL: nothing of it runs any more; its machine hangs up."""
        self._end(process)
        self.network.died(process)
        for task in self.loop.tasks.get(process, []):
            task._log_destroy_pending = False  # type: ignore[attr-defined]

    def _end(self, process: Process) -> None:
        process.dead, process.held, process.ended_at = True, None, self.loop.now

    def freeze(self, process: Process) -> None:
        """SIGSTOP."""
        if process.held is None:
            process.held = []
            process.stops.append([self.loop.now, float("inf")])
            self.network.stopped(process, lambda: process.held is not None)

    def thaw(self, process: Process) -> None:
        """SIGCONT."""
        if process.stops:
            process.stops[-1][1] = self.loop.now
        self.loop.go_on(process)

    def lose_power(self, process: Process) -> None:
        """The machine goes off: nobody is told, and what was not synced may be lost."""
        self._end(process)
        process.machine.powered = False
        self.network.lost_power(process)
        if self.owners[process.name].role != "node":  # SQLite, which the node has, syncs where nobody sees it
            self.disk.lose_power(self.owners[process.name].folder)
        for task in self.loop.tasks.get(process, []):
            task._log_destroy_pending = False  # type: ignore[attr-defined]

    def fill(self, owner: Owner) -> None:
        """The owner's disk is full: nothing more can be written in its folder."""
        self.disk.full.add(owner.folder)
        if owner.process is not None:
            owner.process.was_full = True

    # Time

    def at(self, seconds: float, act: Callable[[], object]) -> None:
        """Let something happen at a time, in no process."""
        self.loop.call_at(seconds, act, context=self.network.kernel)

    def when(self, told: Callable[[str, Event], bool], act: Callable[[], object]) -> None:
        """Do something as soon as an owner, by its name, tells such an event."""
        self._awaited.append((told, act))

    def close(self) -> None:
        """Forget everything that still runs: what would clean up after itself finds that nothing happens any more."""
        self.closed = True
        for process in [each for owner in self.owners.values() for each in owner.runs]:
            process.dead, process.held = True, None
        self.loop.forget()

    def run_until(self, holds: Callable[[], bool], seconds: float) -> bool:
        """Let time pass until a condition holds, so many seconds at most. Returns whether it does."""
        until = self.loop.now + seconds

        async def watch() -> bool:
            while not holds():
                if self.loop.now >= until:
                    return False
                await asyncio.sleep(0.25)
            return True

        return self.loop.run_until_complete(self.loop.create_task(watch(), context=self.network.kernel.copy()))

    def run_for(self, seconds: float) -> None:
        """Let so much time pass."""
        self.run_until(lambda: False, seconds)
