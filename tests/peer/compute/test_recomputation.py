"""What an observer computes again against the stages of a group at the beginning of a round: the same bits."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from peer.compute.evaluation import Evaluator
from peer.compute.recomputation import COMPUTED_KEPT, Recomputation, sample_payload
from peer.compute.trainer import StageTrainer
from peer.model.number_format import number_format
from protocol.codec.spot_check import NOTHING, Likeness, PayloadSample, ReceivedPass, whole_group_digest
from protocol.manifest import Manifest
from tests.peer.compute.test_replica import CPU, SIZES, genesis, manifest
from tests.reference.boundary import orthonormal

STAGES = 4
DIGESTS = {"embedding": "e"} | {f"stage-{stage}": str(stage) for stage in range(STAGES)}


def run_of(compression: int | str, wire: str, **replicas: Any) -> Manifest:
    return manifest(STAGES, compression, wire, **replicas)


def tokens_of(run: Manifest, seed: int) -> Tensor:
    shape = run.inner.microbatch, run.model.context + 1
    return torch.randint(0, SIZES["vocabulary"], shape, generator=torch.Generator().manual_seed(seed))


def passed(run: Manifest, compression: int, tokens_BM: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """What the stages of a group send each other of a microbatch, by the stage before the boundary."""
    stages = [StageTrainer(run, stage, "group", orthonormal(run.model.d), CPU) for stage in range(STAGES)]
    activations, gradients = list[Tensor](), list[Tensor]()
    payload: Tensor | None = None
    for stage in stages:
        stage.compress(compression, genesis(run))
        stage.load(genesis(run))
        payload = stage.forward(0, tokens_BM, payload)
        activations.append(payload)
    payload = None
    for stage in reversed(stages):
        payload = stage.backward(0, payload)
        if payload is not None:
            gradients.insert(0, payload)
    return activations[:-1], gradients


@pytest.mark.parametrize(
    ("compression", "wire", "chosen", "replicas"),
    [
        (4, "fp32", 4, {}),
        (4, "bf16", 4, {"anchor": "embedding"}),
        (1, "bf16", 1, {}),
        (2, "int4", 2, {}),
        ("auto", "int8", 8, {}),
    ],
    ids=str,
)
def test_the_payloads_are_those_of_a_group_at_the_beginning_of_a_round(
    compression: int | str, wire: str, chosen: int, replicas: dict[str, Any]
):
    run = run_of(compression, wire, **replicas)
    evaluator = Evaluator(run, orthonormal(run.model.d), tokens_of(run, 9), CPU)
    tokens_BM = tokens_of(run, 5)
    activations, gradients = passed(run, chosen, tokens_BM)
    again = Recomputation(evaluator).compute(genesis(run), tokens_BM, chosen)
    assert [each.shape for each in again.activations] == [each.shape for each in activations]
    width = run.at(chosen).k
    forward, backward = (number_format(each, width) for each in run.replicas.wires)
    for one, other in zip(again.activations, activations, strict=True):
        torch.testing.assert_close(forward.unpack(one), forward.unpack(other), rtol=1e-4, atol=1e-5)
    for one, other in zip(again.gradients, gradients, strict=True):
        torch.testing.assert_close(backward.unpack(one), backward.unpack(other), rtol=1e-3, atol=1e-6)
    assert all(parameter.grad is None for stage in evaluator.stages for parameter in stage.parameters())


@pytest.mark.parametrize("stage", range(STAGES))
def test_a_stage_is_told_how_like_what_it_received_is(stage: int):
    run = run_of(4, "bf16")
    recomputation = Recomputation(Evaluator(run, orthonormal(run.model.d), tokens_of(run, 9), CPU))
    tokens_BM = tokens_of(run, 5)
    activations, gradients = passed(run, 4, tokens_BM)

    def told(seed: int, turned: float, digest: str = whole_group_digest(DIGESTS, run)) -> Likeness:
        came = [sample_payload(each.float(), seed).numpy() for each in activations]
        back = [sample_payload(turned * each.float(), seed).numpy() for each in gradients]
        first, last = stage == 0, stage == STAGES - 1
        both: tuple[PayloadSample, PayloadSample] = (
            NOTHING if first else came[stage - 1],
            NOTHING if last else back[stage],
        )
        asked = ReceivedPass(1, stage, 4, tokens_BM.numpy(), seed, *both, digest)
        return recomputation.likeness(genesis(run), DIGESTS, asked)

    for seed, turned in ((1, 1.0), (2, -1.0), (1, 3.0)):
        like = told(seed, turned)
        assert like.activations == (pytest.approx(1, abs=1e-3) if stage else 0.0)
        assert like.gradients == (pytest.approx(np.sign(turned), abs=1e-3) if stage < STAGES - 1 else 0.0)
        assert like.same_state
    assert not told(1, 1.0, digest="").same_state
    assert len(recomputation.kept) == 1
    for seed in range(COMPUTED_KEPT + 1):
        asked = ReceivedPass(1, 0, 4, tokens_of(run, seed).numpy(), 1, NOTHING, np.ones(2048, np.float32), "")
        recomputation.likeness(genesis(run), DIGESTS, asked)
    assert len(recomputation.kept) == COMPUTED_KEPT
    moved = DIGESTS | {"stage-2": "another"}
    recomputation.likeness(genesis(run), moved, asked)
    assert len(recomputation.kept) == COMPUTED_KEPT
    assert next(reversed(recomputation.kept))[0] == whole_group_digest(moved, run), "it was computed from another state"
