"""A volunteer that sends false payloads: who received one first finds it by spot checks and hangs up, and nobody else
is blamed. In virtual time, at each stage of a group, with the operator's own observer."""

from typing import Any

import pytest

from peer.compute.recomputation import Recomputation
from peer.swarm.group.spot_checks import SpotChecking
from peer.swarm.group.stage_round import StageRound
from protocol.codec.spot_check import Likeness
from protocol.events.activity import GroupFormed, RoundDone
from protocol.events.decisions import SpotChecked
from protocol.events.group_decisions import Dismissed
from tests.world import false_payloads, test_cases
from tests.world.false_payloads import falsify
from tests.world.test_cases import MakeWorld, join, told
from tests.world.world import World

world = test_cases.world

STAGES, HONEST_ROUNDS, ROUNDS = 4, 1, 3
SPEED = 8.0
"""Of machines, in times that a pass takes: a round lasts for as long as it takes to hear who is to blame."""

TABLES: dict[str, dict[str, Any]] = {
    "model": {"d": 32, "layers": STAGES, "heads": 2, "kv_heads": 2, "ffn": 48, "vocabulary": 300, "context": 32},
    "replicas": {"groups": 1, "stages": STAGES, "datacenters": 0, "compression": 2},
    "inner": {"steps": 10, "sequences": 12, "microbatch": 2, "optimizer": "muon", "overlap": 1},
    "outer": {"rounds": ROUNDS},
}


def join_auditor(run: World) -> Any:
    """The operator's own observer, which audits."""
    observer = run.add("observer", "observer")
    observer.audits = True
    run.name_attester(observer)
    run.start(observer)
    return observer


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The likenesses that the observer has found."""
    found, true = list[float](), Recomputation.likeness

    def noted(self: Recomputation, *of: Any) -> Likeness:
        like = true(self, *of)
        found.extend(each for each in (like.activations, like.gradients) if each)
        return like

    monkeypatch.setattr(Recomputation, "likeness", noted)
    return found


def who_is_blamed(run: World, monkeypatch: pytest.MonkeyPatch, stage: int, kind: str) -> None:
    """See that the liar, at `stage`, is found by who sits beside it, in the first round of its lies."""
    trainers, honest = dict[int, Any](), StageRound.load

    async def lie(self: StageRound, round: int, *more: Any) -> None:
        await honest(self, round, *more)
        liar = trainers.setdefault(self.trainer.index, self.trainer)  # who takes its seat later has another
        if self.trainer is liar and liar.index == stage and round > HONEST_ROUNDS:
            falsify(self.trainer, kind, (round, self.steps))

    monkeypatch.setattr(StageRound, "load", lie)
    observer = join_auditor(run)
    group = [join(run, f"stage-{each}", "volunteer", each, speed=SPEED) for each in range(STAGES)]
    assert run.run_until(lambda: all(told(each, GroupFormed) for each in group), 60)
    assert run.run_until(lambda: any(told(each, Dismissed) for each in group), 3600)
    ((accuser, event),) = [(each, event) for each in group for event in told(each, Dismissed)]
    (liar,) = {event.peer_id for event in told(group[stage], test_cases.Joined)}
    assert event.peer == liar
    assert abs(group.index(accuser) - stage) == 1
    assert event.round == HONEST_ROUNDS + 1
    assert "sent false" in event.reason
    assert observer.process is not None


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_who_makes_up_payloads_is_found_by_who_received_one_first(
    world: MakeWorld, monkeypatch: pytest.MonkeyPatch, stage: int
):
    monkeypatch.setattr(false_payloads, "MADE_UP", 1.0)
    who_is_blamed(world(**TABLES), monkeypatch, stage, "made-up")


@pytest.mark.parametrize(
    ("stage", "optimizer", "kind"), [(1, "adamw", "biased"), (2, "adamw", "flipped"), (3, "muon", "noisy")]
)
def test_gradients_that_are_wrong_by_a_tenth_are_found_in_a_first_step(
    world: MakeWorld, monkeypatch: pytest.MonkeyPatch, stage: int, optimizer: str, kind: str
):
    """Each stage sees one payload of it in a round."""
    run = world(**(TABLES | {"inner": TABLES["inner"] | {"optimizer": optimizer}}))
    who_is_blamed(run, monkeypatch, stage, kind)


@pytest.mark.parametrize(("stage", "finder"), [(0, 3), (3, 0)])
def test_who_sits_beside_it_hears_of_a_doubt_from_far(
    world: MakeWorld, monkeypatch: pytest.MonkeyPatch, stage: int, finder: int
):
    """One stage alone draws microbatches."""
    draw = SpotChecking.step_taken

    def step_taken(self: SpotChecking, steps: int) -> None:
        if self.received.stage == finder:
            draw(self, steps)

    monkeypatch.setattr(SpotChecking, "step_taken", step_taken)
    monkeypatch.setattr(false_payloads, "MADE_UP", 1.0)
    who_is_blamed(world(**TABLES), monkeypatch, stage, "made-up")


def test_a_group_that_began_from_another_state_is_not_held_to_the_observers(
    world: MakeWorld, monkeypatch: pytest.MonkeyPatch
):
    """As where a contribution has come to the one and not yet to the other."""
    true, asked = Recomputation.likeness, list[bool]()

    def likeness(self: Recomputation, *of: Any) -> Likeness:
        like = true(self, *of)
        asked.append(like.same_state)
        return Likeness(0.95 * like.activations, 0.95 * like.gradients, same_state=False)

    monkeypatch.setattr(Recomputation, "likeness", likeness)
    run = world(**(TABLES | {"outer": {"rounds": 2}}))
    observer = join_auditor(run)
    group = [join(run, f"stage-{each}", "volunteer", each, speed=SPEED) for each in range(STAGES)]
    assert run.run_until(lambda: all(each.process is None for each in (*group, observer)), 3600)
    assert len(asked) > STAGES
    assert all(asked)
    assert not any(told(each, Dismissed) for each in group)


def test_nobody_is_blamed_where_all_are_honest(world: MakeWorld, checked: list[float]):
    run = world(**TABLES)
    observer = join_auditor(run)
    group = [join(run, f"stage-{each}", "volunteer", each, speed=SPEED) for each in range(STAGES)]
    assert run.run_until(lambda: all(each.process is None for each in (*group, observer)), 3600)
    assert all(told(each, RoundDone, lambda event: event.round == ROUNDS) for each in group)
    assert len(checked) > STAGES * ROUNDS
    stock = told(observer, SpotChecked)
    assert sum(event.passes for event in stock) == STAGES * ROUNDS
    assert min(event.least for event in stock) == min(checked) > 0.999
    assert not any(told(each, Dismissed) for each in group)
