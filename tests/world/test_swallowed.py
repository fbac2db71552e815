"""A volunteer that swallows what it is to compute, and gives signs of life: who sits beside it finds it, and nobody
else is blamed. In virtual time, at each stage of a group."""

import asyncio
from typing import Any

import pytest

from peer.swarm.group.first_stage import FirstStage
from peer.swarm.group.inner_step import InnerStep
from protocol.events.activity import GroupFormed, RoundDone, StepDone
from protocol.events.group_decisions import Dismissed
from protocol.patience import BEHIND_SECONDS, FURTHER_STAGE_SHARE, SHORTEST_STEP_BOUND_SECONDS
from tests.world import test_cases
from tests.world.test_cases import MakeWorld, join, told

world = test_cases.world

STAGES, LAST_HONEST, ROUNDS = 3, 2, 5
TABLES: dict[str, dict[str, Any]] = {
    "model": {"d": 16, "layers": STAGES, "heads": 2, "kv_heads": 2, "ffn": 24, "vocabulary": 300, "context": 16},
    "replicas": {"groups": 1, "stages": STAGES, "datacenters": 1, "compression": 4},
    "inner": {"steps": 4},
    "outer": {"rounds": ROUNDS},
}
MOST_SECONDS = SHORTEST_STEP_BOUND_SECONDS * (1 + FURTHER_STAGE_SHARE * STAGES)


@pytest.mark.parametrize("stage", range(STAGES))
def test_who_swallows_microbatches_is_found_by_who_sits_beside_it(
    world: MakeWorld, monkeypatch: pytest.MonkeyPatch, stage: int
):
    trainers, honest = dict[int, Any](), InnerStep.take

    async def swallow(self: InnerStep) -> Any:
        trainer = self.pipeline.trainer
        liar = trainers.setdefault(trainer.index, trainer)  # who takes its seat later has another
        if trainer is liar and liar.index == stage and self.round > LAST_HONEST:
            await asyncio.Event().wait()
        return await honest(self)

    monkeypatch.setattr(InnerStep, "take", swallow)
    run = world(**TABLES)
    group, center = (
        [join(run, f"stage-{each}", "volunteer", each) for each in range(STAGES)],
        join(run, "c", "datacenter"),
    )
    assert run.run_until(lambda: all(told(each, GroupFormed) for each in group), 60)
    spare, liar = join(run, "spare", "volunteer", stage), group[stage]
    others = [each for each in group if each is not liar]
    assert run.run_until(lambda: all(told(each, RoundDone, lambda event: event.round == 2) for each in others), 120)
    begun = run.loop.now
    assert run.run_until(lambda: any(told(each, Dismissed) for each in others), 2 * MOST_SECONDS)
    assert run.loop.now - begun <= MOST_SECONDS
    assert run.run_until(lambda: bool(told(spare, StepDone)), 30)
    assert run.run_until(
        lambda: all(told(each, RoundDone, lambda event: event.round == ROUNDS) for each in others), 300
    )
    (joined,) = {event.peer_id for event in told(liar, test_cases.Joined)}
    accusers = [each for each in others if told(each, Dismissed)]
    assert {event.peer for each in accusers for event in told(each, Dismissed)} == {joined}
    assert all(abs(group.index(each) - stage) == 1 for each in accusers)
    assert not told(spare, Dismissed)
    assert not told(center, Dismissed)
    assert liar.process is not None
    run.kill(liar.process)
    assert run.run_until(lambda: all(each.process is None for each in (*others, spare, center)), 300)


def test_one_group_goes_on_alone_where_the_first_stage_of_the_other_swallows_microbatches(
    world: MakeWorld, monkeypatch: pytest.MonkeyPatch
):
    """No other peer of that stage is there, so the swallower is all that shows how far the others are."""
    liars, honest = list[Any](), InnerStep.take

    async def swallow(self: InnerStep) -> Any:
        trainer = self.pipeline.trainer
        if not liars and not trainer.index and self.round > LAST_HONEST:
            liars.append(trainer)
        if trainer in liars:
            await asyncio.Event().wait()
        return await honest(self)

    monkeypatch.setattr(InnerStep, "take", swallow)
    run = world(**TABLES | {"replicas": {"groups": 2, "stages": STAGES, "datacenters": 0, "compression": 4}})
    peers = [join(run, f"stage-{each}-{group}", "volunteer", each) for group in range(2) for each in range(STAGES)]
    first = [peer for peer in peers if peer.name.startswith("stage-0")]
    assert run.run_until(lambda: bool(liars), 120)

    def is_through(owner: Any) -> bool:
        return bool(told(owner, RoundDone, lambda event: event.round == ROUNDS))

    assert run.run_until(lambda: any(map(is_through, first)), 300), [
        (each.name, each.process and each.process.status.waits_for, max(e.round for e in told(each, RoundDone)))
        for each in peers
    ]


def test_a_first_stage_that_offers_no_round_holds_its_group_for_minutes_only(
    world: MakeWorld, monkeypatch: pytest.MonkeyPatch
):
    """It calls the only volunteer behind it, and gives signs of life; another first stage stands by."""
    liars, honest = list[Any](), FirstStage._load

    async def hold(self: FirstStage, brought: object) -> Any:
        if not liars:
            liars.append(self.outer)
        if self.outer in liars:
            await asyncio.Event().wait()
        return await honest(self, brought)

    monkeypatch.setattr(FirstStage, "_load", hold)
    run = world(**TABLES | {"replicas": {"groups": 1, "stages": 2, "datacenters": 0, "compression": 4}})
    held, liar = join(run, "held", "volunteer", 1), join(run, "liar", "volunteer", 0)
    assert run.run_until(lambda: bool(liars), 60)
    other = join(run, "other", "volunteer", 0)
    assert run.run_until(lambda: bool(told(other, StepDone)), 2 * BEHIND_SECONDS + 60)
    (joined,) = {event.peer_id for event in told(liar, test_cases.Joined)}
    ((told_of, reason),) = {(event.peer, event.reason) for event in told(held, Dismissed)}
    assert (told_of, "has offered its group no round for" in reason) == (joined, True)
    assert run.run_until(lambda: all(told(each, RoundDone, lambda e: e.round == ROUNDS) for each in (held, other)), 600)
