"""The outer methods: SparseLoCo, DiLoCo, and AdamW in every step; and the bytes that they publish."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import backward

from peer.compute.replica import WholeReplica
from peer.data.batches import batch, in_turn
from peer.lab.methods import PerStep, SparseLoCo
from peer.lab.reference_run import Lab
from peer.lab.switches import Switches
from peer.model.subspace import nested
from peer.optim.grid import to_float, to_units
from protocol.codec.contribution import grids
from protocol.events.activity import StepDone
from protocol.events.event import Event
from protocol.identity import EMBEDDING, Part, stage_part
from protocol.layout import EMBEDDING_TENSOR
from protocol.manifest import Manifest
from protocol.tensor_formats import UNITS_PER_ONE
from tests.reference.boundary import orthonormal, through
from tests.reference.one_process import OneProcess
from tests.reference.small_lab import small_lab
from tests.reference.small_manifest import small_manifest

Grids = dict[Part, dict[str, Tensor]]

PEOPLE = {"uniform": (2, 0), "baseline": (0, 2), "heterogeneous": (1, 1)}
MODES = pytest.mark.parametrize("mode", PEOPLE)


def manifest(mode: str = "uniform", **tables) -> Manifest:
    groups, datacenters = PEOPLE[mode]
    replicas = {"groups": groups, "datacenters": datacenters} | tables.pop("replicas", {})
    inner = {"learning_rate": 1e-2, "warmup": 0} | tables.pop("inner", {})
    return small_manifest(replicas=replicas, inner=inner, **tables)


def nobody(event: Event) -> None:
    pass


def floats(lab: Lab) -> Grids:
    return {part: {name: to_float(each) for name, each in grid.items()} for part, grid in lab.swarm.grids.items()}


def copied(grids: Grids) -> Grids:
    return copy.deepcopy(grids)


def farthest(a: Grids, b: Grids) -> float:
    """The largest difference of two models."""
    with torch.no_grad():
        return max(float((a[part][n].double() - b[part][n].double()).abs().max()) for part in a for n in a[part])


def model(whole: WholeReplica) -> Grids:
    """What a datacenter's weights are now."""
    found = {stage_part(stage.index): stage.stage.tensors() for stage in whole.stages}
    embedding = whole.stages[0].embedding
    assert embedding is not None
    found[EMBEDDING] = {EMBEDDING_TENSOR: next(embedding.parameters())}
    return {part: {name: each.detach() for name, each in tensors.items()} for part, tensors in found.items()}


# DiLoCo


def test_diloco_of_one_replica_without_momentum_ends_where_its_inner_loop_does():
    lab = small_lab(
        manifest("baseline", replicas={"datacenters": 1}, outer={"learning_rate": 1.0}),
        Switches(method="diloco", momentum=0.0),
    )
    for round in (1, 2):
        lab.method.round(lab.swarm, round, nobody)
        whole = lab.swarm.weights.wholes["datacenter"]
        assert farthest(floats(lab), model(whole)) <= 1 / UNITS_PER_ONE
    assert lab.method.sent_bytes == 2 * 4 * sum(
        each.numel() for grid in lab.swarm.grids.values() for each in grid.values()
    )


@MODES
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_diloco_is_nesterov_on_the_mean_of_what_the_replicas_moved(mode: str, momentum: float):
    """Against torch's SGD on float64 weights, with replicas that have weights and AdamW of their own.

    Each round starts from the lab's weights, which are rounded to units: AdamW makes of half a unit, on some
    processors, a thousand times as much within a round.
    """
    rounds, rate = 3, 0.7
    run = manifest(mode, outer={"rounds": rounds, "learning_rate": rate}, inner={"epsilon": 1e-4})
    lab = small_lab(run, Switches(method="diloco", momentum=momentum))
    kinds = [replica.kind for replica in lab.swarm.replicas]
    replicas = [WholeReplica(run, kind, orthonormal(16), torch.device("cpu")) for kind in kinds]
    theta = {(part, name): each.double() for part, grid in floats(lab).items() for name, each in grid.items()}
    outer = torch.optim.SGD([nn.Parameter(each) for each in theta.values()], rate, momentum, nesterov=momentum > 0)
    weights = dict(zip(theta, outer.param_groups[0]["params"], strict=True))
    for round in range(1, rounds + 1):
        theta_now: Grids = {}
        for (part, name), weight in weights.items():
            theta_now.setdefault(part, {})[name] = to_units(weight.detach()).to(torch.int32)
        moved = []
        for slot, replica in enumerate(replicas):
            replica.load(theta_now)
            for step in range(run.inner.steps):
                rows = torch.from_numpy(batch(lab.swarm.tokens, run, in_turn(run, round, step, slot)))
                replica.inner_step(rows, (round - 1) * run.inner.steps + step)
            moved.append(replica.moved())
        for (part, name), weight in weights.items():
            weight.grad = sum(each[part][name].double() for each in moved) / len(moved)
        outer.step()
        lab.method.round(lab.swarm, round, nobody)
        for (part, name), weight in weights.items():
            of_lab = floats(lab)[part][name].double()
            assert torch.allclose(of_lab, weight, rtol=0, atol=1e-6)
            weight.detach().copy_(of_lab)


# AdamW in every step


def test_adamw_in_every_step_is_one_model_on_the_batches_of_all_replicas():
    run = manifest("baseline", inner={"epsilon": 1e-6}, outer={"rounds": 2})
    lab = small_lab(run, Switches(method="adamw"))
    start = floats(lab)
    one = OneProcess(run, [start[stage_part(s)] for s in range(2)], start[EMBEDDING][EMBEDDING_TENSOR], None)
    losses: list[float] = []
    for round in (1, 2):
        lab.method.round(lab.swarm, round, lambda event: losses.append(event.loss))  # type: ignore[union-attr]
        for step in range(run.inner.steps):
            rows = torch.cat([lab.swarm.batch(round, step, slot) for slot in range(2)])
            mean = one.inner_step(rows, (round - 1) * run.inner.steps + step)
            now = losses[2 * ((round - 1) * run.inner.steps + step) :][:2]
            assert sum(now) / 2 == pytest.approx(mean, abs=1e-5)
        expected = {stage_part(s): dict(one.stages[s].tensors()) for s in range(2)}
        expected[EMBEDDING] = {EMBEDDING_TENSOR: one.embedding}
        assert farthest(floats(lab), expected) < 1e-5


def first_gradient(mode: str, seed: int = 0, **replicas) -> tuple[Lab, Grids]:
    """A lab that has taken one step of AdamW without clipping, and the gradient that it took."""
    run = manifest(mode, inner={"steps": 1, "clip": 1e9}, replicas={"wire": "fp32"} | replicas)
    lab = small_lab(run, Switches(method="adamw"), seed)
    lab.method.round(lab.swarm, 1, nobody)
    assert isinstance(lab.method, PerStep)
    assert lab.method.optimizer is not None
    means = iter(lab.method.optimizer.state["exp_avg"])
    return lab, {part: {name: next(means) / 0.1 for name in grid} for part, grid in lab.swarm.grids.items()}


def by_autograd(run: Manifest, start: Grids, rows: Tensor, u: Tensor | None) -> Grids:
    """The gradient of the whole model by all of it, TE too; in the boundary, T⊥ is a constant."""
    stages = [start[stage_part(s)] for s in range(run.replicas.stages)]
    te = nn.Parameter(start[EMBEDDING][EMBEDDING_TENSOR].clone())
    one = OneProcess(run, stages, te.detach(), u)
    tokens, targets = rows[:, :-1], rows[:, 1:]
    x = te[tokens]
    for index, stage in enumerate(one.stages):
        if index and u is not None:
            x = through(x, tokens, u, one.anchor)
        x = stage(x, tokens)
    logits = nn.functional.linear(x, one.stages[-1].lm_head.weight)
    backward(nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()))
    found: Grids = {stage_part(s): {n: p.grad for n, p in one.stages[s].tensors().items()} for s in range(len(stages))}  # type: ignore[misc]
    return found | {EMBEDDING: {EMBEDDING_TENSOR: te.grad}}  # type: ignore[dict-item]


@MODES
@pytest.mark.parametrize("stages", [2, 3])
def test_each_step_takes_the_mean_gradient_of_all_replicas_a_groups_by_te_projected(mode: str, stages: int):
    lab, gradient = first_gradient(mode, stages=stages)
    run, u = lab.swarm.manifest, nested(orthonormal(16), 4)
    start = floats(small_lab(run))
    each = []
    for slot, replica in enumerate(lab.swarm.replicas):
        compressed = replica.kind == "group"
        own = by_autograd(run, start, lab.swarm.batch(1, 0, slot), u if compressed else None)
        if compressed:
            own[EMBEDDING][EMBEDDING_TENSOR] = own[EMBEDDING][EMBEDDING_TENSOR] @ u @ u.T
        each.append(own)
    mean = {part: {name: (each[0][part][name] + each[1][part][name]) / 2 for name in each[0][part]} for part in each[0]}
    assert farthest(gradient, mean) < 5e-6
    te = gradient[EMBEDDING][EMBEDDING_TENSOR]
    assert torch.allclose(te @ u @ u.T, te, atol=1e-7) == (mode == "uniform")
    assert lab.method.sent_bytes == 2 * 4 * sum(
        each.numel() for grid in lab.swarm.grids.values() for each in grid.values()
    )


# SparseLoCo


@pytest.mark.parametrize("values", ["exact", "bf16", "2bit"])
def test_error_feedback_and_what_was_sent_are_all_that_was_moved(values: str):
    """With β = 1, η = 1 and one replica: e_T + (θ_0 − θ_T) = Σ Δ, in integers."""
    outer = {"beta": 1.0, "learning_rate": 1.0, "top_k": 200} | ({} if values == "exact" else {"values": values})
    switches = Switches(values="exact") if values == "exact" else Switches()
    lab = small_lab(manifest(replicas={"groups": 1}, outer=outer), switches)
    start, moved = copied(lab.swarm.grids), {}
    for round in (1, 2, 3):
        lab.method.round(lab.swarm, round, nobody)
        for part, tensors in lab.swarm.weights.wholes["group"].moved().items():
            for name, delta in tensors.items():
                moved[part, name] = moved.get((part, name), 0) + to_units(delta)
    for part, state in lab.swarm.replicas[0].outer.items():
        for name, error in state.error_feedback.items():
            sent = start[part][name].long() - lab.swarm.grids[part][name]
            assert torch.equal(error + sent, moved[part, name])
            assert sent.any()


def test_exact_values_leave_nothing_behind_where_they_were_sent():
    lab = small_lab(
        manifest(replicas={"groups": 1}, outer={"learning_rate": 1.0, "top_k": 100}), Switches(values="exact")
    )
    start = copied(lab.swarm.grids)
    lab.method.round(lab.swarm, 1, nobody)
    for part, state in lab.swarm.replicas[0].outer.items():
        for name, error in state.error_feedback.items():
            assert not error[lab.swarm.grids[part][name] != start[part][name]].any()
            assert error.any() or error.dim() == 1


@MODES
def test_all_values_exactly_are_diloco_without_momentum(mode: str):
    """Two ways to one mean: integers rounded half to even, and floats."""
    run = manifest(mode, outer={"top_k": 4096, "learning_rate": 0.5})
    sparse, dense = small_lab(run, Switches(values="exact")), small_lab(run, Switches(method="diloco", momentum=0.0))
    for lab in (sparse, dense):
        lab.method.round(lab.swarm, 1, nobody)
    assert farthest(sparse.swarm.grids, dense.swarm.grids) <= 1
    assert not any(e.any() for r in sparse.swarm.replicas for s in r.outer.values() for e in s.error_feedback.values())


def test_what_the_lab_counts_is_what_the_protocol_writes():
    """A value is two bytes in the protocol's contributions and four where it is exact; all else is the same."""
    run = manifest(outer={"rounds": 1, "values": "bf16"})
    written, counted = small_lab(run), small_lab(run, Switches(values="exact"))
    for lab in (written, counted):
        lab.method.round(lab.swarm, 1, nobody)
    kept = sum(grid.kept for part in written.swarm.grids for grid in grids(run, part).values())
    assert counted.method.sent_bytes - written.method.sent_bytes == 2 * 2 * kept


def test_every_replicas_contribution_counts_and_every_step_is_told():
    for method in ("sparseloco", "diloco", "adamw"):
        lab = small_lab(manifest("heterogeneous"), Switches(method=method))  # type: ignore[arg-type]
        events: list[Event] = []
        counts = lab.method.round(lab.swarm, 1, events.append)
        assert counts == dict.fromkeys(lab.swarm.grids, 2)
        assert [type(event) for event in events] == [StepDone] * 3 * 2
        assert lab.method.sent_bytes > 0
    assert isinstance(small_lab(manifest()).method, SparseLoCo)
