"""Volunteers of unequal speeds over four stages: at which share of the best flow they train, and what kills cost.

The best flow, the *bound*, is that of a pool in which nobody ever waits: of the stages' summed speeds the lowest. Told
are the shares of it at which the swarm trains where all groups take H inner steps a round and wait for the slowest
(`chains_share_of_bound`), where each takes as many as it can (`inner.most_steps`; `uneven_share_of_bound`), and where
its steps overlap as well (`inner.overlap`; `share_of_bound`). Groups form as they always do,
and exchange members where steps may be uneven.

What runs is the daemon, in virtual time (`tests/world`): the real code of twelve volunteers and a node, with real
contributions, sets and digests, on machines whose passes take as long as this file says, over links of 20 to 100 Mb/s,
40 ms there and back. A pass of a microbatch takes 1.76 s forward and back on a machine of speed 1
(4096 tokens of a quarter of `178m` at 0.6 TFLOP/s), and a frame as long as its 786 kB would; the model itself is tiny.
Nothing else takes time: what Python costs is in `benchmarks/utilization.py`.

With `--kills 10` somebody is killed every ten seconds, and starts again five later, as a service manager would do it:
`kills` is the share of the undisturbed tokens that is left.
"""

import argparse
import json
import random
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).parent.parent))

from peer.compute.trainer import StageTrainer
from peer.telemetry.events import Contributed, Finished, RoundDone
from protocol.manifest import Manifest
from tests.reference.small_manifest import small_manifest
from tests.world import standing as world_standing
from tests.world.loop import HOST
from tests.world.owners import Owner
from tests.world.play import folder_in_memory
from tests.world.runs import files_of, get_ready
from tests.world.standing import standing
from tests.world.world import World

SPEEDS = (1, 1, 2, 4, 8, 1, 1, 2, 4, 8, 1, 2)
"""Of the volunteers, in a mixture that stays; a seed says who serves which stage."""

STAGES, STEPS, MICROBATCHES, ROUNDS = 4, 6, 8, 6

MOST = 16 * STEPS

PASS_SECONDS = 1.76
"""A microbatch forward and back on a machine of speed 1."""

FRAME_BYTES = 786e3
"""That a frame of `178m` has, for whose passes these stand."""

MEGABITS = (20.0, 100.0)
LATENCY = 0.02
AGAIN_SECONDS = 5.0
WARM_ROUNDS = 2
"""Until then nobody knows how quick the others are."""


@dataclass(frozen=True, slots=True)
class Arrangement:
    """How groups take their steps."""

    name: str
    most_steps: int
    overlap: int

    def manifest(self, rounds: int) -> Manifest:
        """The run's, with the smallest model whose frames are larger than what else peers tell each other."""
        return small_manifest(
            model={"layers": STAGES, "d": 32, "ffn": 32, "context": 64},
            replicas={"groups": len(SPEEDS) // STAGES, "datacenters": 0, "stages": STAGES}
            | {"compression": 1, "wire": "fp32"},
            inner={"steps": STEPS, "most_steps": self.most_steps, "overlap": self.overlap}
            | {"sequences": 2 * MICROBATCHES, "microbatch": 2},
            outer={"rounds": rounds},
        )


ARRANGEMENTS = (Arrangement("chains", 0, 0), Arrangement("uneven", MOST, 0), Arrangement("overlapping", MOST, 2))


@dataclass(frozen=True, slots=True)
class Row:
    """One run."""

    arrangement: str
    seed: int
    kills: float
    """Seconds between two; 0: none."""
    tokens_per_second: float
    bound: float
    share: float
    steps: list[int]
    """Inner steps of each group in the last round."""
    digests_equal: bool


@contextmanager
def passes(world: World) -> Iterator[None]:
    """In the block a pass takes as long as the machine is slow, and nothing else on a torch thread takes time."""

    def timed(original: Any, share: float) -> Any:
        def work(*arguments: Any, **named: Any) -> Any:
            world.loop.spend(share * PASS_SECONDS * HOST.get().machine.speed)
            return original(*arguments, **named)

        return work

    world.loop.cost = lambda executor, host: 0.0
    with (
        mock.patch.object(StageTrainer, "forward", timed(StageTrainer.forward, 1 / 3)),
        mock.patch.object(StageTrainer, "backward", timed(StageTrainer.backward, 2 / 3)),
        mock.patch.object(world_standing, "STEP_SECONDS", PASS_SECONDS),
    ):
        yield


def train(arrangement: Arrangement, seed: int, rounds: int, kills: float) -> Row:
    """One run to its end."""
    manifest, chance = arrangement.manifest(rounds), random.Random(seed)
    speeds = [*SPEEDS]
    chance.shuffle(speeds)
    of_stage = [speeds[stage::STAGES] for stage in range(STAGES)]
    bound = min(map(sum, of_stage)) * manifest.inner.microbatch * manifest.model.context / PASS_SECONDS
    with ExitStack() as stack:
        world = World(manifest, stack.enter_context(folder_in_memory()), seed, files_of(manifest))
        stack.enter_context(standing(world))
        stack.enter_context(passes(world))
        stack.callback(world.close)
        world.start(world.owners["node"])
        world.run_until(lambda: world.ticket is not None, 10)
        frame = manifest.inner.microbatch * manifest.model.context * (manifest.model.d * 4 + 4)
        owners: list[Owner] = []
        for stage, number in ((stage, number) for number in range(len(speeds) // STAGES) for stage in range(STAGES)):
            rate = chance.uniform(*MEGABITS) * 1e6 / 8 * frame / FRAME_BYTES
            link = {"latency": LATENCY / 2, "up": rate, "down": rate}
            owners.append(world.add(f"volunteer-{stage}-{number}", "volunteer", stage, **link))
            owners[-1].machine.speed = 1 / of_stage[stage][number]
            world.start(owners[-1])
        began = world.loop.now

        def kill() -> None:
            there = [owner for owner in owners if owner.process is not None]
            if len(there) == len(owners):
                owner = chance.choice(there)
                world.kill(owner.process)  # type: ignore[arg-type]
                world.at(world.loop.now + AGAIN_SECONDS, lambda: world.start(owner))
            if there and not any(_told(each, RoundDone, rounds) for each in owners):
                world.at(world.loop.now + kills, kill)

        if kills:
            world.at(began + kills, kill)
        if not world.run_until(lambda: all(owner.process is None for owner in owners), 3600.0 * rounds):
            raise SystemExit(f"{arrangement.name}, seed {seed}: the run did not end")
        leaders = [owner for owner in owners if owner.stage == 0]
        ends = [at for owner in owners for at, _ in _told(owner, RoundDone, WARM_ROUNDS)]
        last = [at for owner in owners for at, _ in _told(owner, RoundDone, rounds)]
        counted = range(WARM_ROUNDS + 1, rounds + 1)
        steps = [[_steps(each, round) for round in counted] for each in leaders]
        finished = [
            event for owner in owners for run in owner.runs for _, event in run.events if isinstance(event, Finished)
        ]
        digests = {(part, digest) for event in finished for part, digest in event.digests.items()}
        tokens = sum(map(sum, steps)) * manifest.tokens_per_step / (max(last) - min(ends))
        equal = len(finished) == len(owners) and len(digests) == len({part for part, _ in digests})
        shown = [each[-1] for each in steps]
    return Row(arrangement.name, seed, kills, tokens, bound, tokens / bound, shown, equal)


def _told(owner: Owner, kind: type, round: int) -> list[tuple[float, Any]]:
    """The events of a kind and round, with their times."""
    moments = [(at, event) for run in owner.runs for at, event in run.events]
    return [(at, event) for at, event in moments if isinstance(event, kind) and event.round == round]


def _steps(owner: Owner, round: int) -> int:
    """What counts of an owner in a round: who is killed may contribute to it once more, which counts nowhere."""
    return max((event.steps for _, event in _told(owner, Contributed, round)), default=0)


def table(rows: list[Row]) -> str:
    """Lines of text."""
    return "\n".join(
        f"{each.arrangement:12} seed {each.seed}  {f'a kill every {each.kills:g} s' if each.kills else '':20} "
        f"{each.tokens_per_second:7.0f} tokens/s  {each.share:6.1%} of the bound  last round's steps "
        f"{each.steps}{'' if each.digests_equal else '  DIGESTS DIFFER'}"
        for each in rows
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help="who serves what; default: 1 2 3")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="of a run; default: 6")
    parser.add_argument("--kills", type=float, default=0.0, metavar="SECONDS", help="kill somebody so often, too")
    given = parser.parse_args()
    get_ready()
    rows: list[Row] = []
    for seed in given.seeds:
        for arrangement in ARRANGEMENTS:
            for kills in {0.0, given.kills}:
                rows.append(train(arrangement, seed, given.rounds, kills))
                print(table(rows[-1:]), file=sys.stderr, flush=True)

    def share(name: str) -> float:
        return mean(each.share for each in rows if each.arrangement == name and not each.kills)

    def kept(name: str) -> float | None:
        disturbed = [each.share for each in rows if each.arrangement == name and each.kills]
        return mean(disturbed) / share(name) if disturbed else None

    found = {
        "share_of_bound": share("overlapping"),
        "uneven_share_of_bound": share("uneven"),
        "chains_share_of_bound": share("chains"),
        "kills": kept("overlapping"),
        "chains_kills": kept("chains"),
        "runs": [asdict(each) for each in rows],
    }
    print(json.dumps(found, indent=1) if given.json else table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
