"""The whole model in one piece computes what transformers does, and what its stages do; with and without a memory."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from peer.model.language_model import LanguageModel
from peer.model.stage import Stage
from protocol.identity import stage_part
from protocol.layout import EMBEDDING_TENSOR, part_layout
from protocol.manifest import Manifest, check
from protocol.run.hugging_face import config
from tests.reference import llama as reference
from tests.reference.llama import random_tokens, random_weights, small_manifests

GROUPED = {"layers": 3, "d": 64, "heads": 4, "kv_heads": 2, "ffn": 96, "context": 48, "vocabulary": 300}


def manifest(**sizes: object) -> Manifest:
    return check({"model": GROUPED | sizes, "replicas": {"stages": 3, "compression": 1}})


def language_model(of: Manifest, weights: dict[str, Tensor]) -> LanguageModel:
    model = LanguageModel(of.model).to(next(iter(weights.values())).dtype)
    model.load(weights.__getitem__)
    return model


@given(small_manifests(), st.integers(0, 99))
@settings(max_examples=20, deadline=None)
def test_logits_are_those_of_the_plain_model(of: Manifest, seed: int) -> None:
    weights, tokens = random_weights(of, seed), random_tokens(of, 2, of.model.context, seed)
    ours, plain = language_model(of, weights)(tokens), reference.forward(weights, tokens, of.model)
    torch.testing.assert_close(ours, plain, rtol=1e-9, atol=1e-9)


def test_logits_are_those_of_its_stages_to_the_bit() -> None:
    of = manifest()
    weights, tokens = random_weights(of, 1, torch.float32), random_tokens(of, 2, 20)
    x = weights[EMBEDDING_TENSOR][tokens]
    for index in range(3):
        stage = Stage(of, index)
        stage.load({name: weights[name] for name in part_layout(of, stage_part(index))})
        with torch.no_grad():
            x = stage(x)
    assert torch.equal(x, language_model(of, weights)(tokens))


@pytest.mark.parametrize("sizes", [{}, {"kv_heads": 4}, {"rope_theta": 500000.0, "norm_epsilon": 1e-6, "kv_heads": 1}])
def test_logits_are_those_of_transformers(sizes: dict[str, object]) -> None:
    of = manifest(**sizes)
    weights, tokens = random_weights(of, 2, torch.float32), random_tokens(of, 3, of.model.context)
    theirs = LlamaForCausalLM(LlamaConfig(**config(of.model))).eval()
    theirs.load_state_dict(weights)
    with torch.no_grad():
        expected = theirs(tokens).logits
    torch.testing.assert_close(language_model(of, weights)(tokens), expected, rtol=0, atol=1e-5)


@given(small_manifests(), st.integers(0, 99), st.data())
@settings(max_examples=20, deadline=None)
def test_one_token_after_the_other_gives_the_logits_of_all_at_once(
    of: Manifest, seed: int, data: st.DataObject
) -> None:
    model, tokens = language_model(of, random_weights(of, seed)), random_tokens(of, 2, of.model.context, seed)
    first, past = data.draw(st.integers(1, of.model.context)), model.begin()
    steps = [
        model(tokens[:, :first], past),
        *(model(tokens[:, i : i + 1], past) for i in range(first, tokens.shape[1])),
    ]
    torch.testing.assert_close(torch.cat(steps, 1), model(tokens), rtol=1e-9, atol=1e-9)


def test_a_weight_of_another_shape_is_refused_and_not_broadcast() -> None:
    of = manifest()
    weights = random_weights(of, 1, torch.float32)
    with pytest.raises(ValueError, match=r"model.norm.weight: \(1,\) instead of \(64,\)"):
        language_model(of, weights | {"model.norm.weight": torch.ones(1)})


def test_a_causal_mask_is_never_laid_over_what_was_seen_before() -> None:
    model = language_model(manifest(), random_weights(manifest(), 1, torch.float32))
    past = model.begin()
    model(torch.tensor([[1, 2]]), past)
    with pytest.raises(AssertionError, match="causal mask"):
        model(torch.tensor([[3, 4]]), past)
