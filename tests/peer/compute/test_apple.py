"""What a peer computes on its device runs on Apple's GPUs: no float64, and no operator without a kernel for MPS."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from peer.compute.arithmetic import Arithmetic, Precision
from peer.compute.calibration import a_microbatch
from peer.compute.evaluation import Evaluator
from peer.compute.trainer import StageTrainer
from peer.model.language_model import LanguageModel, Sampling, generate
from peer.optim.inner import clip_factor
from protocol.architectures.llama import layer as llama
from tests.peer.compute.test_replica import SIZES, batches, genesis, manifest
from tests.reference.apple import AppleOnly
from tests.reference.boundary import orthonormal

CPU = torch.device("cpu")


@pytest.mark.parametrize("wire", ["fp32", "bf16", "int8", "int4"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("stage", [0, 1])
def test_a_volunteer_trains_and_hands_on_what_it_has_learnt(
    monkeypatch: pytest.MonkeyPatch, stage: int, precision: Precision, wire: str
):
    monkeypatch.setattr(llama, "has_fused_attention", lambda x: False)
    monkeypatch.setattr(llama, "ATTENTION_BLOCK_TOKENS", 8)
    run, arithmetic = manifest(2, 4, wire), Arithmetic(precision, recompute=wire == "bf16")
    basis, grids = orthonormal(run.model.d), genesis(run)
    with AppleOnly() as apple, sdpa_kernel(SDPBackend.MATH):
        trainer = StageTrainer(run, stage, "group", basis, CPU, arithmetic=arithmetic)
        trainer.load(grids)
        for step in range(2):
            a_microbatch(trainer)()
            trainer.update(clip_factor([trainer.squared_norm()], 1e-3), step)
            trainer.load(grids, ahead=grids)
        trainer.moved()
        trainer.load_optimizer(trainer.optimizer_tensors())
        assert trainer.optimizer.steps == 2
        trainer.abandon()
    assert "_fused_adamw_" in apple.seen


def test_a_volunteer_changes_its_compression():
    run, basis = manifest(2, "auto"), orthonormal(SIZES["d"])
    for stage in range(2):
        with AppleOnly():
            trainer = StageTrainer(run, stage, "group", basis, CPU)
            trainer.load(genesis(run))
            trainer.compress(8, genesis(run))
            trainer.load(genesis(run))


def test_an_outer_state_is_evaluated_and_a_model_writes_text():
    run = manifest(2, 4, "bf16")
    held_out_SM, basis = batches(run, 1)[0], orthonormal(run.model.d)
    with AppleOnly(), sdpa_kernel(SDPBackend.MATH):
        Evaluator(run, basis, held_out_SM, CPU).evaluate(genesis(run))
        model = LanguageModel(run.model, run.ngrams)
        model.load(lambda name: torch.ones_like(dict(model.named_parameters())[name]))
        list(generate(model, [1, 2, 3], 2, Sampling(), seed=1))


def test_what_apple_lacks_is_noticed():
    x = torch.ones(3)
    with AppleOnly(), pytest.raises(AssertionError, match="float64"):
        x.double()
    with AppleOnly(), pytest.raises(AssertionError, match="MPS has no heaviside"):
        torch.heaviside(x, x)
