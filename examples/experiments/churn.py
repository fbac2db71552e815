"""The loss of a run whose volunteers come and go, with and without a handover of what they leave.

In each round each stage of a group is left with the same probability. With a handover the successor goes on with the
error feedback and the optimizer's moments, as if nobody had left; without one it begins with zeros:

    python -m examples.experiments.churn --leave 0.05 --seeds 3
"""

import argparse
import json
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import mean

import torch

from bootstrap.genesis import create_run
from peer.lab.reference_run import Lab
from peer.lab.replicas import LabReplica, optimizer
from peer.lab.switches import Switches
from protocol.events.activity import Evaluated
from protocol.events.event import Event
from protocol.identity import parts_authored
from protocol.manifest import Manifest, load_manifest

LAST_ROUNDS = 5
"""The number of last rounds over which the held-out loss of a run is averaged."""


def forget(replica: LabReplica, stage: int, lab: Lab) -> None:
    """Begin a stage of a replica with zeros, as a successor does to whom nothing was handed over."""
    for part in parts_authored(stage):
        for tensor in replica.outer[part].error_feedback.values():
            tensor.zero_()
    weights = lab.swarm.weights
    replica.optimizers[stage] = optimizer(weights.wholes[replica.kind].stages[stage], weights.switches)


def losses(manifest: Manifest, folder: Path, leave: float) -> Iterator[float]:
    """The held-out loss through the boundaries after each round, where stages are left with this probability."""
    events: list[Event] = []
    lab = Lab.open(create_run(manifest, folder, None, lambda _: None, None), folder, torch.device("cpu"), Switches())
    chance = random.Random(manifest.run.seed)
    for round in range(1, manifest.outer.rounds + 1):
        for group in lab.swarm.replicas[: manifest.replicas.groups]:
            for stage in range(manifest.replicas.stages):
                if chance.random() < leave:
                    forget(group, stage, lab)
        lab.round(round, events.append)
        yield next(event.loss for event in reversed(events) if isinstance(event, Evaluated))
        events.clear()


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, default=Path("examples/runs/churn.toml"), help="the run's manifest")
    parser.add_argument("--leave", type=float, default=0.05, help="the probability that a stage is left, by round")
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    differences = []
    for seed in range(1, options.seeds + 1):
        manifest = load_manifest(options.run)
        manifest = manifest.model_copy(update={"run": manifest.run.model_copy(update={"seed": seed})})
        ends = {}
        for arm, leave in (("handed over", 0.0), ("begun with zeros", options.leave)):
            with tempfile.TemporaryDirectory() as folder:
                ends[arm] = mean(list(losses(manifest, Path(folder), leave))[-LAST_ROUNDS:])
        differences.append(ends["begun with zeros"] / ends["handed over"] - 1)
        print(json.dumps({"seed": seed, **ends, "difference": differences[-1]}), flush=True)
    print(
        f"without a handover the loss is {mean(differences):+.2%} (of single seeds: {min(differences):+.2%} to "
        f"{max(differences):+.2%})"
    )


if __name__ == "__main__":
    main()
