"""What crosses the boundary between two stages, and what it costs."""

import functools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import backward
from torch.nn import functional as F

from peer.model.embedding import FactoredEmbedding, split_embedding
from peer.model.stage import Stage
from peer.model.subspace import (
    Boundary,
    DirectBoundary,
    SubspaceBoundary,
    WholeBoundary,
    nested,
)
from protocol.layout import EMBEDDING_TENSOR
from protocol.manifest import Manifest
from tests.reference import boundary as reference
from tests.reference.boundary import floats
from tests.reference.llama import random_tokens, random_weights, small_manifests

V, D, K = 600, 16, 4
WIRE = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bf16", "fp32"])


def parts(k: int = K, seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """U [d, k], T⊥ [V, d], tokens [2, 7] and X [2, 7, d]."""
    random = torch.Generator().manual_seed(seed)
    u = nested(reference.orthonormal(D, seed), k)
    _, anchor = split_embedding(torch.randn(V, D, generator=random), u)
    return u, anchor, torch.randint(V, (2, 7), generator=random), torch.randn(2, 7, D, generator=random)


def manual(
    embedding: FactoredEmbedding, stages: list[Stage], boundary: Boundary, tokens: Tensor, targets: Tensor
) -> Tensor:
    """Forward and backward as a group of volunteers runs them: no graph crosses a boundary."""
    entered: list[Tensor] = [embedding(tokens)]
    left: list[Tensor] = []
    for s, stage in enumerate(stages):
        if s > 0:
            payload = boundary.encode(left[-1], tokens)
            entered.append(boundary.decode(payload, tokens).requires_grad_())
        left.append(stage(entered[-1], tokens))
    result = stages[-1].lm_head(left[-1], targets)
    backward(result)
    for s in reversed(range(1, len(stages))):
        gradient = entered[s].grad
        assert gradient is not None
        backward(left[s - 1], boundary.decode_gradient(boundary.encode_gradient(gradient)))
    return result.detach()


@given(small_manifests(), st.integers(1, 3), st.integers(0, 99))
@settings(max_examples=25, deadline=None)
def test_chaining_by_hand_gives_the_gradients_of_the_equation(manifest: Manifest, batch: int, seed: int) -> None:
    model, weights = manifest.model, random_weights(manifest, seed, torch.float32)
    ids = random_tokens(manifest, batch, model.context, seed)
    tokens, targets = ids[:, :-1], ids[:, 1:]
    u, te = nested(reference.orthonormal(model.d, seed), manifest.k), weights[EMBEDDING_TENSOR]

    def fresh() -> tuple[FactoredEmbedding, list[Stage]]:
        embedding = FactoredEmbedding(model.vocabulary, u)
        embedding.load(te)
        stages = [Stage(manifest, s) for s in range(manifest.replicas.stages)]
        for stage in stages:
            stage.load({name: weights[name] for name in stage.tensors()})
        return embedding, stages

    embedding, stages = fresh()
    ours = manual(embedding, stages, SubspaceBoundary(u, embedding.anchor_Vd, floats(torch.float32)), tokens, targets)

    whole_embedding, whole = fresh()
    x = whole[0](whole_embedding(tokens), tokens)
    for stage in whole[1:]:
        x = stage(reference.through(x, tokens, u, reference.embedding(te, u)[1]), tokens)
    theirs = F.cross_entropy((x @ whole[-1].lm_head.weight.T).flatten(0, 1), targets.flatten())
    backward(theirs)

    close = functools.partial(torch.testing.assert_close, rtol=1e-3, atol=1e-5)
    close(ours, theirs.detach())
    close(embedding.z_Vk.grad, whole_embedding.z_Vk.grad)
    for one, other in zip(stages, whole, strict=True):
        for name, tensor in one.tensors().items():
            close(tensor.grad, other.tensors()[name].grad)


@given(st.integers(1, D), st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_decode_after_encode_is_the_projection(k: int, seed: int) -> None:
    u, anchor, tokens, x = parts(k, seed)
    boundary = SubspaceBoundary(u, anchor, floats(torch.float32))
    rebuilt = boundary.decode(boundary.encode(x, tokens), tokens)
    torch.testing.assert_close(rebuilt, reference.through(x, tokens, u, anchor), rtol=1e-5, atol=1e-5)


def test_what_is_dropped_would_be_dropped_again() -> None:
    """So error feedback on activations, and on their gradients, would send the same bytes."""
    u, anchor, tokens, x = parts()
    boundary = SubspaceBoundary(u, anchor, floats(torch.float32))
    sent, told = boundary.encode(x, tokens), boundary.encode_gradient(x)
    dropped, untold = x - boundary.decode(sent, tokens), x - boundary.decode_gradient(told)
    assert dropped.norm() > x.norm() / 2
    assert torch.allclose(boundary.encode(x + dropped, tokens), sent, atol=1e-5)
    assert torch.allclose(boundary.encode_gradient(x + untold), told, atol=1e-5)


def test_nothing_is_lost_when_what_the_anchor_leaves_lies_in_the_subspace() -> None:
    u, anchor, tokens, x = parts()
    inside = anchor[tokens] + x @ u @ u.T
    boundary = SubspaceBoundary(u, anchor, floats(torch.float32))
    torch.testing.assert_close(boundary.decode(boundary.encode(inside, tokens), tokens), inside, rtol=1e-5, atol=1e-5)


def test_a_whole_basis_loses_nothing() -> None:
    u, anchor, tokens, x = parts(k=D)
    boundary = SubspaceBoundary(u, anchor, floats(torch.float32))
    torch.testing.assert_close(boundary.decode(boundary.encode(x, tokens), tokens), x, rtol=1e-5, atol=1e-5)


@WIRE
def test_payloads_are_the_equation_rounded_to_the_wire(dtype: torch.dtype) -> None:
    u, anchor, tokens, x = parts()
    boundary = SubspaceBoundary(u, anchor, floats(dtype))
    assert torch.equal(boundary.encode(x, tokens), ((x - anchor[tokens]) @ u).to(dtype))
    assert torch.equal(boundary.encode_gradient(x), (x @ u).to(dtype))
    z = torch.randn(2, 7, K).to(dtype)
    assert torch.equal(boundary.decode(z, tokens), z.float() @ u.T + anchor[tokens])
    assert torch.equal(boundary.decode_gradient(z), z.float() @ u.T)


@WIRE
def test_a_payload_has_the_shape_and_format_of_the_wire_and_decodes_to_fp32(dtype: torch.dtype) -> None:
    u, anchor, tokens, x = parts()
    scattered = x.transpose(0, 1).contiguous().transpose(0, 1)
    for boundary, width in ((SubspaceBoundary(u, anchor, floats(dtype)), K), (WholeBoundary(floats(dtype)), D)):
        for payload in (boundary.encode(scattered, tokens), boundary.encode_gradient(scattered)):
            assert (payload.shape, payload.dtype, payload.is_contiguous()) == ((2, 7, width), dtype, True)
        for decoded in (boundary.decode(payload, tokens), boundary.decode_gradient(payload)):
            assert (decoded.shape, decoded.dtype) == ((2, 7, D), torch.float32)


def test_a_whole_boundary_only_rounds_and_a_direct_one_does_nothing() -> None:
    _, _, tokens, x = parts()
    cases: list[tuple[Boundary, Tensor]] = [
        (WholeBoundary(floats(torch.bfloat16)), x.bfloat16().float()),
        (WholeBoundary(floats(torch.float32)), x),
        (DirectBoundary(), x),
    ]
    for boundary, expected in cases:
        assert torch.equal(boundary.decode(boundary.encode(x, tokens), tokens), expected)
        assert torch.equal(boundary.decode_gradient(boundary.encode_gradient(x)), expected)


def test_no_graph_crosses_a_boundary() -> None:
    u, anchor, tokens, x = parts()
    leaf = x.requires_grad_()
    every: list[Boundary] = [
        SubspaceBoundary(u, anchor, floats(torch.float32)),
        WholeBoundary(floats(torch.float32)),
        DirectBoundary(),
    ]
    for boundary in every:
        payload = boundary.encode(leaf * 1, tokens)
        gradient = boundary.encode_gradient(leaf * 1)
        for tensor in (
            payload,
            boundary.decode(payload, tokens),
            gradient,
            boundary.decode_gradient(gradient),
        ):
            assert not tensor.requires_grad


def test_token_ids_never_pass_through_bf16() -> None:
    """Ids above 256 have no bf16 of their own: 257 would look up 256."""
    u, anchor, _, _ = parts()
    boundary = SubspaceBoundary(u, anchor, floats(torch.bfloat16))
    tokens = torch.arange(V)[None]
    nothing = torch.zeros(1, V, K, dtype=torch.bfloat16)
    assert torch.equal(boundary.decode(nothing, tokens), anchor[None])
    assert not boundary.encode(anchor[None], tokens).any()
    with pytest.raises(RuntimeError, match="indices"):
        boundary.decode(nothing, tokens.bfloat16())


def test_a_larger_k_loses_no_more_and_a_smaller_is_its_prefix() -> None:
    basis = reference.orthonormal(D)
    _, anchor, tokens, x = parts()
    lost = []
    for k in (1, 4, 8, 16):
        boundary = SubspaceBoundary(nested(basis, k), anchor, floats(torch.float32))
        z = boundary.encode(x, tokens)
        torch.testing.assert_close(z, SubspaceBoundary(basis, anchor, floats(torch.float32)).encode(x, tokens)[..., :k])
        lost.append((boundary.decode(z, tokens) - x).norm().item())
    assert lost == sorted(lost, reverse=True)


def test_nested_is_the_first_columns_contiguous() -> None:
    basis = reference.orthonormal(D)
    assert torch.equal(nested(basis, 3), basis[:, :3])
    assert nested(basis, 3).is_contiguous()
    for k in (0, D + 1):
        with pytest.raises(ValueError, match="k ="):
            nested(basis, k)
