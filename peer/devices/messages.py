"""The messages between the daemon and its worker processes: an order, and an answer, both small JSON. Tensors travel as
a `SharedTensors`: a piece of memory without a name that the processes share, passed on as a file descriptor. That is
not torch's own sharing, which uses /dev/shm: a container has 64 MB of that.

Each process has a connection of its own to the daemon, which is its leash, too: when it ends, the process does.
"""

import json
import mmap
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from math import prod
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from typing import Literal

import torch
from pydantic import FiniteFloat, TypeAdapter, ValidationError
from torch import Tensor

from peer.compute.arithmetic import Precision
from protocol.errors import FormatError

MOST_ORDER_BYTES = 2**24

SHARED_DTYPES = {"float32": torch.float32, "int64": torch.int64}

SHARED_ALIGNMENT = 64

TensorLayout = Mapping[str, tuple[str, tuple[int, ...]]]
"""Name → dtype and shape, as JSON can say it."""


@dataclass(frozen=True, slots=True)
class SharedTensors:
    """Tensors at the places that their layout says. The memory lives as long as one of them does anywhere."""

    layout: TensorLayout
    tensors: dict[str, Tensor]
    handle: int


@contextmanager
def shared_tensors(layout: TensorLayout) -> Iterator[SharedTensors]:
    """New tensors, all zeros, in memory of their own; other processes can be given them within the block."""
    if sys.platform == "linux":
        handle = os.memfd_create("hetpeer")
    else:
        with tempfile.TemporaryFile() as file:
            handle = os.dup(file.fileno())
    try:
        os.ftruncate(handle, _end(layout))
        yield SharedTensors(layout, unpack_tensors(handle, layout), handle)
    finally:
        os.close(handle)


def unpack_tensors(handle: int, layout: TensorLayout) -> dict[str, Tensor]:
    """The tensors in the memory behind a file descriptor, which may be closed afterwards."""
    memory = mmap.mmap(handle, _end(layout))
    tensors, place = {}, 0
    for name, (dtype, shape) in layout.items():
        kind, count = SHARED_DTYPES[dtype], prod(shape)
        flat = torch.frombuffer(memory, dtype=kind, count=count, offset=place) if count else torch.empty(0, dtype=kind)
        tensors[name] = flat.view(shape)
        place += _room(dtype, shape)
    return tensors


def layout_of(tensors: Mapping[str, Tensor]) -> TensorLayout:
    """The layout in which these tensors find room."""
    return {name: (str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)) for name, tensor in tensors.items()}


def _end(layout: TensorLayout) -> int:
    return sum(_room(dtype, shape) for dtype, shape in layout.values())


def _room(dtype: str, shape: tuple[int, ...]) -> int:
    """Bytes of one tensor and of what is left free behind it."""
    return -(-SHARED_DTYPES[dtype].itemsize * prod(shape) // SHARED_ALIGNMENT) * SHARED_ALIGNMENT


Do = Literal["begin", "load", "load_moments", "warm_up", "step", "weights", "moments", "evaluate", "held_bytes", "end"]
"""`end` is for other machines alone: the run is over. A process ends with its connection."""


@dataclass(frozen=True, slots=True)
class Begin:
    """The settings that a process needs before anything else. `manifest` is JSON, `device` the kind of device,
    `patience` the seconds that they wait for each other. They meet in `rendezvous`, a folder that is theirs alone; or,
    on several machines, at PyTorch's `store`, HOST:PORT, and `first` is the rank of the first process on this
    machine."""

    manifest: str
    ranks: int
    device: str
    rendezvous: str
    threads: int
    niceness: int
    patience: FiniteFloat
    precision: Precision = "exact"
    compiled: bool = False
    recompute: bool = False
    store: str = ""
    first: int = 0


@dataclass(frozen=True, slots=True)
class Order:
    """`layout`: of the tensors that come along, or, of what is asked for, that are to be filled in."""

    do: Do
    layout: TensorLayout = field(default_factory=dict)
    step: FiniteFloat = 0.0
    begin: Begin | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """`numbers` are losses; `sizes` what `Shard.held_bytes` says. With an error, its kind says whose fault it is."""

    numbers: tuple[float, ...] = ()
    sizes: Mapping[str, int] = field(default_factory=dict)
    error: str = ""
    kind: Literal["", "diverged", "memory", "failed"] = ""


def send_order(
    connection: "Connection[bytes, bytes]", order: Order, shared: SharedTensors | None, process: int
) -> None:
    """Send an order to a process, and the tensors of its layout.

    Raises:
        OSError: it has gone.
    """
    connection.send_bytes(encoded(order))
    if shared is not None:
        send_handle(connection, shared.handle, process)


def receive_order(connection: "Connection[bytes, bytes]") -> tuple[Order, dict[str, Tensor]]:
    """The daemon's next order, and its tensors.

    Raises:
        EOFError: there are no more.
    """
    order = read_order(connection.recv_bytes(MOST_ORDER_BYTES))
    if not order.layout:
        return order, {}
    handle = recv_handle(connection)
    try:
        return order, unpack_tensors(handle, order.layout)
    finally:
        os.close(handle)


def send_answer(connection: "Connection[bytes, bytes]", reply: Answer) -> None:
    """Send an answer to the daemon."""
    connection.send_bytes(encoded(reply))


def receive_answer(connection: "Connection[bytes, bytes]") -> Answer:
    """The answer of a process.

    Raises:
        EOFError: it has gone.
    """
    return read_answers(connection.recv_bytes(MOST_ORDER_BYTES))[0]


_ORDER, _ANSWERS = TypeAdapter(Order), TypeAdapter(Answer | tuple[Answer, ...])


def encoded(message: Order | Answer | tuple[Answer, ...]) -> bytes:
    """An order, an answer, or the answers of several processes, as JSON."""
    return json.dumps(
        [asdict(answer) for answer in message] if isinstance(message, tuple) else asdict(message)
    ).encode()


def read_order(message: bytes) -> Order:
    """An order from its JSON.

    Raises:
        FormatError: it is none.
    """
    try:
        return _ORDER.validate_json(message)
    except ValidationError as error:
        raise FormatError(f"no order of a daemon: {error.errors()[0]['msg']}") from None


def read_answers(message: bytes) -> tuple[Answer, ...]:
    """The answers of several processes from their JSON, or of one.

    Raises:
        FormatError: there are none.
    """
    try:
        answers = _ANSWERS.validate_json(message)
    except ValidationError as error:
        raise FormatError(f"no answer of a worker: {error.errors()[0]['msg']}") from None
    return answers if isinstance(answers, tuple) else (answers,)
