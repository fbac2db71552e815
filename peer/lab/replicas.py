"""The lab's replicas. All of one kind take turns with one set of weights: each inner loop starts from θ anyway. A
replica has AdamW's moments and the error feedback of its own.

What Subspace Networks (arXiv 2506.01260) do to a group's step, and the paper drops (HET, Table 5), is here as well.

Letters of shapes: V vocabulary, d = D width of the residual stream, k dimensions of the subspace.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

import base58
import torch
from torch import Tensor, nn

from peer.compute.arithmetic import Arithmetic
from peer.compute.design import Design, Kind
from peer.compute.fitting import fits_device, manifest_on
from peer.compute.replica import WholeReplica
from peer.compute.trainer import StageTrainer
from peer.data.batches import batch
from peer.data.text import Text
from peer.lab.boundaries import GroupBoundaries
from peer.lab.designs import KINDS, SubspaceTable, design_of
from peer.lab.inner_steps import ClipFactors, OverlappingSteps, PlainSteps, clip_of_overlap
from peer.lab.shares import Shares
from peer.lab.switches import Switches
from peer.optim.inner import AdamW, place_in_run
from peer.optim.outer import OuterState
from peer.planning.memory import PROCESS_BYTES, Duty
from protocol.events.activity import StepDone
from protocol.events.event import Listener
from protocol.identity import Part, PeerId
from protocol.layout import writes_residual
from protocol.manifest import Manifest


@dataclass(slots=True)
class ColumnAdamW(AdamW):
    """AdamW whose second moment is one number for each column of the matrices in `constrained`.

    So a step is the first moment times a diagonal on the inputs' side: columns in a subspace stay in it.
    """

    constrained: set[int] = field(default_factory=set)
    """Indices of `parameters`."""

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
    if switches.second_moment == "elements" or stage.kind == "datacenter" or not stage.manifest.compressed:
        return stage.new_optimizer()
    writers = {id(parameter) for parameter in _writers(stage)}
    constrained = {i for i, parameter in enumerate(stage.parameters) if id(parameter) in writers}
    return ColumnAdamW(stage.parameters, stage.manifest.inner, constrained=constrained)


@torch.no_grad()
def after_step(group: WholeReplica, switches: Switches, basis_dk: Tensor) -> None:
    """Put back into the subspace what the switches keep there, after an inner step of a group."""
    if switches.embedding == "project":
        for stage in group.stages:
            if isinstance(stage.embedding, SubspaceTable):
                stage.embedding.project()
    if switches.weight_projection:
        for stage in group.stages:
            for weight in _writers(stage):
                weight.copy_(basis_dk @ (basis_dk.T @ weight))


def _writers(stage: StageTrainer) -> Sequence[nn.Parameter]:
    """The weights that write into the residual stream, of a stage before a boundary: the last stage is free, as in the
    field's code."""
    if stage.last:
        return []
    model = stage.manifest.model
    return [parameter for name, parameter in stage.stage.named_parameters() if writes_residual(model, name)]


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
class SharedWeights:
    """One set of weights for each kind of replica."""

    manifest: Manifest
    switches: Switches
    device: torch.device
    wholes: dict[Kind, WholeReplica]
    group: GroupBoundaries | None
    through: Design
    """The design that a group is evaluated with."""

    @staticmethod
    def open(
        manifest: Manifest,
        switches: Switches,
        basis_DD: Tensor,
        genesis_VD: Tensor,
        device: torch.device,
    ) -> "SharedWeights":
        """Room for the kinds that the manifest has replicas of. `genesis_VD` is TE before round 1."""
        group = None
        if manifest.replicas.groups and manifest.compressed and switches != switches.without_groups:
            group = GroupBoundaries.begin(manifest, switches, basis_DD.to(device), genesis_VD.to(device))
        designs = {kind: design_of(kind, manifest, switches, basis_DD, device, group) for kind in KINDS}
        counts = {"group": manifest.replicas.groups, "datacenter": manifest.replicas.datacenters}
        fits = fits_device(device, Duty("datacenter"), None, PROCESS_BYTES)
        computed = {"group": manifest, "datacenter": manifest_on(device, manifest, fits)}
        wholes = {
            kind: WholeReplica(computed[kind], kind, basis_DD, device, designs[kind]) for kind in KINDS if counts[kind]
        }
        through = designs["group"]
        if group is not None:
            through = replace(through, boundaries=partial(group.boundaries, watched=False))
        return SharedWeights(manifest, switches, device, wholes, group, through)

    def replica(self, slot: int, grids: dict[Part, dict[str, Tensor]]) -> LabReplica:
        """A new replica. Groups have the first slots, datacenters the last, as in a swarm. All share the grids of θ."""
        kind: Kind = "group" if slot < self.manifest.replicas.groups else "datacenter"
        name = PeerId(base58.b58encode(f"lab {slot}".encode()).decode())
        optimizers = [optimizer(stage, self.switches) for stage in self.wholes[kind].stages]
        outer = {
            part: OuterState(
                self.manifest, part, grid, {name: torch.zeros_like(tensor) for name, tensor in grid.items()}
            )
            for part, grid in grids.items()
        }
        return LabReplica(name, slot, kind, optimizers, outer)

    def activate(self, replica: LabReplica) -> WholeReplica:
        """The weights that a replica trains, with its own optimizers."""
        whole = self.wholes[replica.kind]
        for stage, own in zip(whole.stages, replica.optimizers, strict=True):
            stage.optimizer = own
        return whole

    def inner_loop(self, kind: Kind) -> "InnerLoop":
        """An inner loop in the weights of a kind, which are loaded, of the replica that is active."""
        whole, inner = self.wholes[kind], self.manifest.inner
        if kind == "group" and inner.overlap:
            return InnerLoop(self, kind, OverlappingSteps(whole), clip_of_overlap(inner))
        return InnerLoop(self, kind, PlainSteps(whole), ClipFactors(inner.clip))

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Number format and attention as the switches have it, outside of the inner steps, too."""
        arithmetic = Arithmetic("bf16" if self.switches.precision == "bf16" else "exact")
        with arithmetic(self.device, self.manifest.model.context):
            yield


@dataclass(slots=True)
class InnerLoop:
    """An inner loop of a kind's weights, in numbers as the switches have them."""

    weights: SharedWeights
    kind: Kind
    steps: PlainSteps | OverlappingSteps
    clip: ClipFactors

    def step(self, batch_SM: Tensor, at: float) -> float:
        """One batch and its update, `at` inner steps after the run's beginning; the batch's mean loss in nats per
        token."""
        weights = self.weights
        with weights.computing():
            loss = self.steps.step(batch_SM, at, self.clip)
        if self.kind == "group" and weights.group is not None:
            after_step(self.steps.replica, weights.switches, weights.group.basis_dk)
        return loss


@dataclass(frozen=True, slots=True)
class Trained:
    """The work of a replica in a round: Δ of each part, to be used before others train, and the number of inner
    steps."""

    replica: LabReplica
    moved: Mapping[Part, Mapping[str, Tensor]]
    steps: int


@dataclass(slots=True)
class LabSwarm:
    """The swarm of the lab: M replicas, which take turns, one `grids` of θ that they share, and the text."""

    manifest: Manifest
    grids: Grids
    weights: SharedWeights
    replicas: list[LabReplica]
    tokens: Text
    shares: Shares

    def trained(self, round: int, ahead: Callable[[LabReplica], Grids], emit: Listener) -> Iterator[Trained]:
        """The inner loops of a round, one replica after another. A replica starts from θ, or, of the parts in `ahead`,
        from there."""
        for replica in self.replicas:
            steps = self.inner_loop(replica, round, ahead(replica), emit)
            yield Trained(replica, self.weights.wholes[replica.kind].moved(), steps)

    def inner_loop(self, replica: LabReplica, round: int, ahead: Grids, emit: Listener) -> int:
        """The inner steps of one replica from θ, or, of the parts in `ahead`, from there; how many there were: H, or by
        the replica's speed."""
        self.weights.activate(replica).load(self.grids, ahead)
        chunks = self.shares.chunks(round, replica.slot)
        loop = self.weights.inner_loop(replica.kind)
        for step, chunk in enumerate(chunks):
            loss = loop.step(self.read(chunk), place_in_run(self.manifest, round, step, len(chunks)))
            emit(StepDone(round, step, loss, self.manifest.tokens_per_step))
        return len(chunks)

    def read(self, chunk: int) -> Tensor:
        """A chunk: [sequences, L + 1]."""
        return torch.from_numpy(batch(self.tokens, self.manifest, chunk))

    def batch(self, round: int, step: int, slot: int) -> Tensor:
        """The batch of a replica's inner step: [sequences, L + 1]."""
        return self.read(self.shares.chunks(round, slot)[step])
