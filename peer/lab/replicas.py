"""The lab's replicas. Those of one kind take turns with one set of weights: each inner loop starts from θ anyway. A
replica's own are AdamW's moments and the error feedback.

What Subspace Networks (arXiv 2506.01260) do to a group's step, and the paper drops (HET, Table 5), is here as well.

Letters of shapes: V vocabulary, d = D width of the residual stream, k dimensions of the subspace.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import base58
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from peer.compute.arithmetic import Arithmetic
from peer.compute.design import Design, Kind
from peer.compute.replica import WholeReplica
from peer.compute.trainer import StageTrainer
from peer.data.batches import batch, in_turn
from peer.data.text import Text
from peer.lab.boundaries import GroupBoundaries
from peer.lab.switches import Switches
from peer.model.embedding import DenseEmbedding, Embedding, FactoredEmbedding, require_shape, split
from peer.optim.inner import AdamW
from peer.optim.muon import Muon, hidden
from peer.optim.outer import OuterState
from peer.telemetry.events import Listener, StepDone
from protocol.identity import Part, PeerId
from protocol.manifest import Inner, Manifest

WRITERS = ("o_proj.weight", "down_proj.weight")
"""What writes into the residual stream: [d, inputs]."""


class SubspaceTable(Embedding):
    """T⊥[x] + T_S[x] with a dense T_S [V, d] to train, which begins every inner loop in the subspace."""

    basis_dk: Tensor
    anchor_Vd: Tensor
    start_Vd: Tensor

    def __init__(self, vocabulary: int, basis_dk: Tensor) -> None:
        super().__init__()
        empty_Vd = torch.empty(vocabulary, len(basis_dk), device=basis_dk.device)
        self.ts_Vd = nn.Parameter(empty_Vd)
        self.register_buffer("basis_dk", basis_dk, persistent=False)
        self.register_buffer("anchor_Vd", empty_Vd.clone(), persistent=False)
        self.register_buffer("start_Vd", empty_Vd.clone(), persistent=False)

    def forward(self, tokens_BL: Tensor) -> Tensor:
        return F.embedding(tokens_BL, self.anchor_Vd) + F.embedding(tokens_BL, self.ts_Vd)

    @torch.no_grad()
    def load(self, te_Vd: Tensor) -> None:
        require_shape(te_Vd, self.anchor_Vd)
        anchor_Vd = split(te_Vd, self.basis_dk)[1]
        self.anchor_Vd.copy_(anchor_Vd)
        self.ts_Vd.copy_(te_Vd - anchor_Vd)
        self.start_Vd.copy_(self.ts_Vd)

    @torch.no_grad()
    def moved(self, start_Vd: Tensor) -> Tensor:
        return self.start_Vd - self.ts_Vd

    @torch.no_grad()
    def project(self) -> None:
        """T_S ← T_S U Uᵀ."""
        self.ts_Vd.copy_(self.ts_Vd @ self.basis_dk @ self.basis_dk.T)


@dataclass(slots=True)
class ColumnAdamW(AdamW):
    """AdamW whose second moment is one number for each column of the matrices in `constrained`.

    So a step is the first moment times a diagonal on the inputs' side: columns in a subspace stay in it.
    """

    constrained: set[int] = field(default_factory=set)
    """Places in `parameters`."""

    @torch.no_grad()
    def update(self, factor: float, rate: float) -> None:
        self.begin()
        first, second = self.inner.betas
        for i, parameter in enumerate(self.parameters):
            gradient = parameter.grad
            assert gradient is not None
            step, mean, square = (self.state[name][i] for name in ("step", "exp_avg", "exp_avg_sq"))
            gradient.mul_(factor)
            step += 1
            squared = gradient**2
            if i in self.constrained:
                squared = squared.mean(0, keepdim=True).expand_as(gradient)
            mean.lerp_(gradient, 1 - first)
            square.lerp_(squared, 1 - second)
            root = (square / (1 - second ** step.item())).sqrt().add_(self.inner.epsilon)
            parameter.mul_(1 - rate * self.inner.weight_decay)
            parameter.addcdiv_(mean, root, value=-rate / (1 - first ** step.item()))
            gradient.zero_()


def optimizer(stage: StageTrainer, switches: Switches) -> AdamW:
    """A new optimizer for one replica's stage."""
    inner: Inner = stage.manifest.inner
    if switches.optimizer == "muon":
        return Muon(stage.parameters, inner, hidden=hidden(stage.stage, stage.parameters))
    if switches.second_moment == "elements" or stage.kind == "datacenter" or not stage.manifest.compressed:
        return AdamW(stage.parameters, inner)
    wanted = {id(parameter) for parameter in _writers(stage)}
    return ColumnAdamW(
        stage.parameters, inner, constrained={i for i, each in enumerate(stage.parameters) if id(each) in wanted}
    )


@torch.no_grad()
def after_step(group: WholeReplica, switches: Switches, basis_dk: Tensor) -> None:
    """What is put back into the subspace after an inner step of a group."""
    if switches.embedding == "project":
        for stage in group.stages:
            if isinstance(stage.embedding, SubspaceTable):
                stage.embedding.project()
    if switches.weight_projection:
        for stage in group.stages:
            for weight in _writers(stage):
                weight.copy_(basis_dk @ (basis_dk.T @ weight))


def _writers(stage: StageTrainer) -> Sequence[nn.Parameter]:
    """Those of a stage before a boundary: the last is free, as in the field's code."""
    if stage.last:
        return []
    return [parameter for name, parameter in stage.stage.named_parameters() if name.endswith(WRITERS)]


Grids = dict[Part, dict[str, Tensor]]


@dataclass(slots=True)
class LabReplica:
    """One replica: its slot, AdamW's state by stage, and its error feedback by part (in `outer`)."""

    id: PeerId
    slot: int
    kind: Kind
    optimizers: list[AdamW]
    outer: dict[Part, OuterState]


@dataclass(slots=True)
class Workshop:
    """One set of weights for each kind of replica."""

    manifest: Manifest
    switches: Switches
    device: torch.device
    wholes: dict[Kind, WholeReplica]
    group: GroupBoundaries | None

    @staticmethod
    def open(
        manifest: Manifest, switches: Switches, basis_DD: Tensor, genesis_VD: Tensor, device: torch.device
    ) -> "Workshop":
        """Room for the kinds that the manifest has replicas of. `genesis_VD` is TE before round 1."""
        own, group = None, None
        if manifest.replicas.groups and manifest.compressed and switches != switches.without_groups:
            group = GroupBoundaries.begin(manifest, switches, basis_DD.to(device), genesis_VD.to(device))
            own = group_design(manifest, switches, group)
        kinds: list[Kind] = []
        if manifest.replicas.groups:
            kinds.append("group")
        if manifest.replicas.datacenters:
            kinds.append("datacenter")
        wholes = {
            kind: WholeReplica(manifest, kind, basis_DD, device, own if kind == "group" else None) for kind in kinds
        }
        return Workshop(manifest, switches, device, wholes, group)

    @property
    def through(self) -> Design | None:
        """The design that a group is evaluated with, if it is not the protocol's."""
        group = self.group
        if group is None:
            return None
        own = group_design(self.manifest, self.switches, group)
        return replace(own, boundaries=lambda te_VD: group.boundaries(te_VD, watched=False))

    def replica(self, slot: int, grids: dict[Part, dict[str, Tensor]]) -> LabReplica:
        """Groups have the first slots, datacenters the last, as in a swarm. All share the grids of θ."""
        kind: Kind = "group" if slot < self.manifest.replicas.groups else "datacenter"
        name = PeerId(base58.b58encode(f"lab {slot}".encode()).decode())
        optimizers = [optimizer(stage, self.switches) for stage in self.wholes[kind].stages]
        outer = {
            part: OuterState(self.manifest, part, grid, {name: torch.zeros_like(each) for name, each in grid.items()})
            for part, grid in grids.items()
        }
        return LabReplica(name, slot, kind, optimizers, outer)

    def seat(self, replica: LabReplica) -> WholeReplica:
        """The weights of its kind, with its own optimizers."""
        whole = self.wholes[replica.kind]
        for stage, own in zip(whole.stages, replica.optimizers, strict=True):
            stage.optimizer = own
        return whole

    def inner_step(self, replica: LabReplica, batch_SM: Tensor, step: int) -> float:
        """One inner step of the replica that is seated; its mean loss in nats per token."""
        whole = self.wholes[replica.kind]
        with self.computing():
            loss = whole.inner_step(batch_SM, step)
        if replica.kind == "group" and self.group is not None:
            after_step(whole, self.switches, self.group.basis_dk)
        return loss

    def compile(self) -> None:
        """Let torch compile every layer of every replica."""
        for whole in self.wholes.values():
            whole.compile_layers()

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Number format and attention as the switches have it, outside of the inner steps, too."""
        with self.arithmetic(self.device, self.manifest.model.context):
            yield

    @property
    def arithmetic(self) -> Arithmetic:
        """The number format that the switches ask for."""
        return Arithmetic("bf16" if self.switches.precision == "bf16" else "exact")


def group_design(manifest: Manifest, switches: Switches, group: GroupBoundaries) -> Design:
    """A group's token embedding and boundaries under these switches."""
    vocabulary, basis_dk = manifest.model.vocabulary, group.basis_dk

    def embedding() -> Embedding:
        if switches.anchor == "embedding":
            return DenseEmbedding(vocabulary, manifest.model.d).to(basis_dk.device)
        return (FactoredEmbedding if switches.embedding == "factor" else SubspaceTable)(vocabulary, basis_dk)

    return Design(embedding, group.boundaries, True, None if switches.anchor == "embedding" else basis_dk)


@dataclass(slots=True)
class Bench:
    """What all methods of the lab work with: M replicas in turn, one `grids` of θ that they share, and the text. Each
    replica has its own AdamW moments and error feedback."""

    manifest: Manifest
    grids: Grids
    workshop: Workshop
    replicas: list[LabReplica]
    tokens: Text

    def inner_loop(self, replica: LabReplica, round: int, ahead: Grids, emit: Listener) -> None:
        """H inner steps of one replica from θ, or, of the parts in `ahead`, from there."""
        steps = self.manifest.inner.steps
        whole = self.workshop.seat(replica)
        whole.load(self.grids, ahead)
        for step in range(steps):
            loss = self.workshop.inner_step(replica, self.batch(round, step, replica.slot), (round - 1) * steps + step)
            emit(StepDone(round, step, loss, self.manifest.tokens_per_step))

    def batch(self, round: int, step: int, slot: int) -> Tensor:
        """What a replica reads in an inner step: [sequences, L + 1]."""
        return torch.from_numpy(batch(self.tokens, self.manifest, in_turn(self.manifest, round, step, slot)))
