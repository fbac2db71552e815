"""The whole swarm in one process, with no network: the reference that the real one is compared with.

The same stages, boundaries, batches, contributions and outer steps as the daemons'; the replicas take
turns. The same manifest gives the same losses and, with one torch thread, the same digests, bit by bit.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from peer.compute.evaluation import Evaluator
from peer.data.batches import held_out_batch
from peer.data.text import open_text
from peer.lab.methods import Method, method
from peer.lab.replicas import LabSwarm, SharedWeights
from peer.lab.shares import Shares
from peer.lab.switches import Switches
from peer.model.first_weights import read_basis, read_part
from peer.optim.grid import grid_digest, to_float
from protocol.events.activity import Evaluated, Finished, Joined, RoundDone
from protocol.events.event import Listener
from protocol.identity import EMBEDDING
from protocol.layout import EMBEDDING_TENSOR, model_layout
from protocol.run.run_files import Descriptor


@dataclass(slots=True)
class Lab:
    """M replicas in turn. All share one grid; each has its own AdamW moments and error feedback."""

    swarm: LabSwarm
    evaluator: Evaluator
    method: Method
    done: int = 0
    """The number of rounds that have ended."""

    @staticmethod
    def open(
        descriptor: Descriptor,
        directory: Path,
        device: torch.device,
        switches: Switches | None = None,
        taken: Mapping[tuple[int, int], int] | None = None,
    ) -> "Lab":
        """Set up from a run's files. `taken` are the inner steps that replicas took in a swarm whose run is replayed,
        by round and slot."""
        manifest, switches = descriptor.manifest, switches or Switches()
        basis = read_basis(directory, manifest)
        grids = {part: read_part(directory, manifest, part) for part in model_layout(manifest)}
        tokens, held_out = open_text(descriptor, directory)
        held_out_SM = torch.from_numpy(held_out_batch(held_out, manifest))
        te_VD = to_float(grids[EMBEDDING][EMBEDDING_TENSOR])
        weights = SharedWeights.open(manifest, switches, basis, te_VD, device)
        replicas = [weights.replica(slot, grids) for slot in range(manifest.replicas.total)]
        evaluator = Evaluator(manifest, basis, held_out_SM, device, weights.through)
        shares = Shares(manifest, switches.shares, taken or {})
        swarm = LabSwarm(manifest, grids, weights, replicas, tokens, shares)
        return Lab(swarm, evaluator, method(manifest, switches, descriptor.run_id))

    def run(self, emit: Listener) -> None:
        """Train all rounds that are left."""
        rounds = self.swarm.manifest.outer.rounds
        emit(Joined("lab", "lab", 0, 0, ""))
        for round in range(self.done + 1, rounds + 1):
            self.round(round, emit)
        emit(Finished(rounds))

    def round(self, round: int, emit: Listener, evaluate: bool = True) -> None:
        """One round: every replica's inner loop, then the outer step over the set of contributions that is due."""
        swarm, manifest, started = self.swarm, self.swarm.manifest, time.monotonic()
        counts = self.method.round(swarm, round, emit)
        if swarm.weights.group is not None:
            swarm.weights.group.end_round(manifest.inner.steps)
        emit(
            RoundDone(
                round=round,
                seconds=time.monotonic() - started,
                tokens=manifest.tokens_per_step * sum(swarm.shares.steps(round)),
                contributions={str(part): count for part, count in counts.items()},
                digests={part: grid_digest(grid) for part, grid in swarm.grids.items()},
                pipeline_sent=0,
                outer_sent=self.method.sent_bytes,
            )
        )
        if evaluate:
            with swarm.weights.computing():
                emit(Evaluated(round, *self.evaluator.evaluate(swarm.grids)))
        self.done = round
