"""A process of the worker pool: it computes its share of a datacenter replica, as the daemon orders, and ends when the
daemon does.

The share is a part of the rows of every weight, gradient and moment (FSDP2). Each of N processes runs the whole model
over its share of the sequences. A layer's weights are together only while it computes; its gradients are averaged over
the processes, and each keeps its own rows of them. So the losses are those of one process but for the order of sums.
"""

import os
import shutil
import signal
import threading
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from peer.compute.arithmetic import Arithmetic
from peer.compute.capacity import give_large_blocks_back, lower_priority
from peer.compute.design import Boundaries, design
from peer.devices.messages import Answer, Begin, Order, receive_order, send_answer
from peer.devices.weights import EMBEDDING_STAGE, embedding_key, rows_at_ranks, trained
from peer.model.stage import Stage
from peer.optim import inner
from peer.optim.muon import Muon, make_optimizer
from protocol.addresses import split_address
from protocol.errors import DivergedError
from protocol.layout import Shape
from protocol.manifest import Manifest

OrderQueue = SimpleQueue[tuple[Order, dict[str, Tensor]]]


class WholeModel(nn.Module):
    """All stages, with nothing between them."""

    def __init__(self, manifest: Manifest) -> None:
        super().__init__()
        self.embedding = nn.Embedding(manifest.model.vocabulary, manifest.model.d)
        self.stages = nn.ModuleList(Stage(manifest, stage) for stage in range(manifest.replicas.stages))

    def forward(self, tokens_BM: Tensor, boundaries: Boundaries | None = None) -> Tensor:
        """Token ids [B, L + 1] → mean loss, a scalar in nats per token; through these boundaries, if any, as a
        group's."""
        tokens_BL = tokens_BM[:, :-1]
        x_BLD: Tensor = self.embedding(tokens_BL)
        for index, stage in enumerate(self.stages):
            if index and boundaries is not None:
                boundary = boundaries(index - 1)
                x_BLD = boundary.decode(boundary.encode(x_BLD, tokens_BL), tokens_BL)
            x_BLD = stage(x_BLD, tokens_BL)
        last = self.stages[-1]
        assert isinstance(last, Stage)
        loss: Tensor = last.lm_head(x_BLD, tokens_BM[:, 1:])
        return loss

    def keyed(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Every parameter with its key (`peer/devices/weights.py`)."""
        for index, stage in enumerate(self.stages):
            own = [*stage.parameters(), *(self.embedding.parameters() if index == EMBEDDING_STAGE else ())]
            yield from ((f"{index}.{number}", parameter) for number, parameter in enumerate(own))


@dataclass(slots=True)
class ShardedMuon(Muon):
    """Muon where each process has some rows of every matrix: `whole` has the shapes of all of them. All processes put a
    matrix together, and find the same direction."""

    whole: Sequence[Shape] = ()
    rank: int = 0

    def step_of(self, number: int, gradient: Tensor) -> Tensor:
        shape, ranks = self.whole[number], dist.get_world_size()
        rows = -(-shape[0] // ranks)
        own = gradient.new_zeros(rows, shape[1])
        own[: len(gradient)] = gradient
        together = gradient.new_empty(ranks * rows, shape[1])
        dist.all_gather([*together.split(rows)], own)
        return rows_at_ranks(Muon.step_of(self, number, together[: shape[0]]), ranks, self.rank)


class Shard:
    """The share of the process `rank` of `ranks`, which have one process group. It is loaded before it is used.

    All processes call `step` and `evaluate` alike: each pass is a sequence of collectives.
    """

    def __init__(
        self, manifest: Manifest, rank: int, ranks: int, device: torch.device, arithmetic: Arithmetic | None = None
    ) -> None:
        self.manifest, self.rank, self.ranks, self.device = manifest, rank, ranks, device
        self.arithmetic = arithmetic or Arithmetic()
        self.model = _sharded(manifest, ranks, device, self.arithmetic)
        parameters = dict(self.model.keyed())
        self.keys = list(parameters)
        self.whole = [_as_dtensor(parameter) for parameter in parameters.values()]
        self.own = [nn.Parameter(_own_rows(parameter), requires_grad=False) for parameter in self.whole]
        self.optimizer = self._new_optimizer()

    def _new_optimizer(self) -> inner.AdamW:
        """The manifest's optimizer of the rows that are here. Muon's step of a matrix needs all of its rows."""
        names = {key: weight.name for key, weight in trained(self.manifest).items()}
        found = make_optimizer(self.own, [names[key] for key in self.keys], self.manifest)
        if not isinstance(found, Muon):
            return found
        shapes = [tuple(whole.shape) for whole in self.whole]
        return ShardedMuon(self.own, self.manifest.inner, hidden=found.hidden, whole=shapes, rank=self.rank)

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Start a round from these weights, whole ones, by key. The moments stay."""
        with torch.no_grad():
            for key, own in zip(self.keys, self.own, strict=True):
                own.copy_(self._rows(weights[key]))

    def load_moments(self, moments: Mapping[str, Tensor]) -> None:
        """Take up the optimizer's state, whole tensors by key."""
        rows = {
            f"{number}.{name}": self._rows(moments[f"{key}.{name}"])
            for number, key in enumerate(self.keys)
            for name in inner.ADAMW_STATE
        }
        self.optimizer.load(rows)

    def warm_up(self) -> None:
        """Let torch compile now what it compiles at its first use."""
        if self.arithmetic.compiled:
            sequences = min(self.manifest.inner.microbatch, self.manifest.inner.sequences // self.ranks)
            self._gradients(torch.zeros(sequences, self.manifest.model.context + 1, dtype=torch.int64))
            for whole in self.whole:
                whole.grad = None

    def step(self, batch_SM: Tensor, step: float) -> float:
        """One inner step, of which this process has the sequences `batch_SM` [S / N, L + 1]; the mean loss over all
        processes, in nats per token. `step` is its place in the run.

        Raises:
            DivergedError: the gradient is not a number; at all processes.
        """
        losses = self._gradients(batch_SM)
        for own_rows, whole in zip(self.own, self.whole, strict=True):
            assert isinstance(whole.grad, DTensor)
            own_rows.grad = _own_rows(whole.grad)
        mean, norm = self._sums(losses.item() / self.ranks, inner.squared_norm(self.own))
        factor = inner.clip_factor([norm], self.manifest.inner.clip)
        self.optimizer.update(factor, inner.learning_rate(self.manifest, step))
        return mean

    def _gradients(self, batch_SM: Tensor) -> Tensor:
        """Add the gradients of a batch to what there is; its mean loss. Copies of weights in bf16 are made for each
        microbatch anew: kept, they would be the whole model on every device."""
        losses = torch.zeros((), device=self.device)
        with self.arithmetic(self.device, self.manifest.model.context, cached=False):
            for tokens_BM in batch_SM.to(self.device).split(self.manifest.inner.microbatch):
                value = self.model(tokens_BM) * (len(tokens_BM) / len(batch_SM))
                value.backward()
                losses += value.detach()
        return losses

    def weights(self, into: Mapping[str, Tensor]) -> None:
        """Write the rows of the weights that are here, to their places in whole tensors."""
        for key, own in zip(self.keys, self.own, strict=True):
            self._rows(into[key]).copy_(own.detach())

    def moments(self, into: Mapping[str, Tensor]) -> None:
        """Write the optimizer's state of the rows that are here, to their places in whole tensors."""
        for name, of in self.optimizer.state.items():
            for key, tensor in zip(self.keys, of, strict=True):
                self._rows(into[f"{key}.{name}"]).copy_(tensor)

    @torch.no_grad()
    def evaluate(
        self, weights: Mapping[str, Tensor], held_out_EM: Tensor, basis_DD: Tensor | None
    ) -> tuple[float, float]:
        """(loss through the boundaries, plain loss) of these weights, in nats per token, as `Evaluator` has them.

        The weights take the place of those in training: it is between two rounds.
        """
        self.load(weights)
        group = design(self.manifest, "group", basis_DD, self.device)
        te_VD = weights[embedding_key(self.manifest)].to(self.device, copy=True) if group.anchored else None
        through = self._held_out_loss(held_out_EM, group.boundaries(te_VD))
        return through, self._held_out_loss(held_out_EM, None)

    def _held_out_loss(self, held_out_EM: Tensor, boundaries: Boundaries | None) -> float:
        """The sequences are dealt out. Who has none in a pass computes any one, as all must take part, and does not
        count it."""
        count = len(held_out_EM)
        mine = torch.arange(self.rank, -(-count // self.ranks) * self.ranks, self.ranks)
        total = 0.0
        for some in mine.split(self.manifest.inner.microbatch):
            own = some[some < count]
            tokens_BM = held_out_EM[own if len(own) else some[:1] % count].to(self.device)
            total += len(own) * self.model(tokens_BM, boundaries).item()
        return self._sums(total)[0] / count

    def held_bytes(self) -> dict[str, int]:
        """The bytes that stay on this device for as long as it trains, by kind."""
        gradients = [_own_rows(whole.grad) for whole in self.whole if isinstance(whole.grad, DTensor)]
        moments = [moment for name in inner.MOMENTS for moment in self.optimizer.state.get(name, ())]
        return {
            "weights": _bytes(self.own),
            "gradients": _bytes(gradients),
            "moments": _bytes(moments),
        }

    def _rows(self, tensor: Tensor) -> Tensor:
        """The rows that are here of a whole tensor; a scalar is everywhere."""
        return rows_at_ranks(tensor, self.ranks, self.rank)

    def _sums(self, *values: float) -> list[float]:
        """The sum of each value over all processes."""
        sums = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(sums)
        found: list[float] = sums.tolist()
        return found


def _sharded(manifest: Manifest, ranks: int, device: torch.device, arithmetic: Arithmetic) -> WholeModel:
    """The model with its rows dealt out, empty: nowhere is it whole. Together are at a time a layer, the embedding, the
    head, or a stage's n-gram tables."""
    mesh = init_device_mesh(device.type, (ranks,))
    with torch.device("meta"):
        model = WholeModel(manifest)
    for stage in model.stages:
        assert isinstance(stage, Stage)
        stage.recompute = arithmetic.recompute
        if arithmetic.compiled:
            stage.compile_layers()
        for layer in (*stage.model.ngrams.values(), *stage.model.layers.values()):
            fully_shard(layer, mesh=mesh)
        if stage.last:  # not left to the root, which FSDP leaves together after a pass: it would evaluate old weights
            fully_shard([stage.model.norm, stage.lm_head], mesh=mesh)
    fully_shard(model.embedding, mesh=mesh)
    fully_shard(model, mesh=mesh)
    model.to_empty(device=device)
    return model


def _bytes(tensors: Iterable[Tensor]) -> int:
    """The memory behind them; several may lie in one piece."""
    pieces = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum(pieces.values())


def _as_dtensor(parameter: nn.Parameter) -> DTensor:
    assert isinstance(parameter, DTensor)
    return parameter


def _own_rows(whole: DTensor) -> Tensor:
    """The rows that are here: the same memory, without FSDP's wrapping."""
    rows: Tensor = whole.to_local().detach()
    return rows


def work(rank: int, handle: int) -> None:
    """Carry out the daemon's orders until the connection to it ends, and with it this process. `handle` is the file
    descriptor of the connection. After an error, wait for that end."""
    connection: Connection[bytes, bytes] = Connection(handle)
    order, _ = receive_order(connection)
    assert order.begin is not None
    orders: OrderQueue = SimpleQueue()
    threading.Thread(target=_listen, args=(connection, orders, order.begin.rendezvous), daemon=True).start()
    try:
        shard = _begin(order.begin, rank)
        send_answer(connection, Answer())
        while True:
            send_answer(connection, _carry_out(shard, *orders.get()))
    except torch.OutOfMemoryError as error:
        send_answer(connection, Answer(error=(str(error).splitlines() or [repr(error)])[0], kind="memory"))
    except Exception:  # the daemon shows it unless another process has ended, of which it is only a consequence
        send_answer(connection, Answer(error=traceback.format_exc(), kind="failed"))
    signal.pause()  # until the daemon has read the answer, and ends the connection


def _listen(connection: "Connection[bytes, bytes]", orders: OrderQueue, rendezvous: str) -> None:
    """Take orders from the daemon; when it has gone, end whatever is under way."""
    try:
        while True:
            orders.put(receive_order(connection))
    except (EOFError, OSError):
        if rendezvous:
            shutil.rmtree(rendezvous, ignore_errors=True)
        os._exit(0)


def _begin(begin: Begin, rank: int) -> Shard:
    """Meet the other processes, and make this one's share of the model."""
    lower_priority(begin.niceness)  # before torch's threads begin, which inherit it
    give_large_blocks_back()
    torch.set_num_threads(begin.threads)
    device = torch.device(begin.device, rank - begin.first) if begin.device == "cuda" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    patience = timedelta(seconds=begin.patience)
    store: Any = None
    if begin.store:
        host, port = split_address(begin.store)
        store = dist.TCPStore(host, port, begin.ranks, False, patience)  # type: ignore[attr-defined]
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        init_method=None if begin.store else f"file://{begin.rendezvous}/store",  # a TCP store listens to everybody
        store=store,
        rank=rank,
        world_size=begin.ranks,
        timeout=patience,
        device_id=device if device.type == "cuda" else None,
    )
    arithmetic = Arithmetic(begin.precision, begin.compiled, begin.recompute)
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
        case "weights":
            shard.weights(tensors)
        case "moments":
            shard.moments(tensors)
        case "evaluate":
            basis = tensors.pop("basis", None)
            return Answer(shard.evaluate(tensors, tensors.pop("held_out"), basis))
        case "held_bytes":
            return Answer(sizes=shard.held_bytes())
    return Answer()
