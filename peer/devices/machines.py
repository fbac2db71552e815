"""The machines of a datacenter, as the first one knows them, which has the daemon: who is there, and the threads that
carry orders over to them and answers back.

A link lasts as long as the processes beyond it: when a replica loses one process, all links end, every machine ends its
processes and calls again. So there is one way in, for who comes first, comes back, or lost a neighbour.
"""

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from multiprocessing import Pipe
from multiprocessing.connection import wait
from typing import Protocol

import torch
import torch.distributed as dist
from pydantic import TypeAdapter, ValidationError
from torch import Tensor

from peer import version
from peer.devices.messages import Do, Order, encoded, read_answers, receive_order, send_answer
from peer.devices.weights import rows_at_ranks
from protocol.addresses import join_address
from protocol.clock import unix_time
from protocol.errors import FormatError, LostMemberError
from protocol.wording import moment, printable

POLL_SECONDS = 0.5
"""The interval at which a thread that waits for a link checks whether it is to end, in seconds."""

END_SECONDS = 5.0
"""The seconds that the first machine waits at the end until the others have received it."""

BY_ROWS = ("load", "load_moments", "weights", "moments")
"""Orders whose tensors each machine has only its own rows of. Those of the others go over whole."""

FILLED_IN: tuple[Do, ...] = ("weights", "moments")
"""Orders whose tensors come back."""

MOST_REASON_CHARACTERS = 400


class MachineLink(Protocol):
    """A connection to another machine (`peer/network/machine_link.py`): one thread uses it, and OSError says that the
    other side has gone."""

    peer: str

    @property
    def interface(self) -> str:
        """This machine's network interface to the other one."""

    def fileno(self) -> int:
        """The file descriptor to wait for."""

    def waits(self) -> bool:
        """Whether something has come."""

    def keep(self) -> None:
        """Show a sign of life if one is due, and look for one of the other side."""

    def send(self, message: bytes, pieces: Iterator[memoryview] = ...) -> None:
        """Send a message and pieces of memory."""

    def receive(self) -> bytes:
        """The next message; empty: a sign of life."""

    def receive_into(self, piece: memoryview) -> None:
        """Fill a piece of memory."""

    def close(self) -> None:
        """Hang up."""


class Listening(Protocol):
    """The port at which the other machines call."""

    address: str
    port: int
    interface: str

    def another_socket(self) -> tuple[int, int]:
        """A file descriptor that listens at the same address, and its port."""

    def close(self) -> None:
        """Listen no longer."""


@dataclass(frozen=True, slots=True)
class Hello:
    """The settings that all machines of a datacenter have in common, and the `node_rank` of the sender. `manifest` is a
    digest; empty: any."""

    nnodes: int
    nproc: int
    device: str
    manifest: str
    node_rank: int
    hetpeer: str
    torch: str

    @classmethod
    def of(cls, nnodes: int, nproc: int, device: str, manifest: str, node_rank: int = 0) -> "Hello":
        """The hello of this machine."""
        return cls(nnodes, nproc, device, manifest, node_rank, version(), str(torch.__version__))

    def objection(self, theirs: "Hello") -> str:
        """Return why another machine does not fit this first one; empty: it does."""
        words = {"nnodes": "--nnodes", "nproc": "--nproc", "manifest": "the manifest", "device": "the device"}
        for name, ours in asdict(self).items():
            other = asdict(theirs)[name]
            if name == "node_rank":
                if not 1 <= other < self.nnodes:
                    return f"--node-rank {other}: the other machines have 1 to {self.nnodes - 1}"
            elif other != ours and not (name == "manifest" and not other):
                return f"{words.get(name, name)} is {ours} on the first machine and {printable(str(other))[:80]} here"
        return ""


@dataclass(frozen=True, slots=True)
class Welcome:
    """The first machine's answer to a `Hello`. `refused`: the reason, if it refuses; `final`: asking again is of no
    use."""

    refused: str = ""
    final: bool = False


_HELLO, _WELCOME = TypeAdapter(Hello), TypeAdapter(Welcome)


def pack_hello(hello: Hello) -> bytes:
    """A `Hello` as JSON."""
    return json.dumps(asdict(hello)).encode()


def read_hello(message: bytes) -> Hello:
    """A `Hello` from its JSON. Raises FormatError: it is none."""
    try:
        return _HELLO.validate_json(message)
    except ValidationError:
        raise FormatError("no machine of a datacenter begins like this") from None


def read_welcome(message: bytes) -> Welcome:
    """A `Welcome` from its JSON. Raises FormatError: it is none."""
    try:
        return _WELCOME.validate_json(message)
    except ValidationError:
        raise FormatError("the first machine of a datacenter does not answer like this") from None


def tensor_pieces(
    order: Order, tensors: Mapping[str, Tensor], ranks: int, first: int, count: int
) -> Iterator[memoryview]:
    """The memory of an order's tensors that the machine with `count` of all `ranks`, from `first` on, has to do with.
    Both sides find the same pieces."""
    for tensor in tensors.values():
        own = rows_at_ranks(tensor, ranks, first, count) if order.do in BY_ROWS else tensor
        if own.numel():
            yield memoryview(own.reshape(-1).numpy().data).cast("B")


class LinkedMachine:
    """Another machine that has called, and the thread that talks to it. `connection` is for the worker pool."""

    def __init__(self, link: MachineLink, hello: Hello) -> None:
        self.link = link
        self.number = hello.node_rank
        self.nproc, self.ranks = hello.nproc, hello.nproc * hello.nnodes
        self.connection, self._theirs = Pipe()
        self._reason = ""
        self._last: Order | None = None
        self._stopping, self._ended = threading.Event(), threading.Event()

    @property
    def first(self) -> int:
        """The rank of its first process."""
        return self.number * self.nproc

    def lost(self, patience: float = 0) -> str:
        """Return why the machine has been lost, if that is known within so many seconds; empty: it is there, or has
        been stopped."""
        self._ended.wait(patience)
        return self._reason

    @property
    def there(self) -> bool:
        """Whether it can be used."""
        return not (self._ended.is_set() or self._stopping.is_set())

    def stop(self, last: Order | None = None) -> None:
        """Hang up soon, after `last`: it ends its processes, and calls again unless that was the end of the run."""
        self._last = last
        self._stopping.set()

    def wait_ended(self, seconds: float) -> None:
        """Wait until its thread has hung up."""
        self._ended.wait(seconds)

    def carry(self) -> None:
        """Carry orders and answers until one side ends. Runs in a thread of its own."""
        awaited: tuple[Order, dict[str, Tensor]] | None = None
        try:
            while not self._stopping.is_set():
                ready = wait([self._theirs, self.link.fileno()], POLL_SECONDS)
                self.link.keep()
                if self._theirs in ready:
                    awaited = receive_order(self._theirs)
                    tensors = iter(()) if awaited[0].do in FILLED_IN else self._pieces(*awaited)
                    self.link.send(encoded(awaited[0]), tensors)
                while self.link.waits():
                    if message := self.link.receive():
                        self._receive_answers(message, awaited)
                        awaited = None
            if self._last is not None:
                self.link.send(encoded(self._last))
                while True:  # until it has hung up
                    self.link.receive()
        except (OSError, EOFError, FormatError) as error:
            if not self._stopping.is_set():
                self._reason = self._reason or f"{self}: {error}"
        finally:
            self._ended.set()
            self.link.close()
            self._theirs.close()

    def _receive_answers(self, message: bytes, awaited: tuple[Order, dict[str, Tensor]] | None) -> None:
        answers = read_answers(message)
        bad = next((reply for reply in answers if reply.kind in ("memory", "failed")), None)
        if bad is not None:
            self._reason = f"{self}: {printable(' '.join(bad.error.split()))[:MOST_REASON_CHARACTERS]}"
            if awaited is not None:
                send_answer(self._theirs, replace(bad, error=self._reason))
            raise FormatError(self._reason)
        if awaited is None or len(answers) != self.nproc:
            raise FormatError(f"{len(answers)} answers that nobody has asked for")
        if awaited[0].do in FILLED_IN:
            for piece in self._pieces(*awaited):
                self.link.receive_into(piece)
        for reply in answers:
            send_answer(self._theirs, reply)

    def _pieces(self, order: Order, tensors: Mapping[str, Tensor]) -> Iterator[memoryview]:
        return tensor_pieces(order, tensors, self.ranks, self.first, self.nproc)

    def __str__(self) -> str:
        return f"machine {self.number} ({self.link.peer})"


class Machines:
    """The other machines: those that are there, and since when the others are missing. The daemon's torch thread takes
    them, threads of the listener bring them."""

    def __init__(self, own: Hello, listen: Callable[[Callable[[MachineLink, bytes], None]], Listening]) -> None:
        """Listen. Raises as `listen` does."""
        self.own = own
        self._lock = threading.Lock()
        self._closed = False
        self._there: dict[int, LinkedMachine] = {}
        self._since = {number: unix_time() for number in range(1, own.nnodes)}
        self._store: object = None
        self._listener = listen(self._greet)
        self.interface, self.port = self._listener.interface, self._listener.port

    def missing(self) -> str:
        """Say which machines are missing, and since when; empty: none is."""
        with self._lock:
            missing = {number: since for number, since in self._since.items() if not self._is_there(number)}
        told = [f"machine {number} since {moment(since)}" for number, since in missing.items()]
        return f"waiting for {', '.join(told)}" if told else ""

    def take(self) -> tuple[list[LinkedMachine], str]:
        """All other machines, and HOST:PORT of a new store of PyTorch's, at which their processes are to meet.

        Raises:
            LostMemberError: one is missing.
        """
        if missing := self.missing():
            raise LostMemberError(missing)
        handle, port = self._listener.another_socket()
        address = self._listener.address
        self._store = dist.TCPStore(address, port, None, True, wait_for_workers=False, master_listen_fd=handle)  # type: ignore[attr-defined]
        with self._lock:
            return [self._there[number] for number in sorted(self._there)], join_address(address, port)

    def close(self, over: bool) -> None:
        """Hang up. `over`: so is the run, and the other machines are told."""
        self._listener.close()
        with self._lock:
            self._closed = True
            there = list(self._there.values())
        for machine in there:
            machine.stop(Order("end") if over else None)
        for machine in there:
            machine.wait_ended(END_SECONDS)
        self._store = None

    def _is_there(self, number: int) -> bool:
        return number in self._there and self._there[number].there

    def _greet(self, link: MachineLink, first: bytes) -> None:
        """Take a machine in, or refuse it, and serve it until it goes."""
        machine = None
        with suppress(OSError, FormatError):
            hello = read_hello(first)
            objection = self.own.objection(hello)
            welcome = Welcome(objection, final=True)
            with self._lock:
                if self._closed:
                    welcome = Welcome("the peer there ends, or pauses")
                elif not objection and self._is_there(hello.node_rank):
                    other_machine = self._there[hello.node_rank]
                    welcome = Welcome(
                        f"another machine with --node-rank {hello.node_rank} is there, {other_machine.link.peer}"
                    )
                elif not objection:
                    machine = self._there[hello.node_rank] = LinkedMachine(link, hello)
            link.send(json.dumps(asdict(welcome)).encode())
        if machine is None:
            link.close()
            return
        try:
            machine.carry()
        finally:
            with self._lock:
                self._since[machine.number] = unix_time()
