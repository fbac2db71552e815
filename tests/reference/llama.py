"""LLaMA written plainly, a loop over heads and no modules, and random small models to try it on."""

import math
from collections.abc import Mapping

import torch
from hypothesis import strategies as st
from torch import Tensor

from protocol.architectures.llama.sizes import LlamaSizes
from protocol.layout import EMBEDDING_TENSOR, model_layout
from protocol.manifest import Manifest, check_manifest

Weights = Mapping[str, Tensor]


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    return weight * x / torch.sqrt((x * x).mean(-1, keepdim=True) + epsilon)


def rope(x: Tensor, theta: float) -> Tensor:
    """x [L, H]: the pair (i, i + H/2) at position p is a complex number, turned by p · theta^(−2i/H)."""
    length, head = x.shape
    half = head // 2
    # The angles are in fp32, as they are in every LLaMA.
    frequency = 1.0 / theta ** (torch.arange(0, head, 2, dtype=torch.float32) / head)
    angle = torch.arange(length, dtype=torch.float32)[:, None] * frequency[None, :]
    cos, sin = torch.cos(angle), torch.sin(angle)
    real, imaginary = x[:, :half], x[:, half:]
    return torch.cat([real * cos - imaginary * sin, imaginary * cos + real * sin], dim=1)


def attention(x: Tensor, model: LlamaSizes, q: Tensor, k: Tensor, v: Tensor, o: Tensor) -> Tensor:
    """x [L, d]: softmax(Q Kᵀ / √H, no future) V for each head, side by side, times Oᵀ."""
    head = model.d // model.heads
    future = torch.ones(len(x), len(x), dtype=torch.bool).triu(1)
    outputs = []
    for n in range(model.heads):
        shared = n // (model.heads // model.kv_heads)
        q_n = rope(x @ q[n * head : (n + 1) * head].T, model.rope_theta)
        k_n = rope(x @ k[shared * head : (shared + 1) * head].T, model.rope_theta)
        v_n = x @ v[shared * head : (shared + 1) * head].T
        scores = (q_n @ k_n.T / math.sqrt(head)).masked_fill(future, -math.inf)
        outputs.append(torch.softmax(scores, dim=-1) @ v_n)
    return torch.cat(outputs, dim=1) @ o.T


def feed_forward(x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    gated = x @ gate.T
    return (gated * torch.sigmoid(gated) * (x @ up.T)) @ down.T


def layer(x: Tensor, weights: Weights, i: int, model: LlamaSizes) -> Tensor:
    """x [L, d] through layer i."""
    w = {name: weights[f"model.layers.{i}.{name}.weight"] for name in LAYER_NAMES}
    normed = rms_norm(x, w["input_layernorm"], model.norm_epsilon)
    x = x + attention(normed, model, *(w[f"self_attn.{p}_proj"] for p in "qkvo"))
    normed = rms_norm(x, w["post_attention_layernorm"], model.norm_epsilon)
    return x + feed_forward(normed, *(w[f"mlp.{p}_proj"] for p in ("gate", "up", "down")))


def head(x: Tensor, weights: Weights, model: LlamaSizes) -> Tensor:
    return rms_norm(x, weights["model.norm.weight"], model.norm_epsilon) @ weights["lm_head.weight"].T


def chosen_row(text: list[int], at: int, n: int, rows: int) -> int:
    """The row that the n tokens of a text that end at place `at` choose."""
    number = text[at]
    for back in range(1, n):
        number = number * 1_000_003 + (text[at - back] + 1 if at >= back else 0)
    return number % rows


def looked_up(weights: Weights, sequence: Tensor, i: int, model: LlamaSizes) -> Tensor:
    """What n-gram tables before layer i add [L, d]: nothing, where there are none."""
    text = sequence.tolist()
    found = torch.zeros(len(text), model.d, dtype=weights[EMBEDDING_TENSOR].dtype)
    for n in range(1, 4):
        table = weights.get(f"model.ngrams.{i}.{n}")
        if table is not None:
            rows = torch.stack([table[chosen_row(text, at, n, len(table))] for at in range(len(text))])
            found = found + torch.cat([rows, torch.zeros(len(text), model.d - table.shape[1])], dim=1)
    return found


def forward(weights: Weights, tokens: Tensor, model: LlamaSizes) -> Tensor:
    """Token ids [B, L] → logits [B, L, V]."""
    logits = []
    for sequence in tokens:
        x, added = weights[EMBEDDING_TENSOR][sequence], torch.zeros(())
        for i in range(model.layers):
            if f"model.ngrams.{i}.1" in weights:
                x = x - added
                added = looked_up(weights, sequence, i, model)
                x = x + added
            x = layer(x, weights, i, model)
        logits.append(head(x, weights, model))
    return torch.stack(logits)


LAYER_NAMES = [
    "input_layernorm",
    *(f"self_attn.{p}_proj" for p in "qkvo"),
    "post_attention_layernorm",
    *(f"mlp.{p}_proj" for p in ("gate", "up", "down")),
]


def random_weights(manifest: Manifest, seed: int = 0, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    """Every tensor of the model; norms around 1, matrices of a size that leaves activations near 1."""
    random = torch.Generator().manual_seed(seed)
    weights: dict[str, Tensor] = {}
    for layout in model_layout(manifest).values():
        for name, shape in layout.items():
            values = torch.randn(shape, generator=random, dtype=torch.float64)
            scaled = 1 + 0.1 * values if len(shape) == 1 else values / math.sqrt(shape[1])
            weights[name] = scaled.to(dtype)
    return weights


def random_tokens(manifest: Manifest, batch: int, length: int, seed: int = 0) -> Tensor:
    """Token ids [batch, length]."""
    random = torch.Generator().manual_seed(seed)
    return torch.randint(manifest.model.vocabulary, (batch, length), generator=random)


@st.composite
def small_manifests(draw: st.DrawFn) -> Manifest:
    """Manifests of models with a width of 8 to 32, cut into any number of stages."""
    kv_heads, group = draw(st.sampled_from([1, 2])), draw(st.sampled_from([1, 2]))
    heads = kv_heads * group
    d = heads * 8 * draw(st.integers(1, 1 if heads == 4 else 2))
    layers = draw(st.integers(1, 4))
    model = {
        "layers": layers,
        "d": d,
        "heads": heads,
        "kv_heads": kv_heads,
        "ffn": draw(st.integers(1, 24)),
        "context": draw(st.integers(2, 12)),
        "vocabulary": draw(st.integers(258, 300)),
    }
    stages = draw(st.integers(1, layers))
    replicas = {"stages": stages, "compression": draw(st.sampled_from([2, 4]))}
    if stages > 1 and (ngrams := draw(st.integers(0, 3))):
        replicas |= {"ngrams": ngrams, "ngram_width": draw(st.integers(0, d))}
    return check_manifest({"model": model, "replicas": replicas})
