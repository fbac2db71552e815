"""The whole swarm in one process, with no network: the reference that the real one is compared with.

The same stages, boundaries, batches, contributions and outer steps as the daemons'; the replicas take
turns. The same manifest gives the same losses and, with one torch thread, the same digests, bit by bit.
"""

import time
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from peer.compute.evaluation import Evaluator
from peer.data.batches import batch, held_out_batch
from peer.data.tokens import Tokens, open_tokens
from peer.events import Evaluated, Finished, Joined, Listener, RoundDone, StepDone
from peer.lab.methods import Method, method
from peer.lab.replicas import LabReplica, Workshop
from peer.lab.switches import Switches
from peer.optim.grid import digest, to_float
from protocol.identity import EMBEDDING, Part
from protocol.layout import EMBEDDING_TENSOR, model_layout
from protocol.manifest import Manifest
from protocol.run_files import BASIS, HELD_OUT, TRAIN, Descriptor, genesis_file


@dataclass(slots=True)
class Lab:
    """M replicas in turn. All share one grid; each has its own AdamW moments and error feedback."""

    manifest: Manifest
    grids: dict[Part, dict[str, Tensor]]
    workshop: Workshop
    replicas: list[LabReplica]
    tokens: Tokens
    evaluator: Evaluator
    method: Method
    done: int = 0
    """Rounds behind it."""

    @staticmethod
    def open(descriptor: Descriptor, directory: Path, device: torch.device, switches: Switches | None = None) -> "Lab":
        """Set up from a run's files."""
        manifest, switches = descriptor.manifest, switches or Switches()
        basis: Tensor = load_file(directory / BASIS)["basis"]
        grids = {part: load_file(directory / genesis_file(part)) for part in model_layout(manifest)}
        grids = {part: {name: grids[part][name] for name in layout} for part, layout in model_layout(manifest).items()}
        held_out = open_tokens(directory / HELD_OUT, manifest.model.vocabulary)
        held_out_SM = torch.from_numpy(held_out_batch(held_out, manifest))
        te_VD = to_float(grids[EMBEDDING][EMBEDDING_TENSOR])
        workshop = Workshop.open(manifest, switches, basis, te_VD, device)
        replicas = [workshop.replica(slot, grids) for slot in range(manifest.replicas.total)]
        return Lab(
            manifest=manifest,
            grids=grids,
            workshop=workshop,
            replicas=replicas,
            tokens=open_tokens(directory / TRAIN, manifest.model.vocabulary),
            evaluator=Evaluator(manifest, basis, held_out_SM, device, workshop.through),
            method=method(manifest, switches, descriptor.run_id, grids, replicas),
        )

    def run(self, emit: Listener) -> None:
        """All rounds that are not behind it."""
        emit(Joined("lab", "lab", 0, 0, ""))
        for round in range(self.done + 1, self.manifest.outer.rounds + 1):
            self.round(round, emit)
        emit(Finished(self.manifest.outer.rounds))

    def round(self, round: int, emit: Listener) -> None:
        """One round: every replica's inner loop, then the outer step over the set of contributions that is due."""
        started = time.monotonic()
        counts = self.method.round(self, round, emit)
        if self.workshop.group is not None:
            self.workshop.group.end_round(self.manifest.inner.steps)
        emit(
            RoundDone(
                round=round,
                seconds=time.monotonic() - started,
                tokens=self.manifest.tokens_per_step * self.manifest.inner.steps * len(self.replicas),
                contributions={str(part): count for part, count in counts.items()},
                digests={part: digest(grid) for part, grid in self.grids.items()},
                pipeline_sent=0,
                outer_sent=self.method.sent_bytes,
            )
        )
        with self.workshop.computing():
            emit(Evaluated(round, *self.evaluator.evaluate(self.grids)))
        self.done = round

    def inner_loop(self, replica: LabReplica, round: int, ahead: dict[Part, dict[str, Tensor]], emit: Listener) -> None:
        """H inner steps of one replica from θ, or, of the parts in `ahead`, from there."""
        steps = self.manifest.inner.steps
        whole = self.workshop.seat(replica)
        whole.load(self.grids, ahead)
        for step in range(steps):
            loss = self.workshop.inner_step(replica, self.batch(round, step, replica.slot), (round - 1) * steps + step)
            emit(StepDone(round, step, loss, self.manifest.tokens_per_step))

    def batch(self, round: int, step: int, slot: int) -> Tensor:
        """What a replica reads in an inner step: [sequences, L + 1]."""
        return torch.from_numpy(batch(self.tokens, self.manifest, round, step, slot))
