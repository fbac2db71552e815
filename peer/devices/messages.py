"""What the daemon and the processes of its crew say to each other: an order, and an answer, both small JSON. Tensors go
along as a `Parcel`.

Each process has a connection of its own to the daemon, which is its leash, too: when it ends, the process does.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from typing import Literal

from torch import Tensor

from peer.compute.arithmetic import Precision
from peer.devices.shared_memory import Parcel, TensorLayout, unpack_tensors

MOST_BYTES = 2**24

Do = Literal["begin", "load", "load_moments", "warm_up", "step", "moved", "moments", "evaluate", "held_bytes"]


@dataclass(frozen=True, slots=True)
class Begin:
    """What a process must know before it can do anything. `manifest` is JSON, `device` the kind of device, `rendezvous`
    a folder that is theirs alone, `patience` the seconds that they wait for each other."""

    manifest: str
    ranks: int
    device: str
    rendezvous: str
    threads: int
    niceness: int
    patience: float
    precision: Precision = "fp32"
    compiled: bool = False


@dataclass(frozen=True, slots=True)
class Order:
    """`layout`: of the tensors that come along, or, of what is asked for, that are to be filled in."""

    do: Do
    layout: TensorLayout = field(default_factory=dict)
    step: int = 0
    begin: Begin | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """`numbers` are losses; `sizes` what `Shard.held_bytes` says. With an error, its kind says whose fault it is."""

    numbers: tuple[float, ...] = ()
    sizes: Mapping[str, int] = field(default_factory=dict)
    error: str = ""
    kind: Literal["", "diverged", "memory", "failed"] = ""


def give(connection: "Connection[bytes, bytes]", order: Order, parcel: Parcel | None, process: int) -> None:
    """Send an order to a process, and the tensors of its layout.

    Raises:
        OSError: it has gone.
    """
    connection.send_bytes(json.dumps(asdict(order)).encode())
    if parcel is not None:
        send_handle(connection, parcel.handle, process)


def take(connection: "Connection[bytes, bytes]") -> tuple[Order, dict[str, Tensor]]:
    """The next order, and its tensors.

    Raises:
        EOFError: there are no more.
    """
    said = json.loads(connection.recv_bytes(MOST_BYTES))
    layout = {name: (dtype, tuple(shape)) for name, (dtype, shape) in said["layout"].items()}
    begin = Begin(**said["begin"]) if said["begin"] else None
    if not layout:
        return Order(said["do"], layout, said["step"], begin), {}
    handle = recv_handle(connection)
    try:
        return Order(said["do"], layout, said["step"], begin), unpack_tensors(handle, layout)
    finally:
        os.close(handle)


def answer(connection: "Connection[bytes, bytes]", said: Answer) -> None:
    """Send an answer to the daemon."""
    connection.send_bytes(json.dumps(asdict(said)).encode())


def hear(connection: "Connection[bytes, bytes]") -> Answer:
    """The answer of a process.

    Raises:
        EOFError: it has gone.
    """
    said = json.loads(connection.recv_bytes(MOST_BYTES))
    return Answer(tuple(said["numbers"]), said["sizes"], said["error"], said["kind"])
