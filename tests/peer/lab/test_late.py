"""Late gradients and pools against plain loops over the same stages."""

from collections import deque

import pytest
import torch

from peer.compute.replica import WholeReplica
from peer.compute.trainer import StageTrainer
from peer.data.batches import batch
from peer.lab import paths
from peer.lab.methods import SparseLoCo
from peer.lab.replicas import Bench
from peer.lab.switches import Switches
from peer.optim.outer import outer_term
from peer.telemetry.events import StepDone
from protocol.identity import EMBEDDING
from protocol.layout import model_layout
from protocol.manifest import Manifest
from tests.reference.boundary import orthonormal
from tests.reference.small_lab import play, small_lab
from tests.reference.small_manifest import small_manifest

CPU = torch.device("cpu")


def manifest(**tables) -> Manifest:
    inner = {"steps": 6, "learning_rate": 1e-2, "warmup": 2} | tables.pop("inner", {})
    return small_manifest(inner=inner, outer={"rounds": 3, "top_k": 1024} | tables.pop("outer", {}), **tables)


def moved(run: Manifest, switches: Switches, slot: int = 0) -> dict[str, torch.Tensor]:
    """Δ of every tensor after one inner loop of the lab."""
    lab = small_lab(run, switches)
    replica = lab.bench.replicas[slot]
    lab.bench.inner_loop(replica, 1, {}, lambda event: None)
    made = lab.bench.workshop.wholes[replica.kind].moved()
    return {f"{part}/{name}": made[part][name] for part in made for name in made[part]}


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("late", [1, 2, 5, 9])
def test_a_gradient_that_is_late_is_that_of_the_weights_so_many_updates_ago(late: int):
    """Against a loop that keeps all weights and all gradients."""
    run = manifest(inner={"clip": 1e9})
    lab = small_lab(run)
    whole = WholeReplica(run, "group", orthonormal(16), CPU)
    whole.load(lab.bench.grids)
    parameters = [each for stage in whole.stages for each in stage.parameters]
    weights, gradients = deque([[each.detach().clone() for each in parameters]]), []
    for step in range(run.inner.steps):
        then = weights[max(0, step - late)]
        with torch.no_grad():
            for parameter, value in zip(parameters, then, strict=True):
                parameter.copy_(value)
        whole.gradients(torch.from_numpy(batch(lab.bench.tokens, run, step)))
        gradients.append([each.grad.clone() for each in parameters if each.grad is not None])
        for stage in whole.stages:
            stage.abandon()
        if step >= late:
            updated(whole, weights[-1], gradients[step - late], step)
            weights.append([each.detach().clone() for each in parameters])
    for step in range(run.inner.steps, run.inner.steps + min(late, run.inner.steps)):
        updated(whole, weights[-1], gradients[step - min(late, run.inner.steps)], run.inner.steps - 1)
        weights.append([each.detach().clone() for each in parameters])
    made = whole.moved()
    plain = {f"{part}/{name}": made[part][name] for part in made for name in made[part]}
    ours = moved(run, Switches(late=late))
    assert plain.keys() == ours.keys()
    worst = max(float((plain[name] - ours[name]).abs().max()) for name in plain)
    assert worst < 1e-6
    assert not equal(ours, moved(run, Switches()))


def updated(whole: WholeReplica, weights, gradients, step: int) -> None:
    """The step that follows from these weights and gradients."""
    parameters = [each for stage in whole.stages for each in stage.parameters]
    with torch.no_grad():
        for parameter, value, gradient in zip(parameters, weights, gradients, strict=True):
            parameter.copy_(value)
            parameter.grad = gradient.clone()
    for stage in whole.stages:
        stage.update(1.0, step)
        stage.abandon()


def test_lookahead_computes_gradients_so_many_changes_ahead_and_updates_from_where_the_weights_are():
    run = manifest(inner={"clip": 1e9})
    lab = small_lab(run)
    whole = WholeReplica(run, "group", orthonormal(16), CPU)
    whole.load(lab.bench.grids)
    parameters = [each for stage in whole.stages for each in stage.parameters]
    change, pending, before = None, [], None
    for step in range(run.inner.steps):
        here = [each.detach().clone() for each in parameters]
        with torch.no_grad():
            for parameter, value, delta in zip(parameters, here, change or here, strict=True):
                parameter.copy_(value + len(pending) * delta if change else value)
        whole.gradients(torch.from_numpy(batch(lab.bench.tokens, run, step)))
        pending.append([each.grad.clone() for each in parameters if each.grad is not None])
        for stage in whole.stages:
            stage.abandon()
        with torch.no_grad():
            for parameter, value in zip(parameters, here, strict=True):
                parameter.copy_(value)
        if step:
            before = here
            updated(whole, here, pending.pop(0), step)
            change = [now.detach() - old for now, old in zip(parameters, before, strict=True)]
    updated(whole, [each.detach().clone() for each in parameters], pending.pop(), run.inner.steps - 1)
    made = whole.moved()
    plain = {f"{part}/{name}": made[part][name] for part in made for name in made[part]}
    ours = moved(run, Switches(late=1, lookahead=True))
    assert max(float((plain[name] - ours[name]).abs().max()) for name in plain) < 1e-6


def test_clipped_by_stage_each_may_have_an_equal_share_of_the_squared_norm():
    run = manifest(inner={"clip": 1e-3, "steps": 1, "epsilon": 1e3})
    whole = small_lab(run).bench.workshop.wholes["group"]
    lab = small_lab(run)
    whole.load(lab.bench.grids)
    whole.gradients(lab.bench.read(0))
    norms = [stage.squared_norm() ** 0.5 for stage in whole.stages]
    allowed = run.inner.clip / len(norms) ** 0.5
    factors = lab.bench.workshop.clip(whole)
    assert factors[0] == factors[1] < 1
    by_stage = small_lab(run, Switches(clip="stage")).bench.workshop.clip(whole)
    assert by_stage == pytest.approx([allowed / norm for norm in norms], rel=1e-2)
    assert sum((factor * norm) ** 2 for factor, norm in zip(by_stage, norms, strict=True)) <= run.inner.clip**2


LONE = {"groups": 1, "datacenters": 0}


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_pool_of_one_member_a_stage_with_one_microbatch_in_flight_is_a_chain_to_the_bit(optimizer, monkeypatch):
    monkeypatch.setattr(paths, "AHEAD", 0.0)
    run = manifest(replicas=LONE, inner={"optimizer": optimizer})
    ends = [play(small_lab(run, Switches(clip="stage", paths=each)), 3) for each in ("chains", "loose")]
    assert ends[0] == ends[1]


def test_a_pool_reads_what_chains_read_takes_steps_by_speed_and_says_how_late_gradients_were(monkeypatch):
    run = manifest(replicas={"groups": 3, "datacenters": 1, "stages": 3})
    chosen = Switches(clip="stage", paths="loose", speeds="1:2:3:6")
    lab = small_lab(run, chosen)
    read, losses, was = [], [], Bench.read
    monkeypatch.setattr(Bench, "read", lambda self, chunk: read.append(chunk) or was(self, chunk))
    done = list(lab.bench.trained(1, lambda replica: {}, losses.append))
    assert sorted(read) == list(range(24))
    assert [each.replica.slot for each in done] == [0, 1, 2, 3]
    assert all(sum(each.steps[part] for each in done) >= 24 for part in done[0].steps)
    for part in done[0].steps:
        slow, middle, fast = (each.steps.get(part, 0) for each in done[:3])
        assert slow <= middle <= fast
    assert max(lab.bench.lateness) >= 1
    assert len(lab.bench.lateness) == 3 * 2 * 12
    told = [event.loss for event in losses if isinstance(event, StepDone)]
    assert all(2 < loss < 8 for loss in told)


def test_a_pool_whose_members_come_and_go_reads_each_text_and_those_that_were_lost_again(monkeypatch):
    run = manifest(replicas={"groups": 3, "datacenters": 0, "stages": 3}, inner={"sequences": 4, "microbatch": 1})
    chosen = Switches(clip="stage", paths="loose", speeds="1:2:3", link=0.5, churn=3.0)
    lab, read, was = small_lab(run, chosen), dict[int, tuple[int, ...]](), StageTrainer.forward

    def forward(self: StageTrainer, microbatch: int, tokens_BM: torch.Tensor, payload: torch.Tensor | None):
        if self.first:
            read[microbatch] = tuple(tokens_BM.flatten().tolist())
        return was(self, microbatch, tokens_BM, payload)

    monkeypatch.setattr(StageTrainer, "forward", forward)
    done = list(lab.bench.trained(1, lambda replica: {}, lambda event: None))
    texts = {tuple(row.tolist()) for chunk in range(18) for row in lab.bench.read(chunk)}
    assert set(read.values()) == texts
    assert len(read) > len(texts) == 72
    assert sum(each.steps[EMBEDDING] for each in done) >= 18


def test_a_pool_learns_and_its_state_is_what_its_seed_says():
    run = manifest(replicas={"groups": 3, "datacenters": 0, "stages": 3})
    chosen = Switches(clip="stage", paths="loose", speeds="1:2:4")
    labs = [small_lab(run, chosen) for _ in range(2)]
    _, before = labs[0].evaluator.evaluate(labs[0].bench.grids)
    assert play(labs[0], 3) == play(labs[1], 3)
    assert labs[0].evaluator.evaluate(labs[0].bench.grids)[1] < before - 0.1


@pytest.mark.parametrize("weights", ["equal", "steps"])
def test_in_the_mean_each_counts_once_or_as_often_as_it_has_taken_steps(weights):
    people = {"groups": 0, "datacenters": 3}
    run = manifest(replicas=people, inner={"steps": 3}, outer={"overlap": True, "beta": 1.0, "weights": weights})
    lab = small_lab(run, Switches(speeds="1:1:7"))
    before = {part: dict(grid) for part, grid in lab.bench.grids.items()}
    lab.round(1, lambda event: None)
    assert isinstance(lab.method, SparseLoCo)
    sent = lab.method.waiting[1]
    assert all([each.steps for each in contributions] == [1, 1, 7] for contributions in sent.values())
    lab.round(2, lambda event: None)
    for part, layout in model_layout(run).items():
        term = outer_term(sent[part], layout, run)
        for name in layout:
            assert torch.equal(lab.bench.grids[part][name], (before[part][name] - term[name]).to(torch.int32))
