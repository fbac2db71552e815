"""Groups in virtual time whose stages do spot checks, and of whose members one may lie: `SpotChecking` itself, on an
event loop whose clock jumps, with invented likenesses. It plays ten thousand of them in a minute and a half of two
cores, to see that nobody honest is blamed: `python -m tests.simulation.doubts --schedules 100000`.

What is invented is as it was measured (docs/benchmarks.md), or worse. Honest payloads of a first step lack at
most 3e-4 to 1. What a stage makes of something false is less false, or more. Links and the observer are slow by chance,
and the observer does not answer everything. A liar passes doubts on or not, and makes some up; it has what it received
checked or not, or says that what it received was false.
"""

import argparse
import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from types import SimpleNamespace
from typing import Any
from unittest import mock

from peer.compute.recomputation import COMPUTED_KEPT
from peer.network.duplex import BreachError
from peer.swarm.group import likenesses, spot_checks
from peer.swarm.group.spot_checks import SpotChecking
from protocol import clock
from protocol.codec.spot_check import Likeness
from protocol.errors import LostMemberError
from protocol.identity import PeerId
from protocol.manifest import Manifest
from protocol.schemas import pipeline_pb2 as pb
from tests.reference.small_manifest import small_manifest
from tests.world.loop import VirtualLoop

KINDS = ("honest", "made-up", "wrong by a tenth", "flipped")
MADE_UP = 1 / 20

BATCH = 250


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one group's round came to."""

    kind: str
    found: bool
    """A neighbour hung up on the liar."""
    blamed: list[str]
    """Honest members that an honest neighbour hung up on, and what for."""
    checks: int


@cache
def manifest_of(stages: int, n: int, steps: int, optimizer: str) -> Manifest:
    """A manifest of groups of so many stages; a step has `n` microbatches."""
    return small_manifest(
        model={"layers": stages},
        replicas={"stages": stages, "groups": 1},
        inner={"steps": steps, "sequences": n, "microbatch": 1, "optimizer": optimizer},
    )


@dataclass(slots=True)
class Truth:
    """How like each payload of a round is, by its microbatch and its place in the order of passes."""

    chance: random.Random
    manifest: Manifest
    kind: str
    liar: int
    same_state: bool
    denies: bool
    """Whether the liar says that what it received was false."""
    seen: dict[int, list[float]] = field(default_factory=dict)

    def honest(self) -> float:
        """A payload that nobody has falsified."""
        return 1 - self.chance.uniform(0, 3e-4) if self.same_state else self.chance.uniform(0.9, 0.999)

    def lie(self, like: float, backward: bool) -> float | None:
        """What the liar makes of a payload; None: it leaves it as it is."""
        if self.kind == "made-up" and self.chance.random() < MADE_UP:
            return self.chance.gauss(0, 0.022)
        if self.kind == "wrong by a tenth" and backward:
            return like * (1 - self.chance.uniform(0.0044, 0.0055))
        return -like if self.kind == "flipped" and backward else None

    def payloads(self, number: int) -> list[float]:
        """Of one microbatch, in the order in which it is passed on."""
        if number not in self.seen:
            stages = self.manifest.replicas.stages
            found, lack = list[float](), 0.0
            for place in range(2 * (stages - 1)):
                backward = place >= stages - 1
                sender = 2 * stages - 2 - place if backward else place
                like = self.honest()
                passed_on = like * (1 - min(1.0, lack * self.chance.uniform(0.3, 1.5)))
                told = self.lie(like, backward) if sender == self.liar and self.kind != "honest" else None
                found.append(passed_on if told is None else told)
                lack = max(lack, 1 - found[-1] / like if like else 1.0) if told is not None or lack else 0.0
            self.seen[number] = found
        return self.seen[number]


@dataclass(frozen=True, slots=True)
class Asked:
    """A question."""

    stage: int
    number: int
    neighbours: tuple[PeerId, ...] = ()


@dataclass(slots=True)
class Observer:
    """Answers after a while, one question at a time, or not at all."""

    truth: Truth
    seconds: float
    fails: float
    down: tuple[float, float]
    asked: int = 0
    kept: list[int] = field(default_factory=list)
    """What it has computed last, and need not compute again."""
    told: dict[int, dict[PeerId, tuple[float, float]]] = field(default_factory=dict)
    one_at_a_time: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def answer(self, asked: "Asked", _: Any) -> Likeness | None:
        """How like a stage's payloads of a microbatch are."""
        chance = self.truth.chance
        async with self.one_at_a_time:
            await asyncio.sleep((0.05 if asked.number in self.kept else self.seconds) * chance.uniform(0.5, 2))
            if chance.random() < self.fails or self.down[0] <= clock.monotonic() < self.down[1]:
                return None
            self.kept = [*self.kept, asked.number][-COMPUTED_KEPT:]
        self.asked += 1
        stage, number = asked.stage, asked.number
        stages, there = self.truth.manifest.replicas.stages, self.truth.payloads(number)
        activations = there[stage - 1] if stage else 0.0
        gradients = there[2 * stages - 3 - stage] if stage < stages - 1 else 0.0
        told = self.told.setdefault(number, {})
        if stage == self.truth.liar and self.truth.denies:
            activations = gradients = chance.gauss(0, 0.022)
        told[PeerId(f"stage-{stage}")] = activations, gradients
        beside = {peer: told[peer] for peer in asked.neighbours if peer in told}
        return Likeness(activations, gradients, self.truth.same_state, beside)


@dataclass(slots=True)
class Side:
    """One end of a link between two stages."""

    peer: PeerId
    seconds: float
    deliver: Callable[[pb.Frame], object] = lambda message: None
    """Takes what arrives at the other end."""

    def send(self, message: pb.Frame) -> None:
        """It arrives after a while, in order."""
        asyncio.get_running_loop().call_later(self.seconds, self.deliver, message)

    def breach(self, what: str) -> BreachError:
        """The error of the peer at the other end."""
        return BreachError(self.peer, what)


def play(seed: int) -> Outcome:
    """One round of one group."""
    loop, state = VirtualLoop(), random.getstate()
    random.seed(seed)
    try:
        with clock.read_from(SimpleNamespace(monotonic=loop.time, time=loop.time)):
            return loop.run_until_complete(_play(random.Random(seed)))
    finally:
        random.setstate(state)
        loop.close()


async def _play(chance: random.Random) -> Outcome:
    stages, n, steps = chance.randint(2, 6), chance.choice((2, 4, 6, 12)), chance.randint(3, 30)
    manifest = manifest_of(stages, n, steps, chance.choice(("muon", "adamw")))
    kind, liar = chance.choice(KINDS), chance.randrange(stages)
    denies, hides = (chance.random() < 0.2 and kind != "honest" for _ in range(2))
    truth = Truth(chance, manifest, kind, liar, chance.random() < 0.9, denies)
    fails, step_seconds = chance.choice((0.0, 0.0, chance.uniform(0, 0.5))), chance.uniform(2, 90)
    began = chance.uniform(0, step_seconds * steps)
    down = (began, began + chance.uniform(0, 120)) if chance.random() < 0.3 else (0.0, 0.0)
    observer = Observer(truth, chance.choice((0.1, 1.0, 4.0)), fails, down)
    names = [PeerId(f"stage-{stage}") for stage in range(stages)]
    links = [
        (Side(names[each + 1], delay), Side(names[each], delay)) for each, delay in enumerate(_delays(chance, stages))
    ]
    blamed, found, here = list[str](), list[bool](), list[SpotChecking]()

    async def run(work: Callable[..., Any], *arguments: Any) -> Any:
        return work(*arguments)

    def end_group(by: int, error: BreachError | LostMemberError) -> None:
        here[by].end()
        for stage, each in enumerate(here):  # who hears that the group is broken does so after a while
            asyncio.get_running_loop().call_later(0.5 * abs(stage - by), each.end)
        if not isinstance(error, BreachError) or (by == liar and kind != "honest"):
            return
        found.append(error.peer == names[liar] and kind != "honest")
        if not found[-1]:
            blamed.append(f"{names[by]} blames {error.peer}: {error}")

    outer: Any = SimpleNamespace(
        manifest=manifest, reconciler=None, followed=SimpleNamespace(torch_thread=SimpleNamespace(run=run))
    )
    with mock.patch.object(spot_checks, "ask", observer.answer), mock.patch.object(likenesses, "CHECKS_SHARE", 0.3):
        async with asyncio.TaskGroup() as tasks:
            for stage in range(stages):
                silent = stage == liar and hides
                received: Any = SimpleNamespace(
                    stage=stage,
                    passes=dict.fromkeys(range(n)),
                    read=lambda round, number, stage=stage, silent=silent: None if silent else Asked(stage, number),
                )
                before = links[stage - 1][1] if stage else None
                behind = links[stage][0] if stage < stages - 1 else None
                checks = SpotChecking(
                    outer,
                    received,
                    1,
                    before,
                    behind,
                    lambda error, by=stage: end_group(by, error),
                    tasks,  # type: ignore[arg-type, misc]
                )
                here.append(checks)
            is_mute = kind != "honest" and chance.random() < 0.3  # it passes no doubts on
            for stage, (down, up) in enumerate(links):
                for link, receiver, sender in ((down, stage + 1, stage), (up, stage, stage + 1)):
                    if not (is_mute and receiver == liar):
                        checks = here[receiver]
                        link.deliver = lambda frame, checks=checks, peer=names[sender]: checks.receive_doubt(
                            peer, frame.doubt
                        )
            for step in range(1, steps + 1):
                await asyncio.sleep(step_seconds)
                if kind != "honest" and chance.random() < 0.1:
                    here[liar]._send_doubt(chance.randrange(n))
                for checks in here:
                    if not checks.over:
                        checks.step_taken(step)
                if any(each.over for each in here):
                    break
            for checks in here:
                checks.end()
    return Outcome(kind, any(found), blamed, observer.asked)


def _delays(chance: random.Random, stages: int) -> Iterator[float]:
    return (chance.choice((0.005, 0.05, chance.uniform(0, 2))) for _ in range(stages - 1))


def play_many(seeds: range) -> tuple[Counter[tuple[str, bool]], list[tuple[int, str]]]:
    """By kind, and whether the liar was found, how many there were; and who was blamed wrongly, by seed."""
    counts, wrong = Counter[tuple[str, bool]](), list[tuple[int, str]]()
    for seed in seeds:
        outcome = play(seed)
        counts[outcome.kind, outcome.found] += 1
        wrong += [(seed, each) for each in outcome.blamed]
    return counts, wrong


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.doubts", description=__doc__)
    parser.add_argument("--schedules", type=int, default=10_000, help="how many to play")
    parser.add_argument("--seed", type=int, default=0, help="the first")
    parser.add_argument("--processes", type=int, default=2)
    chosen = parser.parse_args()
    last = chosen.seed + chosen.schedules
    batches = [range(each, min(each + BATCH, last)) for each in range(chosen.seed, last, BATCH)]
    counts, wrong = Counter[tuple[str, bool]](), list[tuple[int, str]]()
    with ProcessPoolExecutor(chosen.processes) as pool:
        for more, others in pool.map(play_many, batches):
            counts += more
            wrong += others
    for kind in KINDS:
        played = counts[kind, True] + counts[kind, False]
        print(f"{kind:18} {played:7} rounds, {counts[kind, True] / max(1, played):6.1%} found in it")
    print(f"{len(wrong)} honest blamed", *(f"  seed {seed}: {what}" for seed, what in wrong[:20]), sep="\n")
    return len(wrong) > 0


if __name__ == "__main__":
    raise SystemExit(main())
