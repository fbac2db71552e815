"""The whole swarm in one process, with no network: the reference that the real one is compared with.

The same stages, boundaries, batches, contributions and outer steps as the daemons'; the replicas take
turns. The same manifest gives the same losses and, with one torch thread, the same digests, bit by bit.
"""

import time
from dataclasses import dataclass
from pathlib import Path

import torch

from peer.compute.evaluation import Evaluator
from peer.data.batches import held_out_batch
from peer.data.text import open_text
from peer.lab.methods import Method, method
from peer.lab.replicas import Bench, Workshop
from peer.lab.switches import Switches
from peer.model.first_weights import read_basis, read_part
from peer.optim.grid import digest, to_float
from peer.telemetry.events import Evaluated, Finished, Joined, Listener, RoundDone
from protocol.identity import EMBEDDING
from protocol.layout import EMBEDDING_TENSOR, model_layout
from protocol.run.run_files import Descriptor


@dataclass(slots=True)
class Lab:
    """M replicas in turn. All share one grid; each has its own AdamW moments and error feedback."""

    bench: Bench
    evaluator: Evaluator
    method: Method
    done: int = 0
    """Rounds behind it."""

    @staticmethod
    def open(
        descriptor: Descriptor,
        directory: Path,
        device: torch.device,
        switches: Switches | None = None,
        compiled: bool = False,
    ) -> "Lab":
        """Set up from a run's files. `compiled` is faster on a GPU, and not bit by bit what a swarm computes."""
        manifest, switches = descriptor.manifest, switches or Switches()
        basis = read_basis(directory, manifest)
        grids = {part: read_part(directory, manifest, part) for part in model_layout(manifest)}
        tokens, held_out = open_text(descriptor, directory)
        held_out_SM = torch.from_numpy(held_out_batch(held_out, manifest))
        te_VD = to_float(grids[EMBEDDING][EMBEDDING_TENSOR])
        workshop = Workshop.open(manifest, switches, basis, te_VD, device)
        replicas = [workshop.replica(slot, grids) for slot in range(manifest.replicas.total)]
        evaluator = Evaluator(manifest, basis, held_out_SM, device, workshop.through)
        if compiled:
            workshop.compile()
            evaluator.compile()
        bench = Bench(manifest, grids, workshop, replicas, tokens)
        return Lab(bench, evaluator, method(manifest, switches, descriptor.run_id))

    def run(self, emit: Listener) -> None:
        """All rounds that are not behind it."""
        rounds = self.bench.manifest.outer.rounds
        emit(Joined("lab", "lab", 0, 0, ""))
        for round in range(self.done + 1, rounds + 1):
            self.round(round, emit)
        emit(Finished(rounds))

    def round(self, round: int, emit: Listener, evaluate: bool = True) -> None:
        """One round: every replica's inner loop, then the outer step over the set of contributions that is due."""
        bench, manifest, started = self.bench, self.bench.manifest, time.monotonic()
        counts = self.method.round(bench, round, emit)
        if bench.workshop.group is not None:
            bench.workshop.group.end_round(manifest.inner.steps)
        emit(
            RoundDone(
                round=round,
                seconds=time.monotonic() - started,
                tokens=manifest.tokens_per_step * manifest.inner.steps * len(bench.replicas),
                contributions={str(part): count for part, count in counts.items()},
                digests={part: digest(grid) for part, grid in bench.grids.items()},
                pipeline_sent=0,
                outer_sent=self.method.sent_bytes,
            )
        )
        if evaluate:
            with bench.workshop.computing():
                emit(Evaluated(round, *self.evaluator.evaluate(bench.grids)))
        self.done = round
