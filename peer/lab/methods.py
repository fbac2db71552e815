"""How the replicas' work becomes one model: SparseLoCo as the swarm does it, and what it is compared with; and what a
contribution's values become on their way, with the bytes that offsets and values take.

Each quantizer is a function of one tensor's kept values, in units of 2⁻²⁶, to what the receiver reads. The swarm's own
two are `protocol.codec.quantize`'s.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from peer.lab.replicas import Bench, Grids, LabReplica
from peer.lab.switches import Switches
from peer.model.embedding import FactoredEmbedding
from peer.optim import inner
from peer.optim.grid import to_float, to_int32, to_units
from peer.optim.outer import FACTOR_ONE, OuterState, eta
from peer.telemetry.events import Listener, StepDone
from protocol.codec import rice
from protocol.codec.bitstream import Int32Array
from protocol.codec.chunks import ChunkGrid, Offsets, chunk_grid
from protocol.codec.contribution import HEADER, Contribution, SparseTensor
from protocol.codec.quantize import payload_bytes, quantize
from protocol.identity import EMBEDDING, ContributionName, Part, RunId, stage_part
from protocol.layout import EMBEDDING_TENSOR
from protocol.manifest import Manifest
from protocol.tensor_formats import Codec

STATISTICAL_BINS = 4
STATISTICAL_RANGE = 6.0
"""Standard deviations that the bins cover (SparseLoCo's published code)."""


@dataclass(frozen=True, slots=True)
class Quantizer:
    """`apply`: values [n] → what the receiver reads [n]. `size`: bytes of n values."""

    apply: Callable[[Int32Array], Int32Array]
    size: Callable[[int], int]


def exact(values: Int32Array) -> Int32Array:
    """The quantizer that leaves every integer as it is."""
    return values


def sign(values: Int32Array) -> Int32Array:
    """The sign, times the mean magnitude; one bit has no zero, which becomes positive."""
    mean = np.abs(values).mean() if len(values) else 0.0
    read: Int32Array = np.rint(np.where(values < 0, -mean, mean)).astype(values.dtype)
    return read


def statistical(values: Int32Array) -> Int32Array:
    """Equal bins of 1.5 σ about the mean, each read as the mean of what fell into it: the field's "2-bit"."""
    mean = values.mean()
    centred = values - mean
    deviation = math.sqrt(float((centred**2).sum()) / max(1, len(values) - 1))
    width = STATISTICAL_RANGE * deviation / STATISTICAL_BINS or 1.0
    bins = np.clip(np.rint(centred / width) + STATISTICAL_BINS // 2, 0, STATISTICAL_BINS - 1).astype(int)
    counts = np.bincount(bins, minlength=STATISTICAL_BINS)
    sums = np.bincount(bins, weights=centred, minlength=STATISTICAL_BINS)
    means = np.divide(sums, counts, out=np.zeros(STATISTICAL_BINS), where=counts > 0)
    read: Int32Array = np.rint(means[bins] + mean).astype(values.dtype)
    return read


def of_the_protocol(codec: Codec) -> Quantizer:
    """A quantizer that a manifest may name."""
    return Quantizer(lambda values: quantize(values, codec)[1], lambda count: payload_bytes(count, codec))


QUANTIZERS = {
    "bf16": of_the_protocol("bf16"),
    "2bit": of_the_protocol("2bit"),
    "exact": Quantizer(exact, lambda count: 4 * count),
    "sign": Quantizer(sign, lambda count: 4 + math.ceil(count / 8)),
    "statistical": Quantizer(statistical, lambda count: 4 * (STATISTICAL_BINS + 1) + math.ceil(count / 4)),
}


def rice_bytes(offsets: Offsets, grid: ChunkGrid) -> int:
    """The bytes of the offsets in the Rice code of the swarm."""
    unary, rests = rice.encode_offsets(offsets, grid)
    return 4 + len(unary) + len(rests)


def plain_bytes(offsets: Offsets, grid: ChunkGrid) -> int:
    """The bytes of the offsets with ⌈log₂ size⌉ bits for each."""
    return math.ceil(sum(k * (size - 1).bit_length() for size, k in chunks(grid)) / 8)


def bound_bytes(offsets: Offsets, grid: ChunkGrid) -> int:
    """The bytes of the offsets with log₂ C(size, k) bits a chunk: no code of equally likely choices needs fewer."""
    return math.ceil(sum(math.log2(math.comb(size, k)) for size, k in chunks(grid)) / 8)


INDICES: dict[str, Callable[[Offsets, ChunkGrid], int]] = {
    "rice": rice_bytes,
    "plain": plain_bytes,
    "bound": bound_bytes,
}


def chunks(grid: ChunkGrid) -> list[tuple[int, int]]:
    """The pair (size, kept entries) of every chunk of a grid."""
    return [(grid.size, grid.k)] * grid.full + [(grid.tail, grid.tail_k)] * bool(grid.tail)


class Method(Protocol):
    """`sent_bytes`: what all replicas together have published so far."""

    sent_bytes: int

    def round(self, bench: Bench, round: int, emit: Listener) -> dict[Part, int]:
        """Train for a round and bring the lab's grids to its end; how many contributions each part got."""


def method(manifest: Manifest, switches: Switches, run: RunId) -> Method:
    """The method that the switches name."""
    if switches.method == "adamw":
        return PerStep(manifest)
    loco = SparseLoCo(manifest, switches, run)
    found = loco if switches.method == "sparseloco" else DiLoCo(manifest, switches.momentum)
    return Averaged(found, switches.average, switches.begin_at_average) if switches.average else found


@dataclass(slots=True)
class SparseLoCo:
    """HET, equations 1 and 2: top-k of the error feedback, quantized; the swarm's own code where the swarm has it."""

    manifest: Manifest
    switches: Switches
    run: RunId
    waiting: dict[int, dict[Part, list[Contribution]]] = field(default_factory=dict)
    """Contributions that are not applied yet, by round, in the order of the replicas."""
    sent_bytes: int = 0

    def round(self, bench: Bench, round: int, emit: Listener) -> dict[Part, int]:
        sent: dict[Part, list[Contribution]] = {part: [] for part in bench.grids}
        before = self.waiting.get(round - 1, {})

        def ahead(replica: LabReplica) -> Grids:
            return {part: replica.outer[part].with_own(each[replica.slot]) for part, each in before.items()}

        for trained in bench.trained(round, ahead, emit):
            for part, moved in trained.moved.items():
                sent[part].append(self._contribute(trained.replica, part, round, trained.steps[part], moved))
        self.waiting[round] = sent
        counts: dict[Part, int] = dict.fromkeys(bench.grids, 0)
        for due in self.manifest.outer.applied(round):
            for part, contributions in self.waiting.pop(due).items():
                working = [each for each in contributions if each.steps]
                bench.replicas[0].outer[part].replace([], working)
                counts[part] += len(working)
        return counts

    def _contribute(
        self, replica: LabReplica, part: Part, round: int, steps: int, moved: Mapping[str, Tensor]
    ) -> Contribution:
        state = replica.outer[part]
        plain = self.switches.values == "manifest" and self.switches.indices == "rice"
        if plain and not self.switches.learns:  # the wire's layout has no tensors of the lab's own
            blob, sent = state.contribute(self.run, round, replica.id, steps, moved)
            self.sent_bytes += len(blob)
            return sent
        state.absorb(moved)
        self.sent_bytes += HEADER.size + len(replica.id)
        sent = Contribution(self.run, ContributionName(part, round, replica.id), steps, self._quantized(state))
        state.take_out(sent)
        return sent

    def _quantized(self, state: OuterState) -> dict[str, SparseTensor]:
        outer = self.manifest.outer
        quantizer = QUANTIZERS[outer.values if self.switches.values == "manifest" else self.switches.values]
        kept = {}
        for name, picked in state.pick().items():
            grid = chunk_grid(tuple(state.error_feedback[name].shape), outer.chunk_side, outer.top_k)
            self.sent_bytes += INDICES[self.switches.indices](picked.offsets, grid) + quantizer.size(grid.kept)
            kept[name] = SparseTensor(picked.offsets, quantizer.apply(picked.values))
        return kept


@dataclass(slots=True)
class DiLoCo:
    """Dense pseudo-gradients and Nesterov momentum (arXiv 2311.08105): v ← μ v + Δ̄; θ ← θ − η (Δ̄ + μ v)."""

    manifest: Manifest
    momentum: float
    velocity: Grids = field(default_factory=dict)
    sent_bytes: int = 0

    def round(self, bench: Bench, round: int, emit: Listener) -> dict[Part, int]:
        total: Grids = {}
        for replica in bench.replicas:
            bench.inner_loop(replica, round, {}, emit)
            _add(total, bench.workshop.wholes[replica.kind].moved())
        for part, tensors in total.items():
            velocities = self.velocity.setdefault(
                part, {name: torch.zeros_like(each) for name, each in tensors.items()}
            )
            for name, tensor in tensors.items():
                mean = tensor / len(bench.replicas)
                velocity = velocities[name].mul_(self.momentum).add_(mean)
                step = eta(self.manifest.outer, round) / FACTOR_ONE * (mean + self.momentum * velocity)
                grid = bench.grids[part]
                grid[name] = to_int32(grid[name].to(torch.int64) - to_units(step), name)
                self.sent_bytes += 4 * tensor.numel() * len(bench.replicas)
        return dict.fromkeys(bench.grids, len(bench.replicas))


@dataclass(slots=True)
class Averaged:
    """Generalized primal averaging of outer states (GPA, arXiv 2512.17131). z moves as `method` has it, x ← μ x +
    (1 − μ) z is the model, and inner loops begin at y = ν x + (1 − ν) z.

    All three are on the grid, and functions of outer states that are closed, so peers would hold the same integers.
    """

    method: "SparseLoCo | DiLoCo"
    average: float
    """μ."""
    begin: float
    """ν."""
    last: Grids = field(default_factory=dict)
    """z; what the lab's grids have between two rounds is x."""

    @property
    def sent_bytes(self) -> int:
        return self.method.sent_bytes

    @sent_bytes.setter
    def sent_bytes(self, sent: int) -> None:
        self.method.sent_bytes = sent

    def round(self, bench: Bench, round: int, emit: Listener) -> dict[Part, int]:
        means = {part: dict(grid) for part, grid in bench.grids.items()}
        last = self.last or means
        begun = {part: mixed(self.begin, means[part], last[part]) for part in means}
        for part, grid in bench.grids.items():
            grid.update(begun[part])
        counts = self.method.round(bench, round, emit)
        for part, grid in bench.grids.items():
            moved = {name: each.to(torch.int64) - begun[part][name] for name, each in grid.items()}
            self.last[part] = {name: to_int32(last[part][name] + each, name) for name, each in moved.items()}
            grid.update(mixed(self.average, means[part], self.last[part]))
        return counts


def mixed(share: float, some: Mapping[str, Tensor], rest: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """`share` of some tensors and the rest of others, on the grid."""
    return {
        name: to_int32((share * each.double() + (1 - share) * rest[name].double()).round().to(torch.int64), name)
        for name, each in some.items()
    }


@dataclass(slots=True)
class PerStep:
    """AdamW on the mean gradient of all replicas in every step: no inner loops (HET, Table 4).

    The weights are kept in floats within a round's steps, and are one for all kinds of replicas; a compressed group's
    gradient by TE is that by T_S, projected.
    """

    manifest: Manifest
    weights: Grids = field(default_factory=dict)
    optimizer: inner.AdamW | None = None
    sent_bytes: int = 0

    def round(self, bench: Bench, round: int, emit: Listener) -> dict[Part, int]:
        steps = self.manifest.inner.steps
        if self.optimizer is None:
            self.begin(bench)
        assert self.optimizer is not None
        for step in range(steps):
            total: Grids = {}
            for replica in bench.replicas:
                loss = self._gradient(bench, replica, bench.batch(round, step, replica.slot), total)
                emit(StepDone(round, step, loss, self.manifest.tokens_per_step))
            for parameter, gradient in zip(self.optimizer.parameters, _flat(total, self.weights), strict=True):
                parameter.grad = gradient / len(bench.replicas)
            factor = inner.clip_factor([inner.squared_norm(self.optimizer.parameters)], self.manifest.inner.clip)
            self.optimizer.update(factor, inner.learning_rate(self.manifest, (round - 1) * steps + step))
            self.sent_bytes += 4 * sum(each.numel() for each in self.optimizer.parameters) * len(bench.replicas)
        for part, tensors in self.weights.items():
            for name, tensor in tensors.items():
                bench.grids[part][name] = to_int32(to_units(tensor.detach().cpu()), name)
        return dict.fromkeys(bench.grids, len(bench.replicas))

    def begin(self, bench: Bench) -> None:
        """Take the weights up from the grids, and make an optimizer of them."""
        for part, grid in bench.grids.items():
            self.weights[part] = {
                name: torch.nn.Parameter(to_float(each).to(bench.workshop.device)) for name, each in grid.items()
            }
        self.optimizer = inner.AdamW(_flat(self.weights, self.weights), self.manifest.inner)  # type: ignore[arg-type]

    def _gradient(self, bench: Bench, replica: LabReplica, batch_SM: Tensor, total: Grids) -> float:
        """Add one replica's gradient to the total; its loss."""
        whole = bench.workshop.wholes[replica.kind]
        te_VD = self.weights[EMBEDDING][EMBEDDING_TENSOR].detach()
        for stage in whole.stages:
            own = {name: each.detach() for name, each in self.weights[stage_part(stage.index)].items()}
            stage.start_from(own, te_VD)
        with bench.workshop.computing():
            loss = whole.gradients(batch_SM)
        for stage in whole.stages:
            gradients: Grids = {
                stage_part(stage.index): {n: p.grad for n, p in stage.stage.named_parameters() if p.grad is not None}
            }
            if stage.embedding is not None:
                (table,) = stage.embedding.parameters()
                assert table.grad is not None
                dense = table.grad
                if isinstance(stage.embedding, FactoredEmbedding):
                    dense = dense @ stage.embedding.basis_dk.T
                gradients[EMBEDDING] = {EMBEDDING_TENSOR: dense}
            _add(total, gradients)
            stage.abandon()
        return loss


def _add(total: Grids, more: Mapping[Part, Mapping[str, Tensor]]) -> None:
    for part, tensors in more.items():
        into = total.setdefault(part, {})
        for name, tensor in tensors.items():
            into[name] = into[name] + tensor if name in into else tensor.clone()


def _flat(tensors: Grids, order: Grids) -> list[Tensor]:
    return [tensors[part][name] for part, names in order.items() for name in names]
