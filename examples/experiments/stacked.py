"""All replicas of a kind, trained at once: every weight has a copy for each of M replicas, and one kernel computes what
would be M small ones. A small model leaves a GPU idle otherwise, which waits for the next kernel most of the time.

The replicas differ in their weights, moments and texts alone, so they share everything else: θ that a round begins
from, the boundaries, the schedule of learning rates. Sums run in another order than one replica's own do: the last bits
of a run are not the swarm's.

Letters of shapes: M replicas, B sequences of each, L tokens of a sequence, V vocabulary, d = D width.
"""

import copy
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from peer.compute.design import Kind
from peer.compute.replica import WholeReplica
from peer.compute.trainer import StageTrainer
from peer.lab.inner_steps import ClipFactors, PlainSteps
from peer.lab.reference_run import Lab
from peer.lab.replicas import Grids, InnerLoop, LabReplica, LabSwarm, Trained
from peer.lab.switches import Switches
from peer.model.embedding import DenseEmbedding, Embedding, FactoredEmbedding
from peer.model.head import Head
from peer.model.ngrams import Ngrams, ngram_rows
from peer.optim.inner import AdamW, OptimizerState, clip_factor
from peer.optim.muon import COEFFICIENTS, ITERATIONS, MOMENTUM, SMALLEST_NORM, Muon, step_scale
from protocol.architectures.llama.layer import Linear
from protocol.events.activity import StepDone
from protocol.events.event import Listener
from protocol.manifest import Manifest

WIDEST = 512
"""d of a model of which a replica alone leaves a GPU idle."""


def stackable(manifest: Manifest, switches: Switches) -> bool:
    """Whether replicas of such a run do the same at the same time, each in its own numbers."""
    plain = Switches(values=switches.values, adaptation=switches.adaptation, precision=switches.precision)
    overlaps = manifest.outer.overlap or manifest.inner.overlap
    return switches == plain and not overlaps and not manifest.inner.most_steps and manifest.model.d <= WIDEST


def hasten(lab: Lab) -> None:
    """Let a lab on a GPU train all replicas of a kind at once, or, where they cannot, compile their layers. Its last
    bits are not a swarm's then."""
    swarm = lab.swarm
    if stackable(swarm.manifest, swarm.weights.switches):
        lab.swarm = StackedSwarm.begin(swarm)
        return
    for whole in swarm.weights.wholes.values():
        whole.compile_layers()
    lab.evaluator.compile()


def by_replica(x: Tensor, weights: Tensor) -> Tensor:
    """x [M B, …, inputs] times the weights [M, inputs, outputs] of each replica → [M B, …, outputs]."""
    copies, inputs, outputs = weights.shape
    return torch.bmm(x.reshape(copies, -1, inputs), weights).view(*x.shape[:-1], outputs)


def in_stack(rows_BL: Tensor, copies: int, rows: int) -> Tensor:
    """Where rows [M B, L] of each replica's own table are in all M tables of so many rows behind one another."""
    first_M = torch.arange(copies, device=rows_BL.device) * rows
    return (rows_BL.reshape(copies, -1) + first_M[:, None]).view(rows_BL.shape)


class StackedLinear(nn.Module):
    """y = x Wᵀ with a W [outputs, inputs] for each replica."""

    def __init__(self, one: Linear, copies: int) -> None:
        super().__init__()
        self.weight = stacked_parameter(one.weight, copies)

    def forward(self, x: Tensor) -> Tensor:
        """[M B, …, inputs] → [M B, …, outputs]."""
        return by_replica(x, self.weight.mT)


class StackedNorm(nn.Module):
    """RMSNorm with gains [d] for each replica."""

    def __init__(self, one: nn.RMSNorm, copies: int) -> None:
        super().__init__()
        self.weight = stacked_parameter(one.weight, copies)
        self.eps = one.eps

    def forward(self, x: Tensor) -> Tensor:
        """[M B, L, d] → the same shape."""
        copies, width = self.weight.shape
        normal = F.rms_norm(x, (width,), eps=self.eps).view(copies, -1, width)
        return (normal * self.weight[:, None]).view(x.shape)


class StackedHead(nn.Module):
    """The head of each replica; all logits exist together."""

    def __init__(self, one: Head, copies: int) -> None:
        super().__init__()
        self.weight = stacked_parameter(one.weight, copies)

    def forward(self, x_BLD: Tensor, targets_BL: Tensor) -> Tensor:
        """The sum over the replicas of their mean cross-entropies, a scalar in nats a token: its gradient by a
        replica's weights is that of the replica's own mean."""
        logits_BLV = by_replica(x_BLD, self.weight.mT)
        total = F.cross_entropy(logits_BLV.float().flatten(0, -2), targets_BL.flatten(), reduction="sum")
        return total * len(self.weight) / targets_BL.numel()


class StackedEmbedding(nn.Module):
    """The token embedding of each replica. What is no parameter, T⊥, is that of the plain one, which all share."""

    def __init__(self, one: Embedding, copies: int) -> None:
        super().__init__()
        (parameter,) = one.parameters()
        self.table = stacked_parameter(parameter, copies)
        self.shared = [one] if isinstance(one, FactoredEmbedding) else []  # in a list: no module of this one

    def forward(self, tokens_BL: Tensor) -> Tensor:
        """[M B, L] → [M B, L, d]."""
        copies, vocabulary, columns = self.table.shape
        found = F.embedding(in_stack(tokens_BL, copies, vocabulary), self.table.view(-1, columns))
        for one in self.shared:
            found = F.embedding(tokens_BL, one.anchor_Vd) + found @ one.basis_dk.T
        return found


class StackedNgrams(Ngrams):
    """The n-gram tables of each replica."""

    def __init__(self, one: Ngrams, copies: int) -> None:
        nn.Module.__init__(self)
        for n, table_nr in one.named_parameters(recurse=False):
            self.register_parameter(n, stacked_parameter(table_nr, copies))

    def look_up(self, table_nr: Tensor, tokens_BL: Tensor, n: int) -> Tensor:
        copies, rows, width = table_nr.shape
        found_BL = in_stack(ngram_rows(tokens_BL, n, rows), copies, rows)
        return F.embedding(found_BL, table_nr.view(-1, width))


STACKED: dict[type[nn.Module], type[nn.Module]] = {
    Linear: StackedLinear,
    nn.RMSNorm: StackedNorm,
    Head: StackedHead,
    Ngrams: StackedNgrams,
}


def stacked_parameter(one: Tensor, copies: int) -> nn.Parameter:
    """Room for a parameter [M, …] of M replicas, with a gradient of zeros."""
    parameter = nn.Parameter(torch.empty(copies, *one.shape, device=one.device))
    parameter.grad = torch.zeros_like(parameter)
    return parameter


def stacked_stage(one: StageTrainer, copies: int) -> StageTrainer:
    """The trainer of a stage of M replicas; of a stage of one it shares what is no weight."""
    trainer = copy.copy(one)
    trainer.in_flight = {}
    trainer.stage = copy.deepcopy(one.stage)
    for module in list(trainer.stage.modules()):
        for name, child in module.named_children():
            if type(child) in STACKED:
                setattr(module, name, STACKED[type(child)](child, copies))
    trainer.parameters = list(trainer.stage.parameters())
    if one.embedding is not None:
        assert isinstance(one.embedding, FactoredEmbedding | DenseEmbedding)
        embedding = StackedEmbedding(one.embedding, copies)
        trainer.embedding = embedding  # type: ignore[assignment]  # who asks for more than forward asks `one`
        trainer.parameters += [embedding.table]
    trainer.optimizer = stacked_optimizer(one.optimizer, trainer.parameters)
    return trainer


def stacked_optimizer(one: AdamW, parameters: list[nn.Parameter]) -> AdamW:
    """Such an optimizer of stacked parameters. AdamW takes each number by itself, and so M replicas at once."""
    if isinstance(one, Muon):
        return StackedMuon(parameters, one.inner, hidden=one.hidden, within=one.within)
    return AdamW(parameters, one.inner)


@dataclass(slots=True)
class StackedMuon(Muon):
    """Muon for M replicas at once, and for all matrices of one shape."""

    @torch.no_grad()
    def update_hidden(self, factor: float, rate: float) -> None:
        """As Muon does it for one matrix after another."""
        hidden = sorted(self.hidden)
        parameters = [self.parameters[i].detach() for i in hidden]
        gradients = [gradient for i in hidden if (gradient := self.parameters[i].grad) is not None]
        momenta = [self.state["exp_avg"][i] for i in hidden]
        torch._foreach_add_([self.state["step"][i] for i in hidden], 1)
        torch._foreach_mul_(gradients, factor)
        torch._foreach_lerp_(momenta, gradients, 1 - MOMENTUM)
        torch._foreach_lerp_(gradients, momenta, MOMENTUM)
        torch._foreach_mul_(parameters, 1 - rate * self.inner.weight_decay)
        bases = [self.within.get(i) for i in hidden]
        told = [each if u is None else u.T @ each for u, each in zip(bases, gradients, strict=True)]
        steps = [each if u is None else u @ each for u, each in zip(bases, orthogonals(told), strict=True)]
        torch._foreach_mul_(steps, [step_scale(tuple(each.shape[1:])) for each in parameters])
        torch._foreach_sub_(parameters, steps, alpha=rate)
        torch._foreach_zero_(gradients)


def orthogonals(matrices: Sequence[Tensor]) -> list[Tensor]:
    """`orthogonal` of many matrices, [M, rows, columns] each, of any shapes."""
    places = defaultdict[tuple[int, ...], list[int]](list)
    for i, each in enumerate(matrices):
        places[tuple(sorted(each.shape[-2:]))].append(i)
    found: dict[int, Tensor] = {}
    a, b, c = COEFFICIENTS
    for of in places.values():
        wide = [matrices[i].mT if matrices[i].shape[-2] > matrices[i].shape[-1] else matrices[i] for i in of]
        x = torch.cat(wide)
        x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=SMALLEST_NORM)
        for _ in range(ITERATIONS):
            square = torch.bmm(x, x.mT)
            x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=b, alpha=c), x, beta=a)
        for i, each in zip(of, x.split([len(matrices[i]) for i in of]), strict=True):
            found[i] = each.mT if matrices[i].shape[-2] > matrices[i].shape[-1] else each
    return [found[i] for i in range(len(matrices))]


class StackedReplica(WholeReplica):
    """M replicas of one kind. `one` is a replica alone: it loads a round, and says how far each of them has moved."""

    def __init__(self, one: WholeReplica, copies: int) -> None:
        self.one, self.copies = one, copies
        self.manifest, self.device, self.arithmetic = one.manifest, one.device, one.arithmetic
        self.stages = [stacked_stage(stage, copies) for stage in one.stages]
        for stage in self.stages:
            stage.optimizer.begin()
        self.views = [[self._state_of(place, stage) for stage in self.stages] for place in range(copies)]

    def _state_of(self, place: int, stage: StageTrainer) -> OptimizerState:
        """A replica's part of the state of a stage's optimizer, in its memory."""
        parameters = stage.parameters

        def view(i: int, state: Tensor) -> Tensor:
            return state[place] if state.shape == parameters[i].shape else state

        return {name: [view(i, each) for i, each in enumerate(of)] for name, of in stage.optimizer.state.items()}

    @torch.no_grad()
    def begin(self, optimizers: Sequence[Sequence[AdamW]]) -> None:
        """Begin an inner loop where `one` has been loaded, with the optimizers of each replica, by stage."""
        for ours, plain in zip(self.stages, self.one.stages, strict=True):
            ours.before, ours.behind = plain.before, plain.behind
            for parameter, start in zip(ours.parameters, plain.parameters, strict=True):
                parameter.copy_(start.expand_as(parameter))
        for own, views in zip(optimizers, self.views, strict=True):
            for optimizer, view in zip(own, views, strict=True):
                self._take_up(optimizer, view)

    def _take_up(self, optimizer: AdamW, view: OptimizerState) -> None:
        """Have a replica's optimizer keep its state in the stack."""
        if optimizer.state is view:
            return
        for name, of in optimizer.state.items():
            for ours, theirs in zip(view[name], of, strict=True):
                ours.copy_(theirs)
        optimizer.state = view

    def gradients(self, batch_MSL: Tensor) -> float:
        """Add the gradients of a batch [M, sequences, L + 1]; its mean loss."""
        return super().gradients(batch_MSL) / self.copies  # the head gives the sum over the replicas

    def microbatches(self, batch_MSL: Tensor) -> Sequence[Tensor]:
        """A batch in pieces of all replicas, [M b, L + 1] each."""
        return [each.flatten(0, 1) for each in batch_MSL.split(self.manifest.inner.microbatch, 1)]

    @torch.no_grad()
    def give(self, place: int) -> WholeReplica:
        """`one` with the weights of the replica at a place, which it has until another's are asked for."""
        for ours, plain in zip(self.stages, self.one.stages, strict=True):
            torch._foreach_copy_([*plain.parameters], [each[place] for each in ours.parameters])
        return self.one


class StackedClip(ClipFactors):
    """Clips the gradients of each of M replicas by its own norm, in place, and leaves 1 to be multiplied by."""

    @torch.no_grad()
    def __call__(self, replica: WholeReplica) -> list[float]:
        """Raises DivergedError if a norm is not a number."""
        norms = [
            torch.linalg.vector_norm(torch.cat([gradient.flatten(1) for gradient in gradients_of(stage)], 1), dim=1)
            for stage in replica.stages
        ]
        by_stage_MS = torch.stack(norms, 1).tolist()
        factors = [clip_factor([norm**2 for norm in stage_norms], self.clip) for stage_norms in by_stage_MS]
        if min(factors) < 1.0:
            factor_M = torch.tensor(factors, device=replica.device)
            for stage in replica.stages:
                for gradient in gradients_of(stage):
                    gradient.mul_(factor_M.view(-1, *[1] * (gradient.dim() - 1)))
        return [1.0] * len(replica.stages)


def gradients_of(stage: StageTrainer) -> list[Tensor]:
    """The gradients of all that a stage trains."""
    return [parameter.grad for parameter in stage.parameters if parameter.grad is not None]


@dataclass(slots=True)
class StackedSwarm(LabSwarm):
    """A swarm of the lab whose replicas of a kind take each step together."""

    stacks: dict[Kind, StackedReplica]

    @staticmethod
    def begin(swarm: LabSwarm) -> "StackedSwarm":
        """The same swarm, before its first round or after it was saved."""
        kinds = Counter(replica.kind for replica in swarm.replicas)
        stacks = {kind: StackedReplica(whole, kinds[kind]) for kind, whole in swarm.weights.wholes.items()}
        return StackedSwarm(
            swarm.manifest, swarm.grids, swarm.weights, swarm.replicas, swarm.tokens, swarm.shares, stacks
        )

    def trained(self, round: int, ahead: Callable[[LabReplica], Grids], emit: Listener) -> Iterator[Trained]:
        steps = self.manifest.inner.steps
        first = (round - 1) * steps
        for kind, stack in self.stacks.items():
            replicas = [replica for replica in self.replicas if replica.kind == kind]
            stack.one.load(self.grids)
            stack.begin([replica.optimizers for replica in replicas])
            loop = InnerLoop(self.weights, kind, PlainSteps(stack), StackedClip(self.manifest.inner.clip))
            for step in range(steps):
                batch_MSL = torch.stack([self.batch(round, step, replica.slot) for replica in replicas])
                loss = loop.step(batch_MSL, first + step)
                emit(StepDone(round, step, loss, self.manifest.tokens_per_step * len(replicas)))
            for index, replica in enumerate(replicas):
                yield Trained(replica, stack.give(index).moved(), steps)
