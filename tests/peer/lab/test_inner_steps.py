"""The factors of gradients, and means over replicas of unequal numbers of steps."""

import pytest
import torch

from peer.lab.inner_steps import ClipFactors, StageClip
from peer.lab.methods import SparseLoCo
from peer.lab.switches import Switches
from peer.optim.outer import outer_term
from protocol.layout import model_layout
from protocol.manifest import Manifest
from tests.reference.small_lab import small_lab
from tests.reference.small_manifest import small_manifest


def manifest(**tables) -> Manifest:
    inner = {"steps": 6, "learning_rate": 1e-2, "warmup": 2} | tables.pop("inner", {})
    return small_manifest(inner=inner, outer={"rounds": 3, "top_k": 1024} | tables.pop("outer", {}), **tables)


def test_clipped_by_stage_each_may_have_an_equal_share_of_the_squared_norm():
    clip = 1e-3
    lab = small_lab(manifest())
    whole = lab.swarm.weights.wholes["group"]
    whole.load(lab.swarm.grids)
    whole.gradients(lab.swarm.read(0))
    norms = [stage.squared_norm() ** 0.5 for stage in whole.stages]
    factors = ClipFactors(clip)(whole)
    assert factors[0] == factors[1] < 1
    by_stage = StageClip(clip)(whole)
    allowed = clip / len(norms) ** 0.5
    assert by_stage == pytest.approx([allowed / norm for norm in norms], rel=1e-2)
    assert sum((factor * norm) ** 2 for factor, norm in zip(by_stage, norms, strict=True)) <= clip**2


@pytest.mark.parametrize("weights", ["equal", "steps"])
def test_in_the_mean_each_counts_once_or_as_often_as_it_has_taken_steps(weights):
    people = {"groups": 0, "datacenters": 3}
    run = manifest(replicas=people, inner={"steps": 3}, outer={"overlap": True, "beta": 1.0, "weights": weights})
    lab = small_lab(run, Switches(speeds="1:1:7"))
    before = {part: dict(grid) for part, grid in lab.swarm.grids.items()}
    lab.round(1, lambda event: None)
    assert isinstance(lab.method, SparseLoCo)
    sent = lab.method.waiting[1]
    assert all([each.steps for each in contributions] == [1, 1, 7] for contributions in sent.values())
    lab.round(2, lambda event: None)
    for part, layout in model_layout(run).items():
        term = outer_term(sent[part], layout, run)
        for name in layout:
            assert torch.equal(lab.swarm.grids[part][name], (before[part][name] - term[name]).to(torch.int32))
