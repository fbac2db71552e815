"""Whether a stage's payload can be judged by who computes it again from θ, though the stage has taken steps since.

Who holds the whole model, an observer, has θ of the round, and not the weights that a stage has by now. So what it
computes of a microbatch is not what the stage sends. How *like* are they (the cosine of some of their numbers)? A lab
trains four groups of four stages on real text. In some rounds each payload of one group, in both directions, is
computed again from θ, and judged as stages judge (`peer/swarm/group/likenesses.py`): by the others of its step. Told
are how many of the true ones would be taken for false, how near the least of them came to that, and which share of
payloads that are made up, as many numbers at random, would be found.

`accused` should be 0 where payloads are judged: activations always, gradients with Muon alone.

In a round's first step the weights are θ's, so payloads differ by number formats alone. There the same stages compute
in bf16, too (`bf16`), and what these send with noise of a tenth of its norm is compared as well (`wrong_by_a_tenth`):
the limit has to be between the two (`likenesses.EXACT`).
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
from peer.swarm.group import likenesses
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
    """One round of one run, and one direction of frames, over all steps, boundaries and microbatches."""

    optimizer: str
    seed: int
    round: int
    direction: str
    bf16: float
    """The least likeness of payloads of the first step whose stages compute in bf16."""
    wrong_by_a_tenth: float
    """The largest of the same with noise."""
    last_step: float
    """The least likeness of true payloads in the round's last step."""
    judged: int
    """True payloads that are judged: the others of their step are like enough."""
    least_share: float
    """The least likeness of these, as a share of the others'; 0: none is judged."""
    accused: int
    """How many of these are taken for false, where another stage doubts them."""
    found: float
    """The share of made-up payloads that are found, one at a time in the place of a true one."""


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


Likenesses = dict[int, float]
"""Cosines by the number of the microbatch in the round."""


@dataclass(slots=True)
class Watch:
    """Looks at the first group of a lab in some rounds."""

    again: WholeReplica
    coarse: WholeReplica
    """The same in bf16."""
    rounds: set[int]
    round: int = 0
    """Of the inner loop in hand, where it is looked at; 0: it is not."""
    step: int = 0
    true: dict[tuple[int, str, int], Likenesses] = field(default_factory=dict)
    """By round, direction and boundary."""
    made_up: dict[tuple[int, str, int], Likenesses] = field(default_factory=dict)
    """Of numbers at random in the places of true payloads."""
    bf16: dict[tuple[int, str], list[float]] = field(default_factory=dict)
    """By round and direction, of the first step in bf16."""
    wrong: dict[tuple[int, str], list[float]] = field(default_factory=dict)
    """The same with noise of a tenth."""
    numbers: torch.Generator = field(default_factory=lambda: torch.Generator().manual_seed(1))

    def begin(self, replica: LabReplica, round: int, grids: Mapping[Part, GridView]) -> None:
        """An inner loop begins: who computes again takes θ."""
        self.round, self.step = round if replica.slot == 0 and round in self.rounds else 0, 0
        if self.round:
            self.again.load(grids)
            self.coarse.load(grids)

    def look(self, sent: Payloads, batch_SM: Tensor) -> None:
        """One inner step's payloads, which are computed again."""
        expected = sent_by(self.again, batch_SM)
        for stage in self.again.stages:
            stage.abandon()
        n = self.again.manifest.inner.microbatches
        if not self.step:
            self._look_at_the_first(expected, batch_SM)
        for direction, payloads in sent.items():
            for place, (came, computed) in enumerate(zip(payloads, expected[direction], strict=True)):
                boundary, microbatch = divmod(place, n)
                key, number = (self.round, direction, boundary), self.step * n + microbatch
                other = sample(computed, number).numpy()
                noise = torch.randn(computed.shape, generator=self.numbers)
                self.true.setdefault(key, {})[number] = likeness(sample(came, number).numpy(), other)
                self.made_up.setdefault(key, {})[number] = likeness(sample(noise, number).numpy(), other)
        self.step += 1

    def _look_at_the_first(self, expected: Payloads, batch_SM: Tensor) -> None:
        """A round's first step, in bf16, and with noise."""
        sent = sent_by(self.coarse, batch_SM)
        for stage in self.coarse.stages:
            stage.abandon()
        for direction, payloads in sent.items():
            for came, computed in zip(payloads, expected[direction], strict=True):
                noise = torch.randn(came.shape, generator=self.numbers)
                wrong = came.float() + 0.1 * noise * (came.float().norm() / noise.norm())
                key, other = (self.round, direction), sample(computed, 1).numpy()
                self.bf16.setdefault(key, []).append(likeness(sample(came, 1).numpy(), other))
                self.wrong.setdefault(key, []).append(likeness(sample(wrong, 1).numpy(), other))


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
        if not watch.round or self in (again, coarse):
            return gradients_of(self, batch_SM)
        sent = sent_by(self, batch_SM)
        watch.look(sent, batch_SM)
        return 0.0

    with mock.patch.object(Bench, "inner_loop", begun), mock.patch.object(WholeReplica, "gradients", looked_at):
        for round in range(1, last + 1):
            lab.round(round, lambda event: None, evaluate=False)
    return [row(manifest, watch, round, direction) for round in sorted(watch.rounds) for direction in DIRECTIONS]


def row(manifest: Manifest, watch: Watch, round: int, direction: str) -> Row:
    """What stages would make of what one round has shown."""
    n, steps = manifest.inner.microbatches, manifest.inner.steps
    last, shares, accused, found = list[float](), list[float](), 0, list[bool]()
    for boundary in range(STAGES - 1):
        seen = watch.true[round, direction, boundary]
        last += [seen[number] for number in range((steps - 1) * n, steps * n)]
        for number, like in seen.items():
            middle = likenesses.usual(number, n, seen)
            if number >= n and middle is not None and middle >= likenesses.LIKE:
                shares.append(like / middle)
            if number < n:
                continue
            accused += likenesses.is_false(number, n, seen, doubted=True)
            lied = seen | {number: watch.made_up[round, direction, boundary][number]}
            found.append(likenesses.is_false(number, n, lied))
    exact = min(watch.bf16[round, direction]), max(watch.wrong[round, direction])
    share, told = min(shares, default=0.0), sum(found) / len(found)
    where = manifest.inner.optimizer, manifest.run.seed, round, direction
    return Row(*where, *exact, min(last), len(shares), share, accused, told)


def table(rows: list[Row]) -> str:
    """Lines of text."""
    return "\n".join(
        f"{each.optimizer:6} seed {each.seed}  round {each.round:3} {each.direction:8}  first step in bf16 "
        f"{each.bf16:.5f}, wrong by a tenth {each.wrong_by_a_tenth:.4f}  last step {each.last_step:5.2f}  "
        f"{each.judged:5} judged, the least of them {each.least_share:5.2f} of others, {each.accused} accused  "
        f"{each.found:4.0%} of made-up ones found"
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
