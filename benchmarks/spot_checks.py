"""In how many rounds a volunteer that sends its group false payloads is found by spot checks, who is blamed for it, and
what that costs: on the swarm itself.

One group of four stages trains a model on real text with Muon, 28 microbatches a step and 50 steps a round. From the
second round on one volunteer sends false payloads of one kind (`peer/lab/false_payloads.py`). Told are how many rounds
it lied in until a neighbour hung up on it, how often somebody else was blamed, and which share of the group's
microbatches the operator's observer computed again. Who is not found within three rounds is not found. `honest`: there
is no liar, and nobody is to be blamed.

What runs is the daemon, in virtual time (`tests/world`): volunteers, an observer that audits, and a node.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).parent.parent))

import torch

from benchmarks.pool import served
from bootstrap.genesis import create_run
from peer.compute.recomputation import Recomputation
from peer.lab.false_payloads import falsify
from peer.swarm.group.stage_round import StageRound
from peer.telemetry.events import Joined, StepDone
from peer.telemetry.group_decisions import Dismissed
from protocol.manifest import Manifest, check_manifest
from tests.world.owners import Owner
from tests.world.runs import get_ready

KINDS = ("made-up", "flipped", "biased", "noisy", "honest")
STAGES, HONEST_ROUNDS, LYING_ROUNDS = 4, 1, 3

PASS_SECONDS = 1.0
"""A microbatch forward and back on a volunteer's machine."""


@dataclass(frozen=True, slots=True)
class Row:
    """One run."""

    kind: str
    stage: int
    """The liar's."""
    seed: int
    rounds: int | None
    """Rounds in which it lied until it was found; None: it was not."""
    reason: str
    """What it was found by."""
    others_blamed: int
    checks: int
    """Microbatches that were computed again."""
    share: float
    """The same, as a share of the group's."""


def manifest_of(seed: int, preset: str) -> Manifest:
    """The run's manifest."""
    return check_manifest(
        {
            "run": {"seed": seed},
            "model": {"preset": preset},
            "replicas": {"groups": 1, "datacenters": 0, "stages": STAGES, "compression": 8},
            "inner": {"steps": 50, "sequences": 28, "microbatch": 1, "warmup": 50}
            | {"optimizer": "muon", "learning_rate": 8e-3},
            "outer": {"rounds": HONEST_ROUNDS + LYING_ROUNDS},
            "evaluation": {"sequences": 8},
        }
    )


@contextmanager
def lying(kind: str, stage: int, seed: int) -> Iterator[None]:
    """In the block, the volunteer of a stage sends false payloads, from the second round on."""
    honest = StageRound.load

    async def load(self: StageRound, round: int, *more: Any) -> None:
        await honest(self, round, *more)
        if self.trainer.index == stage and round > HONEST_ROUNDS and kind != "honest":
            falsify(self.trainer, kind, (seed, round, self.steps))

    with mock.patch.object(StageRound, "load", load):
        yield


def watch(kind: str, stage: int, seed: int, preset: str, data: Path, folder: Path) -> Row:
    """One run, until somebody is blamed or it ends."""
    manifest, files, computed = manifest_of(seed, preset), folder / f"{kind}-{stage}-{seed}", list[int]()
    create_run(manifest, files, data)
    again = Recomputation.compute

    def counted(self: Recomputation, *asked: Any) -> Any:
        computed.append(1)
        return again(self, *asked)

    with (
        mock.patch.object(Recomputation, "compute", counted),
        lying(kind, stage, seed),
        served(manifest, seed, files, PASS_SECONDS) as world,
    ):
        observer = world.add("observer", "observer")
        observer.audits = True
        world.name_attester(observer)
        owners = [world.add(f"volunteer-{each}", "volunteer", each) for each in range(STAGES)]
        for owner in (observer, *owners):
            world.start(owner)
        world.run_until(lambda: any(said(owners, Dismissed)) or all(not each.process for each in owners), 1e6)
        (liar,) = {event.peer_id for event in said([owners[stage]], Joined)}
        blamed = said(owners, Dismissed)
        rightly = [event for event in blamed if event.peer == liar and kind != "honest"]
        rounds = rightly[0].round - HONEST_ROUNDS if rightly else None
        steps = len(said([owners[0]], StepDone))
        reason = rightly[0].reason if rightly else ""
        share = len(computed) / (steps * manifest.inner.microbatches)
        return Row(kind, stage, seed, rounds, reason, len(blamed) - len(rightly), len(computed), share)


def said(owners: list[Owner], kind: type) -> list[Any]:
    """The events of a kind that owners' programs have told."""
    return [event for owner in owners for run in owner.runs for _, event in run.events if isinstance(event, kind)]


def table(rows: list[Row]) -> str:
    """Lines of text."""
    return "\n".join(
        f"{each.kind:8} stage {each.stage}  seed {each.seed}  "
        f"{'not found' if each.rounds is None else f'found in round {each.rounds} of its lies'}  "
        f"{each.others_blamed} others blamed  {each.checks:4} computed again, {each.share:.2%}  {each.reason}"
        for each in rows
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON")
    parser.add_argument("--data", type=Path, required=True, help="the text, as of `hetpeer bootstrap --data`")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1], help="of the runs; default: 1")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS, help="of lies; default: all")
    parser.add_argument("--stages", type=int, nargs="+", default=[0, 1, 2, 3], help="of the liar; default: each")
    parser.add_argument("--preset", default="pico", help="the model; default: pico")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    get_ready()
    rows = list[Row]()
    with tempfile.TemporaryDirectory() as folder:
        for kind in chosen.kinds:
            for stage in chosen.stages if kind != "honest" else chosen.stages[:1]:
                for seed in chosen.seeds:
                    rows.append(watch(kind, stage, seed, chosen.preset, chosen.data, Path(folder)))
                    print(table(rows[-1:]), file=sys.stderr, flush=True)
    print(json.dumps([asdict(each) for each in rows]) if chosen.json else table(rows))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
