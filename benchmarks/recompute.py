"""Whether a stage's payload can be judged by who computes it again from θ, though the stage has taken steps since.

Who holds the whole model, an observer or a datacenter, has θ of the round, and not the weights that a stage has by now.
So what it computes of a microbatch is not what the stage sends. How *like* are they (the cosine of the two payloads)? A
lab trains four groups of four stages on real text. In some rounds each payload of one group, in both directions, is
computed again from θ. Told are the least likeness of true ones, and the largest of payloads that are made up (as many
numbers at random) or have their sign turned.

`honest` above `made_up` in each row: such a liar is found by one look at a false payload, at whatever step it lies, and
nobody else is. What is wrong by a tenth is as like as what is true; `examples/beyond/false.toml` asks what that costs.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).parent.parent))

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from bootstrap.genesis import create_run
from peer.compute.replica import WholeReplica
from peer.compute.trainer import GridView
from peer.lab.reference_run import Lab
from peer.lab.replicas import Bench, LabReplica
from peer.model.first_weights import read_basis
from peer.model.subspace import Boundary
from peer.telemetry.events import Listener
from protocol.identity import Part
from protocol.manifest import Manifest, check_manifest
from protocol.run.run_files import Descriptor

STAGES = 4
LOOKS = 6
"""Rounds that are looked at, from the first to the last."""

OPTIMIZERS = ("muon", "adamw")

RATE = 8e-3
"""That of most of the lab's experiments with this model: the more weights move, the less alike payloads are."""


@dataclass(frozen=True, slots=True)
class Row:
    """One round of one run, and one direction of frames: likenesses over all steps, boundaries and microbatches."""

    optimizer: str
    seed: int
    round: int
    direction: str
    honest: float
    """The least of true payloads."""
    honest_in_step: list[float]
    """The least of them in each inner step."""
    made_up: float
    """The largest of made-up ones."""
    flipped: float
    """The largest of those with their sign turned."""


@dataclass(slots=True, eq=False)
class Recording:
    """A boundary that remembers what was sent through it."""

    true: Boundary
    forward: list[Tensor] = field(default_factory=list)
    backward: list[Tensor] = field(default_factory=list)

    def encode(self, x_BLD: Tensor, tokens_BL: Tensor) -> Tensor:
        self.forward.append(self.true.encode(x_BLD, tokens_BL))
        return self.forward[-1]

    def decode(self, payload: Tensor, tokens_BL: Tensor) -> Tensor:
        return self.true.decode(payload, tokens_BL)

    def encode_gradient(self, g_BLD: Tensor) -> Tensor:
        self.backward.append(self.true.encode_gradient(g_BLD))
        return self.backward[-1]

    def decode_gradient(self, payload: Tensor) -> Tensor:
        return self.true.decode_gradient(payload)


Payloads = dict[str, list[Tensor]]

gradients_of = WholeReplica.gradients
"""As the class has it: while a lab is looked at, another stands in its place."""


def sent_by(whole: WholeReplica, batch_SM: Tensor) -> Payloads:
    """What the stages send each other of a batch, by direction, in a fixed order; its gradients are added up."""
    kept = [(stage.before, stage.behind) for stage in whole.stages]
    for stage in whole.stages:
        stage.before, stage.behind = Recording(stage.before), Recording(stage.behind)
    gradients_of(whole, batch_SM)
    sent: Payloads = {"forward": [], "backward": []}
    for stage, (before, behind) in zip(whole.stages, kept, strict=True):
        assert isinstance(stage.before, Recording)
        assert isinstance(stage.behind, Recording)
        sent["forward"] += stage.behind.forward
        sent["backward"] += stage.before.backward
        stage.before, stage.behind = before, behind
    return sent


def alike(one: Tensor, other: Tensor) -> float:
    """The cosine of two payloads."""
    return cosine_similarity(one.float().flatten(), other.float().flatten(), dim=0).item()


@dataclass(slots=True)
class Watch:
    """Looks at the first group of a lab in some rounds."""

    again: WholeReplica
    rounds: set[int]
    round: int = 0
    """Of the inner loop in hand, where it is looked at; 0: it is not."""
    honest: dict[tuple[int, str], list[list[float]]] = field(default_factory=dict)
    made_up: dict[tuple[int, str], list[float]] = field(default_factory=dict)
    numbers: torch.Generator = field(default_factory=lambda: torch.Generator().manual_seed(1))

    def begin(self, replica: LabReplica, round: int, grids: Mapping[Part, GridView]) -> None:
        """An inner loop begins: who computes again takes θ."""
        self.round = round if replica.slot == 0 and round in self.rounds else 0
        if self.round:
            self.again.load(grids)

    def look(self, sent: Payloads, batch_SM: Tensor) -> None:
        """One inner step's payloads, which are computed again."""
        expected = sent_by(self.again, batch_SM)
        for stage in self.again.stages:
            stage.abandon()
        for direction, payloads in sent.items():
            pairs = list(zip(payloads, expected[direction], strict=True))
            likenesses = [alike(one, other) for one, other in pairs]
            self.honest.setdefault((self.round, direction), []).append(likenesses)
            random = [alike(torch.randn(one.shape, generator=self.numbers), one) for _, one in pairs]
            self.made_up.setdefault((self.round, direction), []).extend(random)


def manifest_of(optimizer: str, seed: int, preset: str, rounds: int, steps: int) -> Manifest:
    """The run's manifest."""
    return check_manifest(
        {
            "run": {"seed": seed},
            "model": {"preset": preset},
            "replicas": {"groups": 4, "datacenters": 0, "stages": STAGES, "compression": 8},
            "inner": {"steps": steps, "sequences": 8, "microbatch": 2, "warmup": max(1, rounds * steps // 8)}
            | {"optimizer": optimizer, "learning_rate": RATE},
            "outer": {"rounds": rounds},
            "evaluation": {"sequences": 64},
        }
    )


def train(descriptor: Descriptor, folder: Path) -> list[Row]:
    """One run of the lab, looked at."""
    manifest = descriptor.manifest
    cpu = torch.device("cpu")
    lab = Lab.open(descriptor, folder, cpu)
    again = WholeReplica(manifest, "group", read_basis(folder, manifest), cpu)
    last = manifest.outer.rounds
    watch = Watch(again, {1 + (last - 1) * look // (LOOKS - 1) for look in range(LOOKS)})
    inner_loop = Bench.inner_loop

    def begun(self: Bench, replica: LabReplica, round: int, ahead: Mapping[Part, GridView], emit: Listener) -> int:
        watch.begin(replica, round, self.grids)
        return inner_loop(self, replica, round, ahead, emit)  # type: ignore[arg-type]

    def looked_at(self: WholeReplica, batch_SM: Tensor) -> float:
        if not watch.round or self is again:
            return gradients_of(self, batch_SM)
        sent = sent_by(self, batch_SM)
        watch.look(sent, batch_SM)
        return 0.0

    with mock.patch.object(Bench, "inner_loop", begun), mock.patch.object(WholeReplica, "gradients", looked_at):
        for round in range(1, last + 1):
            lab.round(round, lambda event: None, evaluate=False)
    inner, seed = manifest.inner, manifest.run.seed
    rows = []
    for (round, direction), steps in watch.honest.items():
        least = [min(each) for each in steps]
        made_up = max(watch.made_up[round, direction])
        rows.append(Row(inner.optimizer, seed, round, direction, min(least), least, made_up, -min(least)))
    return rows


def table(rows: list[Row]) -> str:
    """Lines of text."""
    return "\n".join(
        f"{each.optimizer:6} seed {each.seed}  round {each.round:3} {each.direction:8}  least of true payloads "
        f"{each.honest:5.2f} (first step {each.honest_in_step[0]:4.2f}, last {each.honest_in_step[-1]:4.2f})  "
        f"largest of made-up ones {each.made_up:5.2f}, of flipped ones {each.flipped:5.2f}"
        for each in rows
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON")
    parser.add_argument("--data", type=Path, required=True, help="the text, as of `hetpeer bootstrap --data`")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1], help="of the runs; default: 1")
    parser.add_argument("--optimizers", nargs="+", choices=OPTIMIZERS, default=OPTIMIZERS, help="default: both")
    parser.add_argument("--preset", default="pico", help="the model; default: pico")
    parser.add_argument("--rounds", type=int, default=21, help="of a run; default: 21")
    parser.add_argument("--steps", type=int, default=20, help="inner steps of a round; default: 20")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    rows = list[Row]()
    with tempfile.TemporaryDirectory() as made:
        for optimizer in chosen.optimizers:
            for seed in chosen.seeds:
                manifest = manifest_of(optimizer, seed, chosen.preset, chosen.rounds, chosen.steps)
                folder = Path(made) / optimizer / str(seed)
                rows += train(create_run(manifest, folder, chosen.data), folder)
    print(json.dumps([asdict(each) for each in rows]) if chosen.json else table(rows))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
