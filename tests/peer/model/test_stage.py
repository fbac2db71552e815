"""The stages of a model, one after the other, are the model."""

import functools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.autograd import backward

from peer.model.embedding import DenseEmbedding
from peer.model.stage import Stage
from protocol.architectures.llama import layer as llama
from protocol.architectures.llama.sizes import PRESETS
from protocol.identity import stage_part
from protocol.layout import EMBEDDING_TENSOR, model_layout, part_layout
from protocol.manifest import Manifest, check_manifest
from tests.reference import llama as reference
from tests.reference.llama import random_tokens, random_weights, small_manifests

SIZES = {"layers": 3, "d": 24, "heads": 4, "kv_heads": 2, "ffn": 20, "context": 8, "vocabulary": 300}


def small(stages: int = 2) -> Manifest:
    return check_manifest({"model": SIZES, "replicas": {"stages": stages}})


def loaded(manifest: Manifest, weights: dict[str, Tensor]) -> list[Stage]:
    stages = [Stage(manifest, stage).to(weights[EMBEDDING_TENSOR].dtype) for stage in range(manifest.replicas.stages)]
    for stage in stages:
        stage.load({name: weights[name] for name in stage.tensors()})
    return stages


def chain(stages: list[Stage], x: Tensor, tokens: Tensor) -> Tensor:
    """The logits [B, L, V]."""
    for stage in stages:
        x = stage(x, tokens)
    return x @ stages[-1].lm_head.weight.T


@given(small_manifests(), st.integers(1, 3), st.data())
@settings(max_examples=30, deadline=None)
def test_the_chain_of_stages_is_the_plain_model_in_logits_and_gradients(
    manifest: Manifest, batch: int, data: st.DataObject
) -> None:
    seed = data.draw(st.integers(0, 99))
    length = data.draw(st.integers(1, manifest.model.context))
    weights, tokens = random_weights(manifest, seed), random_tokens(manifest, batch, length, seed)

    plain = {name: w.clone().requires_grad_() for name, w in weights.items()}
    expected = reference.forward(plain, tokens, manifest.model)
    slope = expected.detach().cos()
    backward(expected, slope)

    stages = loaded(manifest, weights)
    embedding = DenseEmbedding(manifest.model.vocabulary, manifest.model.d).double()
    embedding.load(weights[EMBEDDING_TENSOR])
    logits = chain(stages, embedding(tokens), tokens)
    backward(logits, slope)

    close = functools.partial(torch.testing.assert_close, rtol=1e-8, atol=1e-8)
    close(logits, expected)
    close(embedding.te_Vd.grad, plain[EMBEDDING_TENSOR].grad)
    for stage in stages:
        for name, tensor in stage.tensors().items():
            close(tensor.grad, plain[name].grad)


def test_hugging_face_weights_give_hugging_face_logits() -> None:
    """Six logits that transformers 5.23's LlamaForCausalLM gave for these weights and tokens."""
    manifest = small()
    weights: dict[str, Tensor] = {}
    for layout in model_layout(manifest).values():
        for name, shape in layout.items():
            wave = torch.sin(torch.arange(math.prod(shape), dtype=torch.float64) * 0.7 + len(weights)).reshape(shape)
            weights[name] = 1 + 0.1 * wave if len(shape) == 1 else 0.5 * wave
    tokens = torch.tensor([[1, 299, 7, 256, 7, 30, 258, 2]])
    with torch.no_grad():
        logits = chain(loaded(manifest, weights), weights[EMBEDDING_TENSOR][tokens], tokens)
    expected = [0.27646235, 0.57231997, -0.80377346, 0.16824247, 0.64876205, -0.76598404]
    torch.testing.assert_close(logits[0, -1, :6], torch.tensor(expected).double(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("preset", PRESETS)
def test_every_stage_of_every_preset_has_the_tensors_of_the_layout_in_its_order(preset: str) -> None:
    manifest = check_manifest({"model": {"preset": preset}, "replicas": {"stages": 4, "ngrams": 2}})
    for stage in range(4):
        with torch.device("meta"):
            tensors = Stage(manifest, stage).tensors()
        shapes = [(name, tuple(tensor.shape)) for name, tensor in tensors.items()]
        assert shapes == list(part_layout(manifest, stage_part(stage)).items())


@pytest.mark.parametrize(
    ("preset", "parameters"), [("178m", 177_622_016), ("512m", 512_398_848), ("1b", 1_204_881_408)]
)
def test_the_paper_s_models_have_the_paper_s_size(preset: str, parameters: int) -> None:
    manifest = check_manifest({"model": {"preset": preset}, "replicas": {"stages": 4}})
    with torch.device("meta"):
        modules: list[nn.Module] = [DenseEmbedding(manifest.model.vocabulary, manifest.model.d)]
        modules += [Stage(manifest, stage) for stage in range(4)]
    assert sum(p.numel() for module in modules for p in module.parameters()) == parameters


def test_a_stage_has_no_state_but_its_tensors() -> None:
    for stage in range(2):
        module = Stage(small(), stage)
        assert list(module.state_dict()) == list(module.tensors())
        assert list(module.buffers()) == []


def test_loading_keeps_the_parameters_and_copies_the_values() -> None:
    manifest = small()
    stage = Stage(manifest, 1)
    before = stage.tensors()
    weights = random_weights(manifest, dtype=torch.float32)
    given_weights = {name: weights[name].clone() for name in before}
    stage.load(given_weights)
    for name, tensor in given_weights.items():
        tensor.zero_()
        assert stage.tensors()[name] is before[name]
        assert torch.equal(stage.tensors()[name], weights[name])


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("lm_head.weight", None),
        ("model.layers.0.mlp.up_proj.weight", torch.ones(20, 24)),
        ("model.norm.weight", torch.ones(1)),
    ],
    ids=["a missing name", "an unknown name", "a shape that would broadcast"],
)
def test_loading_other_tensors_is_refused_and_changes_nothing(name: str, tensor: Tensor | None) -> None:
    manifest = small()
    stage = Stage(manifest, 1)
    good = {n: w for n, w in random_weights(manifest, dtype=torch.float32).items() if n in stage.tensors()}
    stage.load(good)
    bad = {n: torch.zeros_like(w) for n, w in good.items()}
    if tensor is None:
        del bad[name]
    else:
        bad[name] = tensor
    with pytest.raises(ValueError, match=name):
        stage.load(bad)
    assert all(torch.equal(stage.tensors()[n], w) for n, w in good.items())


@pytest.mark.parametrize("stage", [-1, 2])
def test_a_stage_the_manifest_does_not_have_is_refused(stage: int) -> None:
    with pytest.raises(ValueError, match="no stage"):
        Stage(small(2), stage)


def test_attention_that_repeats_key_value_heads_is_attention_that_shares_them(monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = small()
    weights = random_weights(manifest)
    with torch.no_grad():
        tokens = random_tokens(manifest, 2, 8)
        x = weights[EMBEDDING_TENSOR][tokens]
        expected = chain(loaded(manifest, weights), x, tokens)
        monkeypatch.setattr(llama, "has_shared_heads", lambda q: False)
        torch.testing.assert_close(chain(loaded(manifest, weights), x, tokens), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("length", [4, 7, 8])
def test_attention_in_blocks_is_attention(monkeypatch: pytest.MonkeyPatch, length: int) -> None:
    monkeypatch.setattr(llama, "ATTENTION_BLOCK_TOKENS", 4)
    manifest = small()
    weights, tokens = random_weights(manifest), random_tokens(manifest, 2, length)
    found: list[list[Tensor]] = []
    for fused in (True, False):
        monkeypatch.setattr(llama, "has_fused_attention", lambda x, fused=fused: fused)
        for recompute in (False, True):
            stages, x = loaded(manifest, weights), weights[EMBEDDING_TENSOR][tokens].requires_grad_()
            for stage in stages:
                stage.recompute = recompute
            logits = chain(stages, x, tokens)
            backward(logits, logits.detach().cos())
            with torch.no_grad():
                torch.testing.assert_close(chain(stages, x, tokens), logits, rtol=1e-10, atol=1e-10)
            found.append([logits, *(each.grad for each in (x, *stages[0].parameters()) if each.grad is not None)])
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=1e-10, atol=1e-10)
