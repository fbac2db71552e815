"""A lab in memory: random weights, a random basis and random text, with no files."""

import numpy as np
import torch

from peer.compute.evaluation import Evaluator
from peer.data.batches import held_out_batch
from peer.data.text import Tokens
from peer.lab.methods import method
from peer.lab.reference_run import Lab
from peer.lab.replicas import LabSwarm, SharedWeights
from peer.lab.shares import Shares
from peer.lab.switches import Switches
from peer.optim.grid import grid_digest, to_float, to_units
from protocol.identity import EMBEDDING, RunId
from protocol.layout import EMBEDDING_TENSOR, model_layout
from protocol.manifest import Manifest
from tests.reference.boundary import orthonormal
from tests.reference.llama import random_weights

RUN = RunId("ab" * 32)


def small_lab(manifest: Manifest, switches: Switches | None = None, seed: int = 0) -> Lab:
    """A fresh lab; equal arguments give equal labs."""
    switches, cpu = switches or Switches(), torch.device("cpu")
    random = random_weights(manifest, seed, torch.float32)
    grids = {
        part: {name: to_units(random[name]).to(torch.int32) for name in layout}
        for part, layout in model_layout(manifest).items()
    }
    basis = orthonormal(manifest.model.d, seed)
    weights = SharedWeights.open(manifest, switches, basis, to_float(grids[EMBEDDING][EMBEDDING_TENSOR]), cpu)
    replicas = [weights.replica(slot, grids) for slot in range(manifest.replicas.total)]
    held_out_SM = torch.from_numpy(held_out_batch(text(seed + 1), manifest))
    evaluator = Evaluator(manifest, basis, held_out_SM, cpu, weights.through)
    swarm = LabSwarm(manifest, grids, weights, replicas, text(seed), Shares(manifest, switches.shares))
    return Lab(swarm, evaluator, method(manifest, switches, RUN))


def text(seed: int) -> Tokens:
    """Token ids of which the low ones are frequent, so that there is something to learn."""
    return np.random.default_rng(seed).geometric(0.05, 4096).clip(max=257).astype(np.uint16)


def play(lab: Lab, rounds: int) -> dict[str, str]:
    """Rounds 1 to `rounds`, and the digests of what came out."""
    for round in range(1, rounds + 1):
        lab.round(round, lambda event: None)
    return {part: grid_digest(grid) for part, grid in lab.swarm.grids.items()}
