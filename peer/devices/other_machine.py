"""A machine of a datacenter that only computes: it calls the first one, which has the daemon, and carries out orders in
processes of its own, until it hears that the run is over.

What the first machine sends is checked against the manifest that it named: no order makes this machine hold more than a
run of it takes.
"""

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import wait

import torch

from peer.devices.fit import require_devices
from peer.devices.machines import (
    FILLED_IN,
    MOST_REASON_CHARACTERS,
    POLL_SECONDS,
    Hello,
    MachineLink,
    pack_hello,
    read_welcome,
    tensor_pieces,
)
from peer.devices.messages import Answer, Begin, Order, TensorLayout, encoded, read_order, shared_tensors
from peer.devices.weights import moments_layout, weights_layout
from peer.devices.workers import WorkerPool
from protocol.addresses import split_address
from protocol.clock import monotonic, unix_time
from protocol.errors import (
    FormatError,
    HetpeerError,
    LostMemberError,
    ManifestError,
    RefusedError,
    ResourceError,
    UnreachableError,
)
from protocol.manifest import Manifest
from protocol.wording import lasting, moment, printable

GONE_SECONDS = 600.0
"""A first machine that has been gone for so long does not come back by itself."""

MACHINE_CALL_INTERVAL_SECONDS = 1.0
"""The seconds between two calls."""

MOST_PATIENCE = 3600.0

MOST_HELD_OUT_BYTES = 2**30


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of this machine: cores for all its processes, their niceness, and bytes of memory, if it has a
    limit."""

    device: torch.device
    threads: int
    niceness: int
    memory_limit: int | None


class OtherMachine:
    """`call` opens a link to `first`, HOST:PORT, and sends a message over it; OSError if nobody is there. `say` is told
    for whom this machine waits. `stop` may be called by any thread."""

    def __init__(
        self, hello: Hello, limits: Limits, first: str, call: Callable[[bytes], MachineLink], say: Callable[[str], None]
    ) -> None:
        self.hello = hello
        self.limits = limits
        self.first = first
        self.call = call
        self.say = say
        self.worker_pool: WorkerPool | None = None
        self.manifest: Manifest | None = None
        self.gone_since = monotonic()
        self._last_reason = ""
        self._stopped = threading.Event()

    def run(self) -> None:
        """Compute until the run is over, or `stop` is called.

        Raises:
            UnreachableError: the first machine has been gone for `GONE_SECONDS`.
            RefusedError: it does not take this machine; the message says why.
            ResourceError: this machine is too small for the run.
        """
        while not self._stopped.is_set():
            link = None
            try:
                link = self.call(pack_hello(self.hello))
                if self._serve(link):
                    self.say("the run is over")
                    return
            except (OSError, FormatError, LostMemberError, UnreachableError) as error:
                self._wait(str(error) or type(error).__name__)
            finally:
                self._end_worker_pool()
                if link is not None:
                    link.close()

    def stop(self) -> None:
        """End soon: the processes at once."""
        self._stopped.set()
        worker_pool = self.worker_pool
        if worker_pool is not None:
            worker_pool.stop()

    def _wait(self, why: str) -> None:
        if self._stopped.is_set():
            return
        if (silence := monotonic() - self.gone_since) > GONE_SECONDS:
            raise UnreachableError(
                f"the first machine, {self.first}, has been gone for {lasting(GONE_SECONDS)}: {why}; start this one "
                "again once it is there"
            )
        if why != self._last_reason:
            self._last_reason = why
            since = moment(unix_time() - silence)
            self.say(
                f"machine {self.hello.node_rank} waits for the first machine, {self.first}, since {since}, and for at "
                f"most {lasting(GONE_SECONDS)}: {why}"
            )
        self._stopped.wait(MACHINE_CALL_INTERVAL_SECONDS)

    def _serve(self, link: MachineLink) -> bool:
        """Carry out orders; whether the run is over. Otherwise this machine has been stopped.

        Raises:
            OSError, FormatError, LostMemberError: this link is of no use any longer.
        """
        while not (message := self._next(link)):
            if self._stopped.is_set():
                return False
        welcome = read_welcome(message)
        if welcome.refused:
            refused = printable(welcome.refused)[:MOST_REASON_CHARACTERS]
            why = f"the first machine, {self.first}, refuses this one: {refused}"
            if welcome.final:
                raise RefusedError(why)
            raise LostMemberError(why)
        self._last_reason = ""
        self.say(f"the first machine, {self.first}, has taken in machine {self.hello.node_rank}")
        while not self._stopped.is_set():
            self.gone_since = monotonic()
            if self.worker_pool is not None and (lost := self.worker_pool.ended()):
                self._report_loss(link, lost, "failed")
            if message := self._next(link):
                order = read_order(message)
                if order.do == "end":
                    return True
                try:
                    self._carry_out(link, order)
                except LostMemberError as error:
                    self._report_loss(link, error, "failed")
                except ResourceError as error:
                    self._report_loss(link, error, "memory")
                    raise
        return False

    def _next(self, link: MachineLink) -> bytes:
        """The next message, if one comes soon."""
        if not link.waits():
            wait([link.fileno()], POLL_SECONDS)
        link.keep()
        return link.receive() if link.waits() else b""

    def _report_loss(self, link: MachineLink, error: HetpeerError, kind: str) -> None:
        """Tell the first machine that this one has lost its processes, and wait until it has hung up."""
        self._end_worker_pool()
        if self._stopped.is_set():
            return
        self.say(str(error))
        answer = Answer(error=str(error), kind="memory" if kind == "memory" else "failed")
        with suppress(OSError):
            link.send(encoded((answer,)), iter(()))
            while not self._stopped.is_set():
                self._next(link)
        if kind != "memory":
            raise LostMemberError("the processes start again together")

    def _carry_out(self, link: MachineLink, order: Order) -> None:
        if order.begin is not None:
            link.send(encoded(tuple(self._begin(link, order.begin))), iter(()))
            return
        if self.worker_pool is None or self.manifest is None or order.layout != self._expected(order):
            raise FormatError(f"the first machine asks for {order.do} of other tensors than its run has")
        share = self.hello.nproc * self.hello.nnodes, self.worker_pool.begin.first, self.hello.nproc
        with shared_tensors(order.layout) as shared:
            if order.do not in FILLED_IN:
                for piece in tensor_pieces(order, shared.tensors, *share):
                    link.receive_into(piece)
            answers = self.worker_pool.dispatch(order, shared if order.layout else None)
            back = tensor_pieces(order, shared.tensors, *share) if order.do in FILLED_IN else iter(())
            link.send(encoded(tuple(answers)), back)

    def _begin(self, link: MachineLink, asked: Begin) -> list[Answer]:
        """Start the worker processes as the first machine orders, but with this machine's own threads, niceness and
        limit of memory. Returns their answers, and raises what `WorkerPool.start` does, too.

        Raises:
            FormatError: the order does not fit what the two machines agreed on, or another one came too early.
            UnreachableError: the first machine has gone.
            UserError: the run's sequences cannot be shared among the processes.
            ResourceError: there are too few devices, or too little memory.
        """
        try:
            self.manifest = Manifest.model_validate_json(asked.manifest)
            split_address(asked.store)
        except (ValueError, ManifestError, FormatError):
            raise FormatError("the first machine begins without a manifest, or without a store to meet at") from None
        ranks = self.hello.nnodes * self.hello.nproc
        as_agreed = asked.ranks == ranks and asked.device == self.hello.device and not asked.rendezvous
        if self.worker_pool is not None or not (as_agreed and 0 < asked.patience <= MOST_PATIENCE):
            raise FormatError("the first machine begins otherwise than it said")
        require_devices(
            self.manifest,
            self.hello.nproc,
            self.limits.device,
            self.limits.memory_limit,
            "recompute" if asked.recompute else "keep",
            self.hello.nnodes,
            daemon=False,
        )

        def meanwhile() -> None:
            try:
                link.keep()
                while link.waits():
                    if link.receive():
                        raise FormatError("the first machine gives an order before it has the last one's answers")
            except OSError as error:
                raise UnreachableError(str(error)) from None

        begin = replace(
            asked,
            threads=max(1, self.limits.threads // self.hello.nproc),
            niceness=self.limits.niceness,
            first=self.hello.node_rank * self.hello.nproc,
        )
        self.worker_pool = WorkerPool(begin, self.hello.nproc, interface=link.interface, meanwhile=meanwhile)
        if self._stopped.is_set():  # here, as another thread may just have called `stop`
            self.worker_pool.stop()
        return self.worker_pool.start()

    def _expected(self, order: Order) -> TensorLayout:
        """The layout that the tensors of an order have in this run."""
        assert self.manifest is not None
        tokens = self.manifest.model.context + 1
        match order.do:
            case "load" | "weights":
                return weights_layout(self.manifest)
            case "load_moments" | "moments":
                return moments_layout(self.manifest)
            case "step":
                return {"batch": ("int64", (self.manifest.inner.sequences, tokens))}
            case "evaluate":
                shape = order.layout["held_out"][1] if "held_out" in order.layout else ()
                count = shape[0] if shape else 0
                if not 0 < count * 8 * tokens <= MOST_HELD_OUT_BYTES:
                    return {}
                d = self.manifest.model.d
                basis: TensorLayout = {"basis": ("float32", (d, d))} if "basis" in order.layout else {}
                return {**weights_layout(self.manifest), "held_out": ("int64", (count, tokens)), **basis}
        return {}

    def _end_worker_pool(self) -> None:
        if self.worker_pool is not None:
            self.worker_pool.stop()
            self.worker_pool = None
