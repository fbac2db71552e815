"""Volunteers of unequal speeds over four stages: at which share of the best flow they train, and what kills cost.

The best flow, the *bound*, is that of a pool in which nobody ever waits: of the stages' summed speeds the lowest. Told
are the shares of it at which the swarm trains where all groups take H inner steps a round and wait for the slowest
(`chains_share_of_bound`), where each takes as many as it can (`inner.most_steps`; `uneven_share_of_bound`), and where
its steps overlap as well (`inner.overlap`; `share_of_bound`). Groups form as they always do, and exchange members where
steps may be uneven.

What runs is the daemon, in virtual time (`tests/world`): the real code of twelve volunteers and a node, with real
contributions, sets and digests, on machines whose passes take as long as this file says, over links of 20 to 100 Mb/s,
40 ms there and back. A pass of a microbatch takes 1.76 s forward and back on a machine of speed 1
(4096 tokens of a quarter of `178m` at 0.6 TFLOP/s), and a frame as long as its 786 kB would; the model itself is tiny.
Nothing else takes time.

With `--shaped` the same are real processes in network namespaces, on links of these rates and this delay (`shaped/`;
needs root), and passes are timed waits. So what Python, TLS, sockets, TCP and the directory cost is in it. Time is
scaled by a quarter, or by `--time`: the passes, and with them a frame's bytes, as a microbatch has fewer tokens. The
delay, starting again and the daemon's own patience are *not* scaled; with `--time` virtual time is scaled alike. With
`--compute micro` passes are those of that model, in processes that share this machine's cores: the bound is then what
these would train if they did nothing else. With `--remember` hosts have a TCP that keeps its windows over pauses.

With `--kills 10` somebody is killed every ten seconds, and starts again five later, as a service manager would do it:
`kills` is the share of the undisturbed tokens that is left.
"""

import argparse
import json
import random
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import mean
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).parent.parent))

import psutil
import torch

from benchmarks.shaped.hosts import hosts, missing
from benchmarks.shaped.swarm import Volunteer, play
from peer.compute.calibration import tokens_per_second
from peer.compute.trainer import StageTrainer
from peer.telemetry.events import Contributed, Finished, RoundDone
from protocol.manifest import Manifest, check_manifest
from tests.chaos.damage import Damage, damages
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
CONTEXT = 2048
"""Of `178m`, with two sequences in a microbatch; 96 numbers of two bytes a token are its frames."""

TIME = 0.25
AGAIN_SECONDS = 5.0
WARM_ROUNDS = 2
"""Until then nobody knows how quick the others are."""


@dataclass(frozen=True, slots=True)
class Arrangement:
    """How groups take their steps."""

    name: str
    most_steps: int
    overlap: int

    def tables(self, rounds: int) -> dict[str, dict[str, Any]]:
        """The run's manifest, but for the model and what crosses a boundary."""
        return {
            "replicas": {"groups": len(SPEEDS) // STAGES, "datacenters": 0, "stages": STAGES, "compression": 1},
            "inner": {"steps": STEPS, "most_steps": self.most_steps, "overlap": self.overlap}
            | {"sequences": 2 * MICROBATCHES, "microbatch": 2},
            "outer": {"rounds": rounds},
        }

    def manifest(self, rounds: int) -> Manifest:
        """With the smallest model whose frames are larger than what else peers tell each other."""
        tables = self.tables(rounds)
        tables["replicas"]["wire"] = "fp32"
        return small_manifest(model={"layers": STAGES, "d": 32, "ffn": 32, "context": 64}, **tables)


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
    cores: float = 0.0
    """Of this machine, that were busy; of real processes."""
    damage: list[Damage] = field(default_factory=list)
    """Of each kill; of real processes."""


@dataclass(frozen=True, slots=True)
class Place:
    """Who serves what, how fast, and over which link."""

    stage: int
    number: int
    speed: int
    megabits: float

    @property
    def name(self) -> str:
        """The volunteer's."""
        return f"volunteer-{self.stage}-{self.number}"


def places(chance: random.Random) -> list[Place]:
    """All volunteers, in the order in which they come."""
    speeds = [*SPEEDS]
    chance.shuffle(speeds)
    each = [(stage, number) for number in range(len(speeds) // STAGES) for stage in range(STAGES)]
    return [Place(*one, speeds[one[0] :: STAGES][one[1]], chance.uniform(*MEGABITS)) for one in each]


@dataclass(frozen=True, slots=True)
class Told:
    """What a volunteer said in all of its lives, with the times."""

    stage: int
    moments: list[tuple[float, Any]]

    def of(self, kind: type, round: int) -> list[tuple[float, Any]]:
        """The events of a kind and round."""
        return [(at, event) for at, event in self.moments if isinstance(event, kind) and event.round == round]

    def steps(self, round: int) -> int:
        """What counts of a round: who is killed may contribute to it once more, which counts nowhere."""
        return max((event.steps for _, event in self.of(Contributed, round)), default=0)


def best_flow(seed: int, manifest: Manifest, seconds: float) -> float:
    """Tokens a second through the stages' summed speeds; a microbatch takes so long on a machine of speed 1."""
    drawn = places(random.Random(seed))
    speed = min(sum(each.speed for each in drawn if each.stage == stage) for stage in range(STAGES))
    return speed * manifest.inner.microbatch * manifest.model.context / seconds


def hold_one_state(told: list[Told]) -> bool:
    """Whether all have finished, and hold the same."""
    finished = [event for each in told for _, event in each.moments if isinstance(event, Finished)]
    digests = {(part, digest) for event in finished for part, digest in event.digests.items()}
    return len(finished) == len(told) and len(digests) == len({part for part, _ in digests})


def row_of(
    arrangement: Arrangement, seed: int, kills: float, manifest: Manifest, bound: float, told: list[Told]
) -> Row:
    """One run, by what the volunteers said."""
    rounds = manifest.outer.rounds
    ends = [at for each in told for at, _ in each.of(RoundDone, WARM_ROUNDS)]
    last = [at for each in told for at, _ in each.of(RoundDone, rounds)]
    counted = range(WARM_ROUNDS + 1, rounds + 1)
    steps = [[each.steps(round) for round in counted] for each in told if each.stage == 0]
    tokens = sum(map(sum, steps)) * manifest.tokens_per_step / (max(last) - min(ends))
    shown = [each[-1] for each in steps]
    return Row(arrangement.name, seed, kills, tokens, bound, tokens / bound, shown, hold_one_state(told))


# In virtual time


@contextmanager
def passes(world: World, seconds: float) -> Iterator[None]:
    """In the block a microbatch takes so many seconds on a machine of speed 1, and nothing else on a torch thread takes
    time."""

    def timed(original: Any, share: float) -> Any:
        def work(*arguments: Any, **named: Any) -> Any:
            world.loop.spend(share * seconds * HOST.get().machine.speed)
            return original(*arguments, **named)

        return work

    world.loop.cost = lambda executor, host: 0.0
    with (
        mock.patch.object(StageTrainer, "forward", timed(StageTrainer.forward, 1 / 3)),
        mock.patch.object(StageTrainer, "backward", timed(StageTrainer.backward, 2 / 3)),
        mock.patch.object(world_standing, "STEP_SECONDS", seconds),
    ):
        yield


@contextmanager
def served(manifest: Manifest, seed: int, files: Path, seconds: float) -> Iterator[World]:
    """A world in which a node serves the run of these files, and a microbatch takes so many seconds on a machine of
    speed 1."""
    with ExitStack() as stack:
        world = World(manifest, stack.enter_context(folder_in_memory()), seed, files)
        stack.enter_context(standing(world))
        stack.enter_context(passes(world, seconds))
        stack.callback(world.close)
        world.start(world.owners["node"])
        world.run_until(lambda: world.ticket is not None, 10)
        yield world


def told_by(owners: list[Owner]) -> list[Told]:
    """What volunteers have said until now."""
    return [Told(owner.stage or 0, [each for run in owner.runs for each in run.events]) for owner in owners]


def train(arrangement: Arrangement, seed: int, rounds: int, kills: float, time: float = 1.0) -> Row:
    """One run to its end, in virtual time, whose passes and frames take `time` of their seconds."""
    manifest, chance = arrangement.manifest(rounds), random.Random(seed)
    with served(manifest, seed, files_of(manifest), time * PASS_SECONDS) as world:
        frame = manifest.inner.microbatch * manifest.model.context * (manifest.model.d * 4 + 4)
        owners: list[Owner] = []
        for place in places(chance):
            rate = place.megabits * 1e6 / 8 * frame / (FRAME_BYTES * time)
            link = {"latency": LATENCY / 2, "up": rate, "down": rate}
            owners.append(world.add(place.name, "volunteer", place.stage, **link))
            owners[-1].machine.speed = 1 / place.speed
            world.start(owners[-1])
        began = world.loop.now

        def kill() -> None:
            there = [owner for owner in owners if owner.process is not None]
            if len(there) == len(owners):
                owner = chance.choice(there)
                world.kill(owner.process)  # type: ignore[arg-type]
                world.at(world.loop.now + AGAIN_SECONDS, lambda: world.start(owner))
            if there and not any(each.of(RoundDone, rounds) for each in told_by(owners)):
                world.at(world.loop.now + kills, kill)

        if kills:
            world.at(began + kills, kill)
        if not world.run_until(lambda: all(owner.process is None for owner in owners), 3600.0 * rounds):
            raise SystemExit(f"{arrangement.name}, seed {seed}: the run did not end")
        return row_of(
            arrangement, seed, kills, manifest, best_flow(seed, manifest, time * PASS_SECONDS), told_by(owners)
        )


# Real processes


def train_shaped(
    arrangement: Arrangement,
    seed: int,
    rounds: int,
    kills: float,
    time: float,
    folder: Path,
    preset: str | None = None,
    remember: bool = False,
) -> Row:
    """One run to its end, of real processes, whose passes take `time` of their seconds; or what a model takes."""
    tables = arrangement.tables(rounds)
    tables["model"] = {"layers": STAGES, "d": 96, "heads": 4, "kv_heads": 4, "ffn": 96, "vocabulary": 300}
    tables["model"]["context"] = round(CONTEXT * time)
    tables["replicas"]["wire"] = "bf16"
    if preset is not None:
        tables["model"] = {"preset": preset}
    manifest, chance = check_manifest(tables), random.Random(seed)
    bound = of_cores(manifest) if preset else best_flow(seed, manifest, time * PASS_SECONDS)
    volunteers = [
        Volunteer(each.name, each.stage, each.megabits, None if preset else time * PASS_SECONDS / each.speed)
        for each in places(chance)
    ]
    most_seconds = 120 + rounds * STEPS * MICROBATCHES * 20 * time * PASS_SECONDS
    with hosts(len(volunteers) + 1, LATENCY, forget=not remember) as on:
        busy = psutil.cpu_times()
        said = play(on, folder, tables, volunteers, rounds, kills, AGAIN_SECONDS, chance, most_seconds)
        after = psutil.cpu_times()
    told = [
        Told(each.stage, [(entry.seconds, entry.event) for entry in said if entry.process == each.name])
        for each in volunteers
    ]
    row = row_of(arrangement, seed, kills, manifest, bound, told)
    idle = after.idle - busy.idle + after.iowait - busy.iowait
    cores = psutil.cpu_count() * (1 - idle / (sum(after) - sum(busy)))
    return replace(row, cores=cores, damage=damages(said, rounds, STEPS) if kills else [])


def of_cores(manifest: Manifest) -> float:
    """Tokens a second that this machine's cores would train if they did nothing but the passes."""
    from group.training import trainer_of

    torch.set_num_threads(1)
    seconds = sum(1 / tokens_per_second(trainer_of(manifest, stage)) for stage in range(STAGES))
    return float(psutil.cpu_count()) / seconds


def table(rows: list[Row]) -> str:
    """Lines of text."""
    return "\n".join(
        f"{each.arrangement:12} seed {each.seed}  {f'a kill every {each.kills:g} s' if each.kills else '':20} "
        f"{each.tokens_per_second:7.0f} tokens/s  {each.share:6.1%} of the bound  last round's steps "
        f"{each.steps}{f'  {each.cores:.1f} cores busy' if each.cores else ''}"
        f"{'' if each.digests_equal else '  DIGESTS DIFFER'}"
        for each in rows
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help="who serves what; default: 1 2 3")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="of a run; default: 6")
    parser.add_argument("--kills", type=float, default=0.0, metavar="SECONDS", help="kill somebody so often, too")
    names = [each.name for each in ARRANGEMENTS]
    parser.add_argument("--arrangements", nargs="+", choices=names, default=names, help="default: all three")
    parser.add_argument("--shaped", action="store_true", help="real processes on shaped links")
    scaled = "of a pass's seconds, and a frame's; default: 1, and with --shaped 0.25"
    parser.add_argument("--time", type=float, metavar="SHARE", help=scaled)
    parser.add_argument("--compute", metavar="PRESET", help="with --shaped, compute this model instead of waiting")
    remember = "with --shaped, hosts with net.ipv4.tcp_slow_start_after_idle = 0"
    parser.add_argument("--remember", action="store_true", help=remember)
    parser.add_argument(
        "--keep", type=Path, metavar="FOLDER", help="with --shaped, what all processes write stays here"
    )
    given = parser.parse_args()
    if given.shaped and (lacking := missing()):
        print(lacking, file=sys.stderr)
        return 1
    get_ready()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as scratch:
        for seed in given.seeds:
            for arrangement in [each for each in ARRANGEMENTS if each.name in given.arrangements]:
                for kills in sorted({0.0, given.kills}):
                    run = arrangement, seed, given.rounds, kills
                    folder = (given.keep or Path(scratch)) / f"{arrangement.name}-{seed}-{kills:g}"
                    if given.shaped:
                        rows.append(train_shaped(*run, given.time or TIME, folder, given.compute, given.remember))
                    else:
                        rows.append(train(*run, given.time or 1.0))
                    print(table(rows[-1:]), file=sys.stderr, flush=True)

    def share(name: str, disturbed: bool = False) -> float | None:
        shares = [each.share for each in rows if each.arrangement == name and bool(each.kills) == disturbed]
        return mean(shares) if shares else None

    def kept(name: str) -> float | None:
        left, undisturbed = share(name, disturbed=True), share(name)
        return left / undisturbed if left and undisturbed else None

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
