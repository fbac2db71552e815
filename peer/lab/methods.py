"""The outer methods of the lab: SparseLoCo, as the swarm does it, and what it is compared with."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from peer.lab.replicas import Grids, LabReplica, LabSwarm
from peer.lab.switches import Switches
from peer.model.embedding import FactoredEmbedding
from peer.optim import inner
from peer.optim.grid import to_float, to_int32, to_units
from peer.optim.outer import FACTOR_ONE, eta
from protocol.codec import rice
from protocol.codec.contribution import HEADER, Contribution, grids
from protocol.events.activity import StepDone
from protocol.events.event import Listener
from protocol.identity import EMBEDDING, ContributionName, Part, RunId, stage_part
from protocol.layout import EMBEDDING_TENSOR
from protocol.manifest import Manifest

EXACT_BYTES = 4
"""The bytes of a value that is not quantized."""

OFFSETS_HEADER = 4
"""The bytes in front of a tensor's offsets, which say how long they are."""


class Method(Protocol):
    """`sent_bytes`: what all replicas together have published so far."""

    sent_bytes: int

    def round(self, swarm: LabSwarm, round: int, emit: Listener) -> dict[Part, int]:
        """Train for a round and bring the lab's grids to its end; how many contributions each part got."""


def method(manifest: Manifest, switches: Switches, run: RunId) -> Method:
    """The method that the switches name."""
    if switches.method == "adamw":
        return PerStep(manifest)
    if switches.method == "diloco":
        return DiLoCo(manifest, switches.momentum)
    return SparseLoCo(manifest, switches.values == "exact", run)


def exact_bytes(manifest: Manifest, sent: Contribution) -> int:
    """The bytes of a contribution whose values are not quantized: header, offsets in the Rice code, and values."""
    total = HEADER.size + len(sent.name.author)
    for name, grid in grids(manifest, sent.name.part).items():
        unary, rests = rice.encode_offsets(sent.tensors[name].offsets, grid)
        total += OFFSETS_HEADER + len(unary) + len(rests) + EXACT_BYTES * grid.kept
    return total


@dataclass(slots=True)
class SparseLoCo:
    """HET, equations 1 and 2: top-k of the error feedback, quantized as in the swarm, or `exact`."""

    manifest: Manifest
    exact: bool
    run: RunId
    waiting: dict[int, dict[Part, list[Contribution]]] = field(default_factory=dict)
    """Contributions that are not applied yet, by round, in the order of the replicas."""
    sent_bytes: int = 0

    def round(self, swarm: LabSwarm, round: int, emit: Listener) -> dict[Part, int]:
        sent: dict[Part, list[Contribution]] = {part: [] for part in swarm.grids}
        before = self.waiting.get(round - 1, {})

        def ahead(replica: LabReplica) -> Grids:
            return {
                part: replica.outer[part].with_own(contribution[replica.slot]) for part, contribution in before.items()
            }

        for trained in swarm.trained(round, ahead, emit):
            for part, moved in trained.moved.items():
                sent[part].append(self._contribute(trained.replica, part, round, trained.steps, moved))
        self.waiting[round] = sent
        counts: dict[Part, int] = dict.fromkeys(swarm.grids, 0)
        for applied_round in self.manifest.outer.applied(round):
            for part, contributions in self.waiting.pop(applied_round).items():
                working = [contribution for contribution in contributions if contribution.steps]
                swarm.replicas[0].outer[part].replace([], working)
                counts[part] += len(working)
        return counts

    def _contribute(
        self, replica: LabReplica, part: Part, round: int, steps: int, moved: Mapping[str, Tensor]
    ) -> Contribution:
        """Make a replica's contribution from Δ (`moved`), as the swarm does, or, with `exact`, with values that are not
        quantized; count its bytes."""
        state = replica.outer[part]
        if not self.exact:
            blob, sent = state.contribute(self.run, round, replica.id, steps, moved)
            self.sent_bytes += len(blob)
            return sent
        state.absorb(moved)
        sent = Contribution(self.run, ContributionName(part, round, replica.id), steps, state.pick())
        self.sent_bytes += exact_bytes(self.manifest, sent)
        state.take_out(sent)
        return sent


@dataclass(slots=True)
class DiLoCo:
    """Dense pseudo-gradients and Nesterov momentum (arXiv 2311.08105): v ← μ v + Δ̄; θ ← θ − η (Δ̄ + μ v)."""

    manifest: Manifest
    momentum: float
    velocity: Grids = field(default_factory=dict)
    sent_bytes: int = 0

    def round(self, swarm: LabSwarm, round: int, emit: Listener) -> dict[Part, int]:
        total: Grids = {}
        for replica in swarm.replicas:
            swarm.inner_loop(replica, round, {}, emit)
            _add(total, swarm.weights.wholes[replica.kind].moved())
        for part, tensors in total.items():
            velocities = self.velocity.setdefault(
                part, {name: torch.zeros_like(start) for name, start in tensors.items()}
            )
            for name, tensor in tensors.items():
                mean = tensor / len(swarm.replicas)
                velocity = velocities[name].mul_(self.momentum).add_(mean)
                step = eta(self.manifest.outer, round) / FACTOR_ONE * (mean + self.momentum * velocity)
                grid = swarm.grids[part]
                grid[name] = to_int32(grid[name].to(torch.int64) - to_units(step), name)
                self.sent_bytes += 4 * tensor.numel() * len(swarm.replicas)
        return dict.fromkeys(swarm.grids, len(swarm.replicas))


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

    def round(self, swarm: LabSwarm, round: int, emit: Listener) -> dict[Part, int]:
        steps = self.manifest.inner.steps
        if self.optimizer is None:
            self.begin(swarm)
        assert self.optimizer is not None
        for step in range(steps):
            total: Grids = {}
            for replica in swarm.replicas:
                loss = self._gradient(swarm, replica, swarm.batch(round, step, replica.slot), total)
                emit(StepDone(round, step, loss, self.manifest.tokens_per_step))
            for parameter, gradient in zip(self.optimizer.parameters, _flat(total, self.weights), strict=True):
                parameter.grad = gradient / len(swarm.replicas)
            factor = inner.clip_factor([inner.squared_norm(self.optimizer.parameters)], self.manifest.inner.clip)
            self.optimizer.update(factor, inner.learning_rate(self.manifest, (round - 1) * steps + step))
            self.sent_bytes += 4 * sum(weight.numel() for weight in self.optimizer.parameters) * len(swarm.replicas)
        for part, tensors in self.weights.items():
            for name, tensor in tensors.items():
                swarm.grids[part][name] = to_int32(to_units(tensor.detach().cpu()), name)
        return dict.fromkeys(swarm.grids, len(swarm.replicas))

    def begin(self, swarm: LabSwarm) -> None:
        """Take the weights up from the grids, and make an optimizer of them."""
        for part, grid in swarm.grids.items():
            self.weights[part] = {
                name: torch.nn.Parameter(to_float(tensor).to(swarm.weights.device)) for name, tensor in grid.items()
            }
        self.optimizer = inner.AdamW(_flat(self.weights, self.weights), self.manifest.inner)  # type: ignore[arg-type]

    def _gradient(self, swarm: LabSwarm, replica: LabReplica, batch_SM: Tensor, total: Grids) -> float:
        """Add one replica's gradient to the total; its loss."""
        whole = swarm.weights.wholes[replica.kind]
        te_VD = self.weights[EMBEDDING][EMBEDDING_TENSOR].detach()
        for stage in whole.stages:
            own_weights = {name: weight.detach() for name, weight in self.weights[stage_part(stage.index)].items()}
            stage.start_from(own_weights, te_VD)
        with swarm.weights.computing():
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
