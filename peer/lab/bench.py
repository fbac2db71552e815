"""What all methods of the lab work with: the replicas, θ, the text, and an inner loop."""

from dataclasses import dataclass

import torch
from torch import Tensor

from peer.data.batches import batch, in_turn
from peer.data.text import Text
from peer.lab.replicas import LabReplica, Workshop
from peer.telemetry.events import Listener, StepDone
from protocol.identity import Part
from protocol.manifest import Manifest

Grids = dict[Part, dict[str, Tensor]]


@dataclass(slots=True)
class Bench:
    """M replicas in turn. All share the one `grids` of θ; each has its own AdamW moments and error feedback."""

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
