"""What it costs in held-out loss, at about the same tokens and rounds, that groups are elastic: on the swarm itself.

Four groups of four stages train a model through their boundaries, with Muon: in chains that all take H inner steps; and
with groups of speeds 1 : 1 : 2 : 4 that take as many as they can (`inner.most_steps`, each contribution counts once),
exchange members, and whose steps overlap (`inner.overlap = 2`). H is half as large there, so a round has about as many
tokens, but for the first two, in which nobody knows yet how quick the others are: so there is one round more. `tokens`
says how many there were.

What runs is the daemon, in virtual time (`tests/world`): the code of sixteen volunteers, an observer, which evaluates,
and a node, with real contributions, sets and digests. The model, `pico` by default, is trained on real text.
"""

import argparse
import json
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean

sys.path.insert(0, str(Path(__file__).parent.parent))

import torch

from benchmarks.pool import hold_one_state, served, told_by
from bootstrap.genesis import create_run
from peer.telemetry.events import Evaluated
from protocol.manifest import Manifest, check_manifest
from tests.world.runs import get_ready

ARRANGEMENTS = ("chains", "elastic")
GROUPS, STAGES, STEPS = 4, 4, 20
SPEEDS = (1, 1, 2, 4)
"""Of the groups, where they are uneven: with half of the steps a round has as many tokens."""

PASS_SECONDS = 1.0
"""A microbatch forward and back on a machine of speed 1."""


@dataclass(frozen=True, slots=True)
class Row:
    """One run."""

    arrangement: str
    seed: int
    tokens: int
    loss: float
    """Held out, through the boundaries, in nats per token, after the last round."""
    loss_plain: float
    steps: list[int]
    """Inner steps of each group in the last round."""
    digests_equal: bool


def manifest_of(elastic: bool, seed: int, preset: str, rounds: int) -> Manifest:
    """The run's manifest."""
    steps = STEPS * GROUPS // sum(SPEEDS) if elastic else STEPS
    rounds += elastic
    inner = {"steps": steps, "sequences": 8, "microbatch": 1, "warmup": max(1, rounds * steps // 8)}
    loose = {"most_steps": steps * max(SPEEDS), "overlap": 2} if elastic else {}
    return check_manifest(
        {
            "run": {"seed": seed},
            "model": {"preset": preset},
            "replicas": {"groups": GROUPS, "datacenters": 0, "stages": STAGES, "compression": 8},
            "inner": inner | loose | {"optimizer": "muon", "learning_rate": 8e-3},
            "outer": {"rounds": rounds},
            "evaluation": {"sequences": 128},
        }
    )


def train(arrangement: str, seed: int, preset: str, rounds: int, data: Path, folder: Path) -> Row:
    """One run to its end, in virtual time."""
    elastic = arrangement == "elastic"
    manifest, files = manifest_of(elastic, seed, preset, rounds), folder / f"{arrangement}-{seed}"
    create_run(manifest, files, data)
    with served(manifest, seed, files, PASS_SECONDS) as world:
        owners = [
            world.add(f"volunteer-{stage}-{group}", "volunteer", stage)
            for group in range(GROUPS)
            for stage in range(STAGES)
        ]
        for number, owner in enumerate(owners):
            owner.machine.speed = 1 / SPEEDS[number // STAGES] if elastic else 1.0
        observer = world.add("observer", "observer")
        for owner in (*owners, observer):
            world.start(owner)
        if not world.run_until(lambda: all(each.process is None for each in (*owners, observer)), 3600.0 * rounds):
            raise SystemExit(f"seed {seed}: the run did not end")

        last = manifest.outer.rounds
        told, (watched,) = told_by(owners), told_by([observer])
        steps = [[each.steps(round) for round in range(1, last + 1)] for each in told if not each.stage]
        ((_, evaluated),) = watched.of(Evaluated, last)
        tokens = manifest.tokens_per_step * sum(map(sum, steps))
        losses, shown = (evaluated.loss, evaluated.loss_plain), [each[-1] for each in steps]
        return Row(arrangement, seed, tokens, *losses, shown, hold_one_state(told))


def table(rows: list[Row]) -> str:
    """Lines of text."""
    return "\n".join(
        f"{each.arrangement:8} seed {each.seed}  {each.tokens / 1e6:5.2f} million tokens  loss {each.loss:.3f} through "
        f"the boundaries, {each.loss_plain:.3f} plain  last round's steps {each.steps}"
        f"{'' if each.digests_equal else '  DIGESTS DIFFER'}"
        for each in rows
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON")
    parser.add_argument("--data", type=Path, required=True, help="the text, as of `hetpeer bootstrap --data`")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help="of the runs; default: 1 2 3")
    parser.add_argument("--preset", default="pico", help="the model; default: pico")
    parser.add_argument("--rounds", type=int, default=12, help="of a run; default: 12")
    parser.add_argument("--arrangements", nargs="+", choices=ARRANGEMENTS, default=ARRANGEMENTS, help="default: both")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    get_ready()
    rows = list[Row]()
    with tempfile.TemporaryDirectory() as folder:
        for seed in chosen.seeds:
            for arrangement in chosen.arrangements:
                rows.append(train(arrangement, seed, chosen.preset, chosen.rounds, chosen.data, Path(folder)))
                print(table(rows[-1:]), file=sys.stderr, flush=True)
    losses = [[each.loss for each in rows if each.arrangement == name] for name in ARRANGEMENTS]
    more = mean(losses[1]) / mean(losses[0]) - 1 if all(losses) else None
    if chosen.json:
        print(json.dumps({"loss_more": more, "rows": [asdict(each) for each in rows]}))
    else:
        print(table(rows) + ("" if more is None else f"\n\nelastic groups: {more:+.2%} of the loss"))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
