"""Whether a stage's payloads of a round's first step can be judged by who computes them again from θ.

Who holds the whole model, an observer, has θ of the round. In the first step the stages' weights are θ's, so payloads
differ by number formats alone. How *like* are they then (the cosine of some of their numbers)? A lab trains four groups
of four stages on real text. In some rounds the first step of one group is computed again in bf16 (`bf16`), and what
these stages send is also compared with noise of a tenth of its norm (`wrong_by_a_tenth`): the limit has to be between
the two (`likenesses.EXACT`).
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

from bootstrap.genesis import create_run
from peer.compute.arithmetic import Arithmetic
from peer.compute.recomputation import sample
from peer.compute.replica import WholeReplica
from peer.compute.trainer import GridView
from peer.lab.reference_run import Lab
from peer.lab.replicas import Bench, LabReplica
from peer.model.first_weights import read_basis
from peer.model.subspace import Boundary
from peer.telemetry.events import Listener
from protocol.codec.spot_check import likeness
from protocol.identity import Part
from protocol.manifest import Manifest, check_manifest
from protocol.run.run_files import Descriptor

STAGES = 4
LOOKS = 11
"""Rounds that are looked at, from the first to the last."""

OPTIMIZERS = ("muon", "adamw")
DIRECTIONS = ("forward", "backward")

RATES = {"muon": 8e-3, "adamw": 1e-3}
"""Of the lab's experiments with this model, and the usual one: the more weights move, the less alike payloads are."""


@dataclass(frozen=True, slots=True)
class Row:
    """One round of one run, and one direction of frames, over all boundaries and microbatches of its first step."""

    optimizer: str
    seed: int
    round: int
    direction: str
    bf16: float
    """The least likeness of payloads of the first step whose stages compute in bf16."""
    wrong_by_a_tenth: float
    """The largest of the same with noise."""


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


@dataclass(slots=True)
class Watch:
    """Looks at the first step of a lab's first group in some rounds."""

    again: WholeReplica
    coarse: WholeReplica
    """The same in bf16."""
    rounds: set[int]
    round: int = 0
    """The round whose first step comes, if it is looked at; else 0."""
    bf16: dict[tuple[int, str], list[float]] = field(default_factory=dict)
    """Likenesses by round and direction."""
    wrong: dict[tuple[int, str], list[float]] = field(default_factory=dict)
    """The same with noise of a tenth."""
    numbers: torch.Generator = field(default_factory=lambda: torch.Generator().manual_seed(1))

    def begin(self, replica: LabReplica, round: int, grids: Mapping[Part, GridView]) -> None:
        """An inner loop begins: who computes again takes θ."""
        self.round = round if replica.slot == 0 and round in self.rounds else 0
        if self.round:
            self.again.load(grids)
            self.coarse.load(grids)

    def look(self, batch_SM: Tensor) -> None:
        """Compute the payloads of a step's batch again, in bf16, and with noise."""
        expected, sent = sent_by(self.again, batch_SM), sent_by(self.coarse, batch_SM)
        for stage in (*self.again.stages, *self.coarse.stages):
            stage.abandon()
        for direction, payloads in sent.items():
            for came, computed in zip(payloads, expected[direction], strict=True):
                noise = torch.randn(came.shape, generator=self.numbers)
                wrong = came.float() + 0.1 * noise * (came.float().norm() / noise.norm())
                key, other = (self.round, direction), sample(computed, 1).numpy()
                self.bf16.setdefault(key, []).append(likeness(sample(came, 1).numpy(), other))
                self.wrong.setdefault(key, []).append(likeness(sample(wrong, 1).numpy(), other))
        self.round = 0


def manifest_of(optimizer: str, seed: int, preset: str, rounds: int, steps: int, rate: float) -> Manifest:
    """The run's manifest."""
    return check_manifest(
        {
            "run": {"seed": seed},
            "model": {"preset": preset},
            "replicas": {"groups": 4, "datacenters": 0, "stages": STAGES, "compression": 8},
            "inner": {"steps": steps, "sequences": 8, "microbatch": 2, "warmup": max(1, rounds * steps // 8)}
            | {"optimizer": optimizer, "learning_rate": rate},
            "outer": {"rounds": rounds},
            "evaluation": {"sequences": 64},
        }
    )


def train(descriptor: Descriptor, folder: Path) -> list[Row]:
    """One run of the lab, looked at."""
    manifest = descriptor.manifest
    cpu = torch.device("cpu")
    lab = Lab.open(descriptor, folder, cpu)
    again, coarse = (
        WholeReplica(manifest, "group", read_basis(folder, manifest), cpu, arithmetic=arithmetic)
        for arithmetic in (Arithmetic(), Arithmetic("bf16"))
    )
    last = manifest.outer.rounds
    watch = Watch(again, coarse, {1 + (last - 1) * look // (LOOKS - 1) for look in range(LOOKS)})
    inner_loop = Bench.inner_loop

    def begun(self: Bench, replica: LabReplica, round: int, ahead: Mapping[Part, GridView], emit: Listener) -> int:
        watch.begin(replica, round, self.grids)
        return inner_loop(self, replica, round, ahead, emit)  # type: ignore[arg-type]

    def looked_at(self: WholeReplica, batch_SM: Tensor) -> float:
        if watch.round:
            watch.look(batch_SM)
        return gradients_of(self, batch_SM)

    with mock.patch.object(Bench, "inner_loop", begun), mock.patch.object(WholeReplica, "gradients", looked_at):
        for round in range(1, last + 1):
            lab.round(round, lambda event: None, evaluate=False)
    seen = [(round, direction) for round in sorted(watch.rounds) for direction in DIRECTIONS]
    return [
        Row(manifest.inner.optimizer, manifest.run.seed, *key, min(watch.bf16[key]), max(watch.wrong[key]))
        for key in seen
    ]


def table(rows: list[Row]) -> str:
    """Lines of text."""
    return "\n".join(
        f"{each.optimizer:6} seed {each.seed}  round {each.round:3} {each.direction:8}  first step in bf16 "
        f"{each.bf16:.5f}, wrong by a tenth {each.wrong_by_a_tenth:.4f}"
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
    parser.add_argument("--rate", type=float, help="the learning rate; default: 8e-3 with muon, 1e-3 with adamw")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    rows = list[Row]()
    with tempfile.TemporaryDirectory() as made:
        for optimizer in chosen.optimizers:
            for seed in chosen.seeds:
                manifest = manifest_of(
                    optimizer, seed, chosen.preset, chosen.rounds, chosen.steps, chosen.rate or RATES[optimizer]
                )
                folder = Path(made) / optimizer / str(seed)
                rows += train(create_run(manifest, folder, chosen.data), folder)
    print(json.dumps([asdict(each) for each in rows]) if chosen.json else table(rows))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
