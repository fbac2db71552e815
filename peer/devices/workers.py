"""The processes that compute a replica on several devices, as the daemon sees them: it starts them, tells all of them
the same, and ends them. One that ends takes the others along: of a model in N parts nothing is left without one.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Protocol

from peer.compute.arithmetic import Arithmetic
from peer.devices.messages import Answer, Begin, Do, Order, SharedTensors, receive_answer, send_order
from protocol.errors import DivergedError, HetpeerError, LostMemberError, ResourceError
from protocol.manifest import Manifest

LOOPBACK_INTERFACE = "lo0" if sys.platform == "darwin" else "lo"

COLLECTIVE_SECONDS = 120.0
"""A worker that ends is noticed at once. One that hangs is after so long, in which the others have waited for it."""

SETTLE_SECONDS = 1.0
"""The seconds until the process that ended first is known: one that loses a neighbour fails, too."""

MACHINE_SECONDS = 3.0
"""The seconds until another machine has said which of its processes ended."""

MEANWHILE_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Split:
    """The layout of a replica: processes of each machine, cores that these have together here, their niceness, how each
    computes, and the number of machines."""

    processes: int = 1
    threads: int = 1
    niceness: int = 0
    arithmetic: Arithmetic = field(default_factory=Arithmetic)
    machines: int = 1

    @property
    def ranks(self) -> int:
        """The processes of all machines."""
        return self.processes * self.machines


@dataclass(frozen=True, slots=True)
class Worker:
    """One process, and the daemon's end of its connection."""

    rank: int
    process: "subprocess.Popen[bytes]"
    connection: "Connection[bytes, bytes]"

    def __str__(self) -> str:
        return f"worker {self.rank} (process {self.process.pid})"


class Machine(Protocol):
    """The processes of another machine, as a worker pool sees them (`peer/devices/machines.py`)."""

    @property
    def first(self) -> int:
        """The rank of its first process."""

    @property
    def connection(self) -> "Connection[bytes, bytes]":
        """The daemon's end of a connection that takes orders, and gives the answers of all its processes."""

    def lost(self, patience: float = 0) -> str:
        """Return why its processes have been lost, if that is known within so many seconds; empty: they have not."""

    def stop(self) -> None:
        """End its processes."""


def worker_settings(manifest: Manifest, device: str, split: Split, store: str = "") -> Begin:
    """The settings for the processes of a replica. `store`: the meeting point of those of several machines."""
    return Begin(
        manifest=manifest.model_dump_json(),
        ranks=split.ranks,
        device=device,
        rendezvous="" if store else tempfile.mkdtemp(prefix="hetpeer-crew-"),
        threads=max(1, split.threads // split.processes),
        niceness=split.niceness,
        patience=COLLECTIVE_SECONDS,
        precision=split.arithmetic.precision,
        compiled=split.arithmetic.compiled,
        recompute=split.arithmetic.recompute,
        store=store,
    )


class WorkerPool:
    """The worker processes of this machine, and those of other machines, if any. One thread calls all of this; only
    `stop` may be called by another at the same time.

    Those of this machine talk to others through the network `interface`. `meanwhile` is called about every second
    while the worker pool waits for answers, and may raise what then ends the wait.
    """

    def __init__(
        self,
        begin: Begin,
        processes: int,
        machines: Sequence[Machine] = (),
        interface: str = LOOPBACK_INTERFACE,
        meanwhile: Callable[[], None] | None = None,
    ) -> None:
        self.begin = begin
        self.processes = processes
        self.machines = machines
        self.interface = interface
        self.meanwhile = meanwhile
        self.workers: list[Worker] = []
        self.stopped = False

    def start(self) -> list[Answer]:
        """Start all processes, and wait until they have met. Raises as `run` does."""
        for rank in range(self.begin.first, self.begin.first + self.processes):
            self.workers.append(_spawn(rank, self.begin.threads, self.interface))
            if self.stopped:
                self.stop()
        return self.dispatch(Order("begin", begin=self.begin), None)

    def run(self, do: Do, shared: SharedTensors | None = None, step: float = 0.0) -> list[Answer]:
        """Let all do something with these tensors, or write into them; what they answer, by rank.

        Raises:
            LostMemberError: a process has ended, and so have the others.
            ResourceError: a device is too small; they have ended.
            DivergedError: the gradient is not a number.
        """
        answers = self.dispatch(Order(do, shared.layout if shared else {}, step), shared)
        if diverged := next((reply.error for reply in answers if reply.kind == "diverged"), ""):
            raise DivergedError(diverged)
        return answers

    def ended(self) -> LostMemberError | None:
        """Return the error for a process that has ended while nobody waited for it; then the others have ended, too."""
        here = all(worker.process.poll() is None for worker in self.workers)
        if here and not any(machine.lost() for machine in self.machines):
            return None
        lost = self._lost(Answer())
        assert isinstance(lost, LostMemberError)
        return lost

    def stop(self) -> None:
        """End all processes at once: what they hold can be had again from the daemon."""
        self.stopped = True
        for worker in self.workers:
            worker.process.kill()
        for machine in self.machines:
            machine.stop()
        for worker in self.workers:
            worker.process.wait()
        if self.begin.rendezvous:
            shutil.rmtree(self.begin.rendezvous, ignore_errors=True)

    def dispatch(self, order: Order, shared: SharedTensors | None) -> list[Answer]:
        """Let all carry out an order; what they answer, by rank. Raises as `run` does, but tells a gradient that is
        not a number by an answer."""
        try:
            for machine in self.machines:
                send_order(machine.connection, order, shared, os.getpid())
            for worker in self.workers:
                send_order(worker.connection, order, shared, worker.process.pid)
            return self._receive_answers()
        except (EOFError, OSError):
            raise self._lost(Answer()) from None

    def _receive_answers(self) -> list[Answer]:
        waiting = {worker.connection: [worker.rank] for worker in self.workers}
        for machine in self.machines:
            waiting[machine.connection] = list(range(machine.first, machine.first + self.processes))
        answers: dict[int, Answer] = {}
        while waiting:
            for ready in wait(list(waiting), MEANWHILE_SECONDS if self.meanwhile else None):
                assert isinstance(ready, Connection)
                for rank in waiting.pop(ready):
                    reply = answers[rank] = receive_answer(ready)
                    if reply.kind in ("memory", "failed"):
                        raise self._lost(reply)
            if self.meanwhile is not None:
                self.meanwhile()
        return [answers[rank] for rank in sorted(answers)]

    def _lost(self, reply: Answer) -> HetpeerError:
        """End all. What to say of it: of the one that ended by itself, or else what one of them said."""
        patience = SETTLE_SECONDS / len(self.workers)
        ended = None
        for worker in self.workers:
            with suppress(subprocess.TimeoutExpired):
                worker.process.wait(patience)
                ended = worker
                break
        patience = 0 if ended is not None or reply.kind == "memory" else MACHINE_SECONDS / max(1, len(self.machines))
        elsewhere = "; ".join(filter(None, (machine.lost(patience) for machine in self.machines)))
        self.stop()
        if ended is not None:
            code = ended.process.returncode
            how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
            return LostMemberError(f"{ended} {how}")
        if reply.kind == "memory":
            return ResourceError(
                f"{reply.error}; take more devices (--nproc), or a smaller inner.microbatch for the run"
            )
        if elsewhere:
            return LostMemberError(elsewhere)
        if not reply.error:
            return LostMemberError("the processes that compute have been stopped")
        print(reply.error, file=sys.stderr)
        return LostMemberError(f"a worker failed: {reply.error.strip().splitlines()[-1]}")


def _spawn(rank: int, threads: int, interface: str) -> Worker:
    """A new process. It inherits its end of the connection, and nothing else."""
    ours, theirs = Pipe()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", "peer.devices", str(rank), str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=2,  # the daemon's own standard output may be read by a program
            env=os.environ
            | {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": f"={interface}", "OMP_NUM_THREADS": str(threads)},
        )
    return Worker(rank, process, ours)
