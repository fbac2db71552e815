"""The decoder layer computes what the plain one in tests/reference computes."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import backward

from protocol.architectures.llama.layer import Layer, Linear, rotary_tables, rotate
from protocol.manifest import Manifest, check_manifest
from tests.reference import llama as reference
from tests.reference.llama import random_weights, small_manifests

CPU = torch.device("cpu")


def manifest(**sizes: int) -> Manifest:
    model = {"layers": 1, "d": 16, "heads": 4, "kv_heads": 2, "ffn": 20, "context": 8, "vocabulary": 258}
    return check_manifest({"model": model | sizes, "replicas": {"stages": 1, "compression": 1}})


def tables(of: Manifest, length: int) -> tuple[Tensor, Tensor]:
    model = of.model
    cos, sin = rotary_tables(model.context, model.d // model.heads, model.rope_theta, CPU)
    return cos[:length], sin[:length]


def first_layer(of: Manifest, weights: dict[str, Tensor]) -> Layer:
    layer, prefix = Layer(of.model).double(), "model.layers.0."
    values = {name.removeprefix(prefix): w for name, w in weights.items() if name.startswith(prefix)}
    layer.load_state_dict(values)
    return layer


def activations(batch: int, length: int, d: int) -> Tensor:
    return torch.randn(batch, length, d, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


@given(small_manifests(), st.integers(1, 3), st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_a_layer_equals_the_plain_one(of: Manifest, batch: int, seed: int) -> None:
    weights = random_weights(of, seed)
    x = activations(batch, of.model.context, of.model.d)
    with torch.no_grad():
        ours = first_layer(of, weights)(x, *tables(of, of.model.context))
    plain = torch.stack([reference.layer(sequence, weights, 0, of.model) for sequence in x])
    torch.testing.assert_close(ours, plain, rtol=1e-10, atol=1e-10)


def test_a_token_does_not_see_later_ones() -> None:
    of = manifest()
    layer = first_layer(of, random_weights(of))
    x = activations(1, 8, 16)
    changed = x.clone()
    changed[:, 5:] += 1
    with torch.no_grad():
        before, after = layer(x, *tables(of, 8)), layer(changed, *tables(of, 8))
    assert torch.equal(before[:, :5], after[:, :5])
    assert not torch.isclose(before[:, 5:], after[:, 5:]).all()


def test_grouped_heads_are_whole_heads_with_keys_and_values_repeated() -> None:
    grouped, whole = manifest(kv_heads=2), manifest(kv_heads=4)
    weights = random_weights(grouped)
    repeated = dict(weights)
    for name in ("k_proj", "v_proj"):
        key = f"model.layers.0.self_attn.{name}.weight"
        repeated[key] = weights[key].view(2, 4, 16).repeat_interleave(2, dim=0).reshape(16, 16)
    x = activations(2, 8, 16)
    with torch.no_grad():
        ours = first_layer(grouped, weights)(x, *tables(grouped, 8))
        theirs = first_layer(whole, repeated)(x, *tables(whole, 8))
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


@given(st.integers(1, 8), st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_rotary_scores_depend_on_the_distance_alone(half: int, seed: int) -> None:
    cos, sin = rotary_tables(16, 2 * half, 10000.0, CPU)
    q, k = torch.randn(2, 2 * half, generator=torch.Generator().manual_seed(seed))
    scores = rotate(q.expand(16, -1), cos, sin) @ rotate(k.expand(16, -1), cos, sin).T
    for distance in range(16):
        diagonal = scores.diagonal(-distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), rtol=1e-4, atol=1e-4)


def test_position_zero_is_not_turned() -> None:
    cos, sin = rotary_tables(4, 6, 10000.0, CPU)
    x = torch.randn(4, 6)
    assert torch.equal(rotate(x, cos, sin)[0], x[0])


def test_rotary_tables_are_fp32_whatever_the_activations_are() -> None:
    cos, sin = rotary_tables(4, 6, 10000.0, CPU)
    assert cos.dtype == sin.dtype == torch.float32
    assert rotate(torch.ones(4, 6, dtype=torch.bfloat16), cos, sin).dtype == torch.bfloat16


def test_rotary_tables_first_made_in_inference_mode_can_train() -> None:
    rotary_tables.cache_clear()
    with torch.inference_mode():
        cos, sin = rotary_tables(4, 6, 10000.0, CPU)
    backward(rotate(torch.ones(4, 6, requires_grad=True), cos, sin).sum())


def test_rotary_tables_are_made_once() -> None:
    assert rotary_tables(4, 6, 10000.0, CPU)[0] is rotary_tables(4, 6, 10000.0, CPU)[0]


@pytest.mark.parametrize("draws", [lambda: Linear(3, 5), lambda: Layer(manifest().model)])
def test_making_a_layer_draws_no_random_numbers(draws: object) -> None:
    before = torch.get_rng_state()
    assert callable(draws)
    draws()
    assert torch.equal(before, torch.get_rng_state())
