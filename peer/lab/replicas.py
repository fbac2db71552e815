"""The lab's replicas. Those of one kind take turns with one set of weights: each inner loop starts from θ anyway. A
replica's own are AdamW's moments and the error feedback.

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
from peer.compute.replica import WholeReplica
from peer.compute.trainer import StageTrainer
from peer.data.batches import batch
from peer.data.text import Text
from peer.lab.boundaries import GroupBoundaries
from peer.lab.designs import KINDS, SubspaceTable, design_of
from peer.lab.false_payloads import falsify
from peer.lab.late import ClipFactors, LateGradients, OverlappingSteps, clip_of_overlap
from peer.lab.paths import absences, schedule
from peer.lab.pool import PoolRound
from peer.lab.shares import Shares
from peer.lab.stacked import StackedClip, StackedReplica, stackable
from peer.lab.switches import Switches
from peer.optim.inner import AdamW, place_in_run
from peer.optim.outer import OuterState
from peer.telemetry.events import Listener, StepDone
from protocol.identity import EMBEDDING, Part, PeerId, stage_part
from protocol.layout import writes_residual
from protocol.manifest import Manifest


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
    if switches.second_moment == "elements" or stage.kind == "datacenter" or not stage.manifest.compressed:
        return stage.new_optimizer()
    writers = {id(parameter) for parameter in _writers(stage)}
    wanted = {i for i, each in enumerate(stage.parameters) if id(each) in writers}
    return ColumnAdamW(stage.parameters, stage.manifest.inner, constrained=wanted)


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
    return [parameter for name, parameter in stage.stage.named_parameters() if writes_residual(name)]


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
    through: Design
    """The design that a group is evaluated with."""
    pool: list[WholeReplica] = field(default_factory=list)
    """Where paths are loose, the weights of each group: all its members train at once."""
    stacks: dict[Kind, StackedReplica] = field(default_factory=dict)
    """The weights of all replicas of a kind, where they train at once."""

    @staticmethod
    def open(
        manifest: Manifest,
        switches: Switches,
        basis_DD: Tensor,
        genesis_VD: Tensor,
        device: torch.device,
        stacked: bool = False,
    ) -> "Workshop":
        """Room for the kinds that the manifest has replicas of. `genesis_VD` is TE before round 1. `stacked`: replicas
        of a kind train at once, where they can."""
        group = None
        if manifest.replicas.groups and manifest.compressed and switches != switches.without_groups:
            group = GroupBoundaries.begin(manifest, switches, basis_DD.to(device), genesis_VD.to(device))
        designs = {kind: design_of(kind, manifest, switches, basis_DD, device, group) for kind in KINDS}
        pool: list[WholeReplica] = []
        if switches.paths == "loose":
            own = designs["group"]
            pool = [WholeReplica(manifest, "group", basis_DD, device, own) for _ in range(manifest.replicas.groups)]
        kinds: list[Kind] = []
        if manifest.replicas.groups and not pool:
            kinds.append("group")
        if manifest.replicas.datacenters:
            kinds.append("datacenter")
        wholes = {kind: WholeReplica(manifest, kind, basis_DD, device, designs[kind]) for kind in kinds}
        copies = {"group": manifest.replicas.groups, "datacenter": manifest.replicas.datacenters}
        stacks: dict[Kind, StackedReplica] = {}
        if stacked and stackable(manifest, switches):
            stacks = {kind: StackedReplica(whole, copies[kind]) for kind, whole in wholes.items()}
        through = designs["group"]
        if group is not None:
            through = replace(through, boundaries=partial(group.boundaries, watched=False))
        return Workshop(manifest, switches, device, wholes, group, through, pool, stacks)

    def complete(self, grids: Grids) -> None:
        """Add to θ before round 1 what stages learn beside the tensors of the manifest: it begins at zero."""
        whole = next(iter(self.wholes.values())) if self.switches.learns else None
        for stage in whole.stages if whole else ():
            own = stage.stage.tensors()
            begun = {name: torch.zeros(each.shape, dtype=torch.int32) for name, each in own.items()}
            grids[stage_part(stage.index)] = begun | grids[stage_part(stage.index)]

    def replica(self, slot: int, grids: dict[Part, dict[str, Tensor]]) -> LabReplica:
        """Groups have the first slots, datacenters the last, as in a swarm. All share the grids of θ."""
        kind: Kind = "group" if slot < self.manifest.replicas.groups else "datacenter"
        name = PeerId(base58.b58encode(f"lab {slot}".encode()).decode())
        optimizers = [optimizer(stage, self.switches) for stage in self.weights(kind, slot).stages]
        outer = {
            part: OuterState(self.manifest, part, grid, {name: torch.zeros_like(each) for name, each in grid.items()})
            for part, grid in grids.items()
        }
        return LabReplica(name, slot, kind, optimizers, outer)

    def weights(self, kind: Kind, slot: int) -> WholeReplica:
        """Those of a kind, which replicas use in turn; or, in a pool, a group's own."""
        return self.pool[slot] if self.pool and kind == "group" else self.wholes[kind]

    def seat(self, replica: LabReplica) -> WholeReplica:
        """The weights that a replica trains, with its own optimizers."""
        whole = self.weights(replica.kind, replica.slot)
        for stage, own in zip(whole.stages, replica.optimizers, strict=True):
            stage.optimizer = own
        return whole

    def inner_loop(self, kind: Kind, whole: WholeReplica) -> "InnerLoop":
        """An inner loop in weights that are to be loaded: of the replica that is seated, or of all of a kind."""
        if kind == "group" and self.manifest.inner.overlap:
            return InnerLoop(self, kind, OverlappingSteps(whole), clip_of_overlap(self.manifest.inner))
        late = LateGradients(whole, self.switches.late, self.switches.lookahead)
        stacked = isinstance(whole, StackedReplica)
        return InnerLoop(self, kind, late, StackedClip(self.clip.clip, self.clip.by_stage) if stacked else self.clip)

    @property
    def clip(self) -> ClipFactors:
        """By what the gradients of a replica are multiplied."""
        return ClipFactors(self.manifest.inner.clip, self.switches.clip == "stage")

    def compile(self) -> None:
        """Let torch compile every layer of every replica."""
        for whole in (*self.wholes.values(), *self.pool):
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


@dataclass(slots=True)
class InnerLoop:
    """An inner loop of a kind's weights: in numbers as the switches have them, with gradients that may be late."""

    workshop: Workshop
    kind: Kind
    late: LateGradients | OverlappingSteps
    clip: ClipFactors
    """By what gradients are multiplied."""

    def step(self, batch_SM: Tensor, at: float) -> float:
        """One batch, and the update that is due by now, `at` inner steps after the run's beginning; the batch's mean
        loss in nats per token."""
        workshop = self.workshop
        with workshop.computing():
            loss = self.late.step(batch_SM, at, self.clip)
        if self.kind == "group" and workshop.group is not None:
            after_step(self.late.whole, workshop.switches, workshop.group.basis_dk)
        return loss

    def finish(self, at: float) -> None:
        """The updates that are due still, at the rate of the last step."""
        self.late.finish(at, self.clip)


@dataclass(frozen=True, slots=True)
class Trained:
    """What a replica has done in a round: Δ of each part, to be used before others train, and the inner steps behind
    it."""

    replica: LabReplica
    moved: Mapping[Part, Mapping[str, Tensor]]
    steps: Mapping[Part, int]


@dataclass(slots=True)
class Bench:
    """What all methods of the lab work with: M replicas in turn, one `grids` of θ that they share, and the text. Each
    replica has its own AdamW moments and error feedback."""

    manifest: Manifest
    grids: Grids
    workshop: Workshop
    replicas: list[LabReplica]
    tokens: Text
    shares: Shares
    lateness: list[int] = field(default_factory=list)
    """By how many steps each gradient of a pool was late in the last round."""

    def trained(self, round: int, ahead: Callable[[LabReplica], Grids], emit: Listener) -> Iterator[Trained]:
        """The inner loops of a round, one replica after another; those of a pool are all over before its first is
        given. A replica starts from θ, or, of the parts in `ahead`, from there."""
        if self.workshop.stacks:
            for kind, stack in self.workshop.stacks.items():
                yield from self._stacked_round(kind, stack, round, emit)
            return
        pooled = self._pool_round(round, ahead, emit) if self.workshop.pool else []
        yield from pooled
        for replica in self.replicas[len(pooled) :]:
            steps = self.inner_loop(replica, round, ahead(replica), emit)
            moved = self.workshop.wholes[replica.kind].moved()
            yield Trained(replica, moved, dict.fromkeys(moved, steps))

    def inner_loop(self, replica: LabReplica, round: int, ahead: Grids, emit: Listener) -> int:
        """The inner steps of one replica from θ, or, of the parts in `ahead`, from there; how many there were: H, or by
        the replica's speed."""
        whole, workshop = self.workshop.seat(replica), self.workshop
        whole.load(self.grids, ahead)
        if workshop.switches.false != "none" and replica.slot == 0:
            falsify(whole.stages[1], workshop.switches.false, (self.manifest.run.seed, round))
        chunks = self.shares.chunks(round, replica.slot)
        loop = workshop.inner_loop(replica.kind, whole)
        places = [place_in_run(self.manifest, round, step, len(chunks)) for step in range(len(chunks))]
        for step, (chunk, place) in enumerate(zip(chunks, places, strict=True)):
            loss = loop.step(self.read(chunk), place)
            emit(StepDone(round, step, loss, self.manifest.tokens_per_step))
        loop.finish(places[-1])
        return len(chunks)

    def _stacked_round(self, kind: Kind, stack: StackedReplica, round: int, emit: Listener) -> Iterator[Trained]:
        """A round of all replicas of a kind, which take each step together."""
        own = [replica for replica in self.replicas if replica.kind == kind]
        stack.one.load(self.grids)
        stack.begin([replica.optimizers for replica in own])
        loop, first = self.workshop.inner_loop(kind, stack), (round - 1) * self.manifest.inner.steps
        for step in range(self.manifest.inner.steps):
            batch_MSL = torch.stack([self.batch(round, step, replica.slot) for replica in own])
            loss = loop.step(batch_MSL, first + step)
            emit(StepDone(round, step, loss, self.manifest.tokens_per_step * len(own)))
        loop.finish(first + self.manifest.inner.steps - 1)
        for place, replica in enumerate(own):
            moved = stack.give(place).moved()
            yield Trained(replica, moved, dict.fromkeys(moved, self.manifest.inner.steps))

    def read(self, chunk: int) -> Tensor:
        """A chunk: [sequences, L + 1]."""
        return torch.from_numpy(batch(self.tokens, self.manifest, chunk))

    def batch(self, round: int, step: int, slot: int) -> Tensor:
        """What a replica reads in an inner step: [sequences, L + 1]."""
        return self.read(self.shares.chunks(round, slot)[step])

    def _pool_round(self, round: int, ahead: Callable[[LabReplica], Grids], emit: Listener) -> list[Trained]:
        """A round of the groups' members, who take microbatches from each other as their speeds are."""
        wholes, manifest = self.workshop.pool, self.manifest
        members = self.replicas[: len(wholes)]
        for replica, whole in zip(members, wholes, strict=True):
            self.workshop.seat(replica)
            whole.load(self.grids, ahead(replica))
        chunks = [chunk for slot in range(len(wholes)) for chunk in self.shares.chunks(round, slot)]
        speeds = self.workshop.switches.shares[: len(wholes)] or [1] * len(wholes)
        total = len(chunks) * manifest.inner.microbatches
        drawn = (each for chunk in chunks for each in self.read(chunk).split(manifest.inner.microbatch))
        done = PoolRound.begin(wholes, drawn, total, round, self.workshop.clip, emit)
        stages, switches = [speeds] * manifest.replicas.stages, self.workshop.switches
        away = absences(stages, total, switches.churn, (manifest.run.seed, round))
        done.play(schedule(stages, total, switches.link, away))
        self.lateness = done.lateness
        return [
            Trained(
                replica,
                whole.moved(),
                {stage_part(stage): count for stage, count in enumerate(steps)} | {EMBEDDING: steps[0]},
            )
            for replica, whole, steps in zip(members, wholes, done.steps, strict=True)
        ]
