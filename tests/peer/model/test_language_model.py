"""The whole model in one piece computes what transformers does, and what its stages do; with and without a memory.

Its text: greedy, drawn, and when it ends.
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F
from transformers import LlamaConfig, LlamaForCausalLM

from peer.model.language_model import LanguageModel, Sampling, generate, pick
from peer.model.stage import Stage
from protocol.identity import stage_part
from protocol.layout import EMBEDDING_TENSOR, part_layout
from protocol.manifest import Manifest, check_manifest
from protocol.run.model_config import config_of
from tests.reference import llama as reference
from tests.reference.llama import random_tokens, random_weights, small_manifests

PROMPT = [5, 17, 250, 3]
GREEDY = Sampling()
GROUPED = {"layers": 3, "d": 64, "heads": 4, "kv_heads": 2, "ffn": 96, "context": 48, "vocabulary": 300}


def manifest(ngrams: int = 0, **sizes: object) -> Manifest:
    replicas = {"stages": 3, "compression": 1, "ngrams": ngrams}
    return check_manifest({"model": GROUPED | sizes, "replicas": replicas})


def language_model(of: Manifest, weights: dict[str, Tensor]) -> LanguageModel:
    model = LanguageModel(of.model, of.ngrams).to(next(iter(weights.values())).dtype)
    model.load(weights.__getitem__)
    return model


@given(small_manifests(), st.integers(0, 99))
@settings(max_examples=20, deadline=None)
def test_logits_are_those_of_the_plain_model(of: Manifest, seed: int) -> None:
    weights, tokens = random_weights(of, seed), random_tokens(of, 2, of.model.context, seed)
    ours, plain = language_model(of, weights)(tokens), reference.forward(weights, tokens, of.model)
    torch.testing.assert_close(ours, plain, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("ngrams", [0, 3])
def test_logits_are_those_of_its_stages_to_the_bit(ngrams: int) -> None:
    of = manifest(ngrams)
    weights, tokens = random_weights(of, 1, torch.float32), random_tokens(of, 2, 20)
    x = weights[EMBEDDING_TENSOR][tokens]
    for index in range(3):
        stage = Stage(of, index)
        stage.load({name: weights[name] for name in part_layout(of, stage_part(index))})
        with torch.no_grad():
            x = stage(x, tokens)
            x = x if index < 2 else F.linear(x, stage.lm_head.weight)
    assert torch.equal(x, language_model(of, weights)(tokens))


@pytest.mark.parametrize("sizes", [{}, {"kv_heads": 4}, {"rope_theta": 500000.0, "norm_epsilon": 1e-6, "kv_heads": 1}])
def test_logits_are_those_of_transformers(sizes: dict[str, object]) -> None:
    of = manifest(**sizes)
    weights, tokens = random_weights(of, 2, torch.float32), random_tokens(of, 3, of.model.context)
    theirs = LlamaForCausalLM(LlamaConfig(**config_of(of.model))).eval()
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


def writer(**sizes: object) -> LanguageModel:
    of = manifest(**sizes)
    return language_model(of, random_weights(of, 3, torch.float32))


def written(by: LanguageModel, most: int, sampling: Sampling = GREEDY, seed: int = 0) -> list[int]:
    return list(generate(by, PROMPT, most, sampling, seed))


def test_greedy_text_is_the_argmax_of_the_whole_forward_pass_each_time() -> None:
    ours = writer(end_of_text=298)
    tokens = written(ours, 30)
    for number, token in enumerate(tokens):
        assert token == int(ours(torch.tensor([PROMPT + tokens[:number]]))[0, -1].argmax())
    assert len(tokens) == 30


def test_greedy_text_is_that_of_transformers() -> None:
    of = manifest(end_of_text=298)
    theirs = LlamaForCausalLM(LlamaConfig(**config_of(of.model))).eval()
    theirs.load_state_dict(random_weights(of, 3, torch.float32))
    expected = theirs.generate(torch.tensor([PROMPT]), max_new_tokens=30, do_sample=False, pad_token_id=0)
    assert written(writer(end_of_text=298), 30) == expected[0, len(PROMPT) :].tolist()


def test_the_same_seed_gives_the_same_text_and_others_give_others() -> None:
    ours, warm = writer(end_of_text=298), Sampling(1.0, 0.9)
    first = written(ours, 30, warm, 7)
    assert first == written(ours, 30, warm, 7)
    assert first != written(ours, 30, warm, 8)


def test_it_ends_at_the_end_of_the_text_and_with_the_context() -> None:
    third = written(writer(end_of_text=298), 3)[2]
    assert written(writer(end_of_text=third), 30)[-1] == third
    assert len(written(writer(end_of_text=third), 30)) <= 3
    assert len(written(writer(end_of_text=298), 1000)) == 48 - len(PROMPT)


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=20), st.floats(0.1, 2), st.floats(0, 1), st.integers(0, 9))
def test_only_the_likeliest_tokens_that_make_up_top_p_are_drawn(
    logits: list[float], temperature: float, top_p: float, seed: int
) -> None:
    given_V = torch.tensor(logits)
    token = pick(given_V, Sampling(temperature, top_p), torch.Generator().manual_seed(seed))
    likely_V = (given_V / temperature).softmax(-1)
    likelier = float(likely_V[likely_V > likely_V[token]].sum())
    assert likelier < top_p + 1e-5 or token == int(likely_V.argmax()) or likely_V[token] == likely_V.max()


def test_draws_follow_the_probabilities() -> None:
    random, logits_V = torch.Generator().manual_seed(1), torch.tensor([0.7, 0.2, 0.1]).log()
    draws = torch.tensor([pick(logits_V, Sampling(1.0, 1.0), random) for _ in range(4000)])
    assert (draws.bincount() / 4000).tolist() == pytest.approx([0.7, 0.2, 0.1], abs=0.03)
    cut = torch.tensor([pick(logits_V, Sampling(1.0, 0.75), random) for _ in range(4000)])
    assert (cut.bincount() / 4000).tolist() == pytest.approx([7 / 9, 2 / 9], abs=0.03)
