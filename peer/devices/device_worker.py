"""A process of the crew: it computes what the daemon orders, and ends when the daemon does."""

import os
import shutil
import signal
import threading
import traceback
from datetime import timedelta
from multiprocessing.connection import Connection
from queue import SimpleQueue

import torch
import torch.distributed as dist
from torch import Tensor

from peer.compute.arithmetic import Arithmetic
from peer.compute.capacity import lower_priority
from peer.devices.messages import Answer, Begin, Order, answer, take
from peer.devices.shard import Shard
from protocol.errors import DivergedError
from protocol.manifest import Manifest

OrderQueue = SimpleQueue[tuple[Order, dict[str, Tensor]]]


def work(rank: int, handle: int) -> None:
    """Carry out orders until there are no more. `handle` is the file descriptor of the connection."""
    connection: Connection[bytes, bytes] = Connection(handle)
    order, _ = take(connection)
    assert order.begin is not None
    orders: OrderQueue = SimpleQueue()
    threading.Thread(target=_listen, args=(connection, orders, order.begin.rendezvous), daemon=True).start()
    try:
        shard = _begin(order.begin, rank)
        answer(connection, Answer())
        while True:
            answer(connection, _carry_out(shard, *orders.get()))
    except torch.OutOfMemoryError as error:
        answer(connection, Answer(error=str(error).splitlines()[0], kind="memory"))
    except Exception:  # the daemon says it, if no other process has ended: then this is but a consequence
        answer(connection, Answer(error=traceback.format_exc(), kind="failed"))
    signal.pause()  # until the daemon has understood


def _listen(connection: "Connection[bytes, bytes]", orders: OrderQueue, rendezvous: str) -> None:
    """Take orders from the daemon; when it has gone, end whatever is under way."""
    try:
        while True:
            orders.put(take(connection))
    except (EOFError, OSError):
        shutil.rmtree(rendezvous, ignore_errors=True)
        os._exit(0)


def _begin(begin: Begin, rank: int) -> Shard:
    """Meet the other processes, and make this one's share of the model."""
    lower_priority(begin.niceness)  # before torch's threads begin, which inherit it
    torch.set_num_threads(begin.threads)
    device = torch.device(begin.device, rank) if begin.device == "cuda" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        init_method=f"file://{begin.rendezvous}/store",  # a TCP store listens to everybody
        rank=rank,
        world_size=begin.ranks,
        timeout=timedelta(seconds=begin.patience),
        device_id=device if device.type == "cuda" else None,
    )
    arithmetic = Arithmetic(begin.precision, begin.compiled)
    return Shard(Manifest.model_validate_json(begin.manifest), rank, begin.ranks, device, arithmetic)


def _carry_out(shard: Shard, order: Order, tensors: dict[str, Tensor]) -> Answer:
    match order.do:
        case "load":
            shard.load(tensors)
        case "load_moments":
            shard.load_moments(tensors)
        case "warm_up":
            shard.warm_up()
        case "step":
            try:
                return Answer((shard.step(tensors["batch"].chunk(shard.ranks)[shard.rank], order.step),))
            except DivergedError as error:
                return Answer(error=str(error), kind="diverged")
        case "moved":
            shard.moved(tensors)
        case "moments":
            shard.moments(tensors)
        case "evaluate":
            basis = tensors.pop("basis", None)
            return Answer(shard.evaluate(tensors, tensors.pop("held_out"), basis))
        case "held_bytes":
            return Answer(sizes=shard.held_bytes())
    return Answer()
