"""The processes that compute a replica on several devices, as the daemon sees them: it starts them, tells all of them
the same, and ends them. One that ends takes the others along: of a model in N parts nothing is left without one.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait

from peer.compute.arithmetic import Arithmetic
from peer.devices.messages import Answer, Begin, Do, Order, Parcel, give, hear
from protocol.errors import DivergedError, HetpeerError, LostMemberError, ResourceError
from protocol.manifest import Manifest

LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"

COLLECTIVE_SECONDS = 120.0
"""A worker that ends is noticed at once. One that hangs is after so long, in which the others have waited for it."""

SETTLE_SECONDS = 1.0
"""Who loses a neighbour fails, too; so long it may take until the one that ended by itself is known."""


@dataclass(frozen=True, slots=True)
class Split:
    """How a replica is spread over this machine: processes, cores that they have together, their niceness, and how each
    computes."""

    processes: int = 1
    threads: int = 1
    niceness: int = 0
    arithmetic: Arithmetic = field(default_factory=Arithmetic)


@dataclass(frozen=True, slots=True)
class Worker:
    """One process, and the daemon's end of its connection."""

    rank: int
    process: "subprocess.Popen[bytes]"
    connection: "Connection[bytes, bytes]"

    def __str__(self) -> str:
        return f"worker {self.rank} (process {self.process.pid})"


class Crew:
    """One thread calls all of this; only `stop` may be called by another at the same time."""

    def __init__(self, manifest: Manifest, device: str, split: Split) -> None:
        self.workers: list[Worker] = []
        self.stopped = False
        self.begin = Begin(
            manifest=manifest.model_dump_json(),
            ranks=split.processes,
            device=device,
            rendezvous=tempfile.mkdtemp(prefix="hetpeer-crew-"),
            threads=max(1, split.threads // split.processes),
            niceness=split.niceness,
            patience=COLLECTIVE_SECONDS,
            precision=split.arithmetic.precision,
            compiled=split.arithmetic.compiled,
            recompute=split.arithmetic.recompute,
        )

    def start(self) -> None:
        """Start all processes, and wait until they have met. Raises as `tell` does."""
        for rank in range(self.begin.ranks):
            self.workers.append(_spawn(rank, self.begin.threads))
            if self.stopped:
                self.stop()
        self._give(Order("begin", begin=self.begin), None)

    def tell(self, do: Do, parcel: Parcel | None = None, step: int = 0) -> list[Answer]:
        """Let all do something with these tensors, or write into them; what they answer, by rank.

        Raises:
            LostMemberError: a process has ended, and so have the others.
            ResourceError: a device is too small; they have ended.
            DivergedError: the gradient is not a number.
        """
        answers = self._give(Order(do, parcel.layout if parcel else {}, step), parcel)
        if diverged := next((each.error for each in answers if each.kind == "diverged"), ""):
            raise DivergedError(diverged)
        return answers

    def ended(self) -> LostMemberError | None:
        """What to say if a process has ended while nobody waited for it; then so have the others."""
        if all(worker.process.poll() is None for worker in self.workers):
            return None
        lost = self._lost(Answer())
        assert isinstance(lost, LostMemberError)
        return lost

    def stop(self) -> None:
        """End all processes at once: what they hold can be had again from the daemon."""
        self.stopped = True
        for worker in self.workers:
            worker.process.kill()
        for worker in self.workers:
            worker.process.wait()
        shutil.rmtree(self.begin.rendezvous, ignore_errors=True)

    def _give(self, order: Order, parcel: Parcel | None) -> list[Answer]:
        try:
            for worker in self.workers:
                give(worker.connection, order, parcel, worker.process.pid)
            return self._hear_all()
        except (EOFError, OSError):
            raise self._lost(Answer()) from None

    def _hear_all(self) -> list[Answer]:
        waiting = {worker.connection: worker.rank for worker in self.workers}
        answers: dict[int, Answer] = {}
        while waiting:
            for ready in wait(list(waiting)):
                assert isinstance(ready, Connection)
                said = answers[waiting.pop(ready)] = hear(ready)
                if said.kind in ("memory", "failed"):
                    raise self._lost(said)
        return [answers[worker.rank] for worker in self.workers]

    def _lost(self, said: Answer) -> HetpeerError:
        """End all. What to say of it: of the one that ended by itself, or else what one of them said."""
        patience = SETTLE_SECONDS / len(self.workers)
        ended = None
        for worker in self.workers:
            with suppress(subprocess.TimeoutExpired):
                worker.process.wait(patience)
                ended = worker
                break
        self.stop()
        if ended is not None:
            code = ended.process.returncode
            how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
            return LostMemberError(f"{ended} {how}")
        if said.kind == "memory":
            return ResourceError(
                f"{said.error}; take more devices (--nproc), or a smaller inner.microbatch for the run"
            )
        print(said.error, file=sys.stderr)
        return LostMemberError(f"a worker failed: {said.error.strip().splitlines()[-1]}")


def _spawn(rank: int, threads: int) -> Worker:
    """A new process. It inherits its end of the connection, and nothing else."""
    ours, theirs = Pipe()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", "peer.devices", str(rank), str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=2,  # the daemon's own standard output may be read by a program
            env=os.environ
            | {"GLOO_SOCKET_IFNAME": LOOPBACK, "NCCL_SOCKET_IFNAME": LOOPBACK, "OMP_NUM_THREADS": str(threads)},
        )
    return Worker(rank, process, ours)
