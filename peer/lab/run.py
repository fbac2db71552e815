"""The whole swarm in one process, with no network: the reference that the real one is compared with.

The same stages, boundaries, batches, contributions and outer steps as the daemons'; the replicas take
turns. The same manifest gives the same losses and, with one torch thread, the same digests, bit by bit.
"""

import time
from dataclasses import dataclass, field
from pathlib import Path

import base58
import torch
from safetensors.torch import load_file
from torch import Tensor

from peer.compute.evaluation import Evaluator
from peer.compute.replica import WholeReplica
from peer.compute.trainer import Kind
from peer.data.batches import batch, held_out_batch
from peer.data.tokens import Tokens, open_tokens
from peer.events import Evaluated, Finished, Joined, Listener, RoundDone, StepDone
from peer.optim.grid import digest
from peer.optim.outer import OuterState
from protocol.contribution import Contribution
from protocol.identity import Part, PeerId, RunId
from protocol.layout import model_layout
from protocol.manifest import Manifest
from protocol.run_files import BASIS, HELD_OUT, TRAIN, Descriptor, genesis_file


@dataclass(slots=True)
class LabReplica:
    """One replica of the lab: its weights, its slot, and its error feedback (in `outer`)."""

    id: PeerId
    slot: int
    whole: WholeReplica
    outer: dict[Part, OuterState]


@dataclass(slots=True)
class Lab:
    """M replicas in turn. All share one grid; each has its own AdamW moments and error feedback."""

    manifest: Manifest
    run_id: RunId
    grids: dict[Part, dict[str, Tensor]]
    replicas: list[LabReplica]
    tokens: Tokens
    evaluator: Evaluator
    waiting: dict[int, dict[Part, list[Contribution]]] = field(default_factory=dict)
    """Contributions that are not applied yet, by round, in the order of `replicas`."""
    contribution_bytes: int = 0

    @staticmethod
    def open(descriptor: Descriptor, directory: Path, device: torch.device) -> "Lab":
        """Set up from a run's files."""
        manifest = descriptor.manifest
        basis: Tensor = load_file(directory / BASIS)["basis"]
        grids = {part: load_file(directory / genesis_file(part)) for part in model_layout(manifest)}
        grids = {part: {name: grids[part][name] for name in layout} for part, layout in model_layout(manifest).items()}
        held_out = open_tokens(directory / HELD_OUT, manifest.model.vocabulary)
        held_out_SM = torch.from_numpy(held_out_batch(held_out, manifest))
        return Lab(
            manifest=manifest,
            run_id=descriptor.run_id,
            grids=grids,
            replicas=[_replica(manifest, slot, grids, basis, device) for slot in range(manifest.replicas.total)],
            tokens=open_tokens(directory / TRAIN, manifest.model.vocabulary),
            evaluator=Evaluator(manifest, basis, held_out_SM, device),
        )

    def run(self, emit: Listener) -> None:
        """All rounds."""
        emit(Joined("lab", "lab", 0, 0, ""))
        for round in range(1, self.manifest.outer.rounds + 1):
            self.round(round, emit)
        emit(Finished(self.manifest.outer.rounds))

    def round(self, round: int, emit: Listener) -> None:
        """One round: every replica's inner loop, then the outer step over the set of contributions that is due."""
        started = time.monotonic()
        sent: dict[Part, list[Contribution]] = {part: [] for part in self.grids}
        for replica in self.replicas:
            for part, contribution in self._inner_loop(replica, round, emit).items():
                sent[part].append(contribution)
        self.waiting[round] = sent
        counts: dict[str, int] = dict.fromkeys(self.grids, 0)
        for due in self.manifest.outer.applied(round):
            for part, contributions in self.waiting.pop(due).items():
                self.replicas[0].outer[part].replace([], contributions)
                counts[part] += len(contributions)
        emit(
            RoundDone(
                round=round,
                seconds=time.monotonic() - started,
                tokens=self.manifest.tokens_per_step * self.manifest.inner.steps * len(self.replicas),
                contributions=counts,
                digests={part: digest(grid) for part, grid in self.grids.items()},
                pipeline_sent=0,
                outer_sent=self.contribution_bytes,
            )
        )
        emit(Evaluated(round, *self.evaluator.evaluate(self.grids)))

    def _inner_loop(self, replica: LabReplica, round: int, emit: Listener) -> dict[Part, Contribution]:
        """H inner steps of one replica from the shared θ, with its own contributions that wait, and its new ones."""
        manifest = self.manifest
        before = self.waiting.get(round - 1, {})
        ahead = {part: replica.outer[part].with_own(sent[replica.slot]) for part, sent in before.items()}
        replica.whole.load(self.grids, ahead)
        for step in range(manifest.inner.steps):
            batch_SM = torch.from_numpy(batch(self.tokens, manifest, round, step, replica.slot))
            loss = replica.whole.inner_step(batch_SM, (round - 1) * manifest.inner.steps + step)
            emit(StepDone(round, step, loss, manifest.tokens_per_step))
        contributions = {}
        for part, moved in replica.whole.moved().items():
            blob, contributions[part] = replica.outer[part].contribute(
                self.run_id, round, replica.id, manifest.inner.steps, moved
            )
            self.contribution_bytes += len(blob)
        return contributions


def _replica(
    manifest: Manifest, slot: int, grids: dict[Part, dict[str, Tensor]], basis: Tensor, device: torch.device
) -> LabReplica:
    """Groups have the first slots, datacenters the last, as in a swarm."""
    kind: Kind = "group" if slot < manifest.replicas.groups else "datacenter"
    outer = {part: OuterState.begin(manifest, part, grid, author=True) for part, grid in grids.items()}
    for part, state in outer.items():
        state.grid = grids[part]  # one θ for all
    name = PeerId(base58.b58encode(f"lab {slot}".encode()).decode())
    return LabReplica(name, slot, WholeReplica(manifest, kind, basis, device), outer)
