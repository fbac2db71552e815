"""The inner step: schedule, global clipping, AdamW."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from peer.optim.inner import AdamW, clip_factor, learning_rate, place_in_run, squared_norm, stage_clip_factor
from protocol.errors import DivergedError
from protocol.manifest import Manifest, check_manifest
from protocol.manifest_tables import Inner


def manifest(**inner: object) -> Manifest:
    return check_manifest({"model": {"preset": "nano"}, "inner": {"steps": 10} | inner, "outer": {"rounds": 10}})


def test_the_rate_warms_up_linearly_then_falls_as_a_cosine_to_a_tenth():
    run = manifest(learning_rate=1e-2, warmup=20)
    rates = [learning_rate(run, step) for step in range(100)]
    assert rates[0] == pytest.approx(1e-2 / 20)
    assert rates[19] == pytest.approx(1e-2)
    assert rates[60] == pytest.approx(1e-2 * (0.1 + 0.9 * (1 + math.cos(math.pi / 2)) / 2))
    assert learning_rate(run, 100) == pytest.approx(1e-3)
    assert rates[20:] == sorted(rates[20:], reverse=True)


def test_a_run_shorter_than_its_warm_up_only_warms_up():
    run = manifest(learning_rate=1e-2, warmup=500)
    assert learning_rate(run, 99) == pytest.approx(1e-2)


@given(round=st.integers(1, 10), steps=st.integers(1, 40), step=st.integers(0, 40))
def test_replicas_that_take_more_or_fewer_steps_than_the_manifests_pass_a_round_at_the_same_rates(
    round: int, steps: int, step: int
):
    """With H = 10: step 20 of 40 has the rate of step 5 of 10, and every replica's round ends where the next begins."""
    run = manifest()
    assert place_in_run(run, round, step, steps) == pytest.approx(10 * (round - 1) + 10 * step / steps)
    assert place_in_run(run, round, steps, steps) == pytest.approx(place_in_run(run, round + 1, 0, 7))


@given(
    squares=st.lists(st.floats(0.0, 1e6), min_size=1, max_size=5),
    own=st.floats(1e-3, 1e6),
    clip=st.floats(0.01, 10.0),
    data=st.data(),
)
def test_a_stage_that_does_not_wait_clips_by_the_last_norms_and_first_by_its_own_for_every_stage(
    squares: list[float], own: float, clip: float, data: st.DataObject
):
    stages, stage = len(squares), data.draw(st.integers(0, len(squares) - 1))
    first = min(1.0, clip / (math.sqrt(own * stages) + 1e-6))
    later = min(1.0, clip / (math.sqrt(own + sum(squares[:stage]) + sum(squares[stage + 1 :])) + 1e-6))
    assert stage_clip_factor(stage, own, (), stages, clip) == pytest.approx(first)
    assert stage_clip_factor(stage, own, squares, stages, clip) == pytest.approx(later)


def test_clipping_is_over_all_stages_as_torch_would_clip_the_whole_model():
    torch.manual_seed(0)
    parameters = [nn.Parameter(torch.randn(3, 4)), nn.Parameter(torch.randn(5)), nn.Parameter(torch.randn(2, 2))]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    factor = clip_factor((squared_norm(parameters[:1]), squared_norm(parameters[1:])), clip=1.0)
    ours = [parameter.grad * factor for parameter in parameters]
    nn.utils.clip_grad_norm_(parameters, 1.0)
    for mine, parameter in zip(ours, parameters, strict=True):
        torch.testing.assert_close(mine, parameter.grad)


def test_a_small_gradient_is_not_scaled_up():
    assert clip_factor([1e-6, 1e-6], clip=1.0) == 1.0


def test_adamw_is_the_papers():
    """One step by hand: decoupled decay, bias-corrected moments."""
    inner = Inner(learning_rate=1e-2, betas=(0.9, 0.95), weight_decay=0.1)
    parameter = nn.Parameter(torch.tensor([1.0, -2.0]))
    start, gradient = parameter.detach().clone(), torch.tensor([0.5, 0.25])
    parameter.grad = gradient.clone()
    optimizer = AdamW([parameter], inner)
    optimizer.update(factor=1.0, rate=1e-2)
    decayed = start * (1 - 1e-2 * 0.1)
    expected = decayed - 1e-2 * gradient / (gradient.abs() + 1e-8)
    torch.testing.assert_close(parameter.detach(), expected)
    assert (parameter.grad == 0).all()


@given(steps=st.integers(1, 6), seed=st.integers(0, 2**16))
def test_its_weights_are_those_of_torchs_adamw_bit_for_bit_also_when_taken_up_half_way(steps: int, seed: int):
    inner = Inner(betas=(0.8, 0.9), weight_decay=0.3)
    chance = torch.Generator().manual_seed(seed)
    ours, theirs = ([nn.Parameter(torch.ones(3, 2)), nn.Parameter(torch.ones(5))] for _ in range(2))
    optimizer = AdamW(ours, inner)
    torchs = torch.optim.AdamW(theirs, betas=inner.betas, eps=inner.epsilon, weight_decay=0.3, fused=True)
    for step in range(steps):
        for mine, other in zip(ours, theirs, strict=True):
            mine.grad = torch.randn(mine.shape, generator=chance)
            other.grad = mine.grad.clone()
        torchs.param_groups[0]["lr"] = rate = 0.1 / (step + 1)
        torchs.step()
        kept, optimizer = optimizer.tensors(), AdamW(ours, inner)
        optimizer.load(kept)
        optimizer.update(1.0, rate)
    assert all(torch.equal(mine, other) for mine, other in zip(ours, theirs, strict=True))
    assert optimizer.steps == steps
    assert {name: tuple(each.shape) for name, each in optimizer.tensors().items()} == optimizer.shapes


def test_the_clip_factor_scales_the_gradient_before_the_moments():
    parameter = nn.Parameter(torch.tensor([1.0]))
    parameter.grad = torch.tensor([4.0])
    optimizer = AdamW([parameter], Inner())
    optimizer.update(factor=0.25, rate=1e-3)
    assert optimizer.state["exp_avg"][0].item() == pytest.approx(0.1)


@pytest.mark.parametrize("squared", [float("inf"), float("nan")])
def test_a_gradient_that_is_no_number_is_said_and_never_applied(squared: float):
    with pytest.raises(DivergedError, match="has diverged"):
        clip_factor([1.0, squared], clip=1.0)
