"""TE = T_S + T⊥, and a compressed group moves only T_S."""

import functools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import backward

from peer.model.embedding import DenseEmbedding, Embedding, FactoredEmbedding, split_embedding
from peer.model.subspace import nested
from tests.reference import boundary as reference

V, D = 270, 16
WIDTHS = st.integers(1, D)
SEEDS = st.integers(0, 99)
close = functools.partial(torch.testing.assert_close, rtol=1e-5, atol=1e-5)


def random_te(seed: int = 0) -> Tensor:
    return torch.randn(V, D, generator=torch.Generator().manual_seed(seed))


def basis(k: int, seed: int = 0) -> Tensor:
    return nested(reference.orthonormal(D, seed), k)


def every_kind(te: Tensor) -> list[Embedding]:
    kinds: list[Embedding] = [FactoredEmbedding(V, basis(4)), DenseEmbedding(V, D)]
    for embedding in kinds:
        embedding.load(te)
    return kinds


def train_a_little(embedding: Embedding, tokens: Tensor) -> None:
    """Three steps of AdamW, with weight decay, towards nothing in particular."""
    adam = torch.optim.AdamW(embedding.parameters(), lr=0.05, weight_decay=0.1)
    for _ in range(3):
        adam.zero_grad()
        backward(embedding(tokens).sin().sum())
        adam.step()


@given(WIDTHS, SEEDS)
@settings(max_examples=30, deadline=None)
def test_the_split_is_the_paper_s(k: int, seed: int) -> None:
    te, u = random_te(seed), basis(k, seed)
    z, anchor = split_embedding(te, u)
    t_s, t_perp = reference.embedding(te, u)
    close(z @ u.T, t_s)
    close(anchor, t_perp)
    close(z @ u.T + anchor, te)
    close(anchor @ u, torch.zeros(V, k))


def test_either_kind_looks_tokens_up_in_te() -> None:
    te = random_te()
    tokens = torch.tensor([[0, 255, 256], [257, 269, 1]])
    for embedding in every_kind(te):
        close(embedding(tokens), te[tokens])


@given(WIDTHS, SEEDS)
@settings(max_examples=30, deadline=None)
def test_the_factor_s_gradient_is_the_dense_one_projected(k: int, seed: int) -> None:
    te, u = random_te(seed), basis(k, seed)
    tokens = torch.randint(V, (2, 5), generator=torch.Generator().manual_seed(seed))
    gradient = torch.randn(2, 5, D, generator=torch.Generator().manual_seed(seed))
    factored, dense = FactoredEmbedding(V, u), DenseEmbedding(V, D)
    for embedding in (factored, dense):
        embedding.load(te)
        backward(embedding(tokens), gradient)
    assert dense.te_Vd.grad is not None
    close(factored.z_Vk.grad, dense.te_Vd.grad @ u)


def test_moved_is_how_far_te_went_whoever_trains_it() -> None:
    te, every_token = random_te(), torch.arange(V)[None]
    for embedding in every_kind(te):
        assert torch.equal(embedding.moved(te), torch.zeros(V, D))
        train_a_little(embedding, every_token)
        te_end = embedding(every_token)[0].detach()
        assert embedding.moved(te).abs().min() > 0
        torch.testing.assert_close(embedding.moved(te), te - te_end, rtol=1e-4, atol=1e-5)


def test_a_compressed_group_moves_and_decays_te_only_inside_the_subspace() -> None:
    te, u = random_te(), basis(4)
    embedding = FactoredEmbedding(V, u)
    embedding.load(te)
    train_a_little(embedding, torch.arange(V)[None])
    moved = embedding.moved(te)
    torch.testing.assert_close(moved @ u @ u.T, moved, rtol=1e-5, atol=1e-6)
    _, t_perp = reference.embedding(te, u)
    close(embedding.anchor_Vd, t_perp)


def test_loading_again_keeps_the_parameter_and_starts_over() -> None:
    for embedding in every_kind(random_te(1)):
        (parameter,) = embedding.parameters()
        train_a_little(embedding, torch.arange(V)[None])
        embedding.load(random_te(2))
        (again,) = embedding.parameters()
        assert again is parameter
        assert torch.equal(embedding.moved(random_te(2)), torch.zeros(V, D))
        close(embedding(torch.arange(V)), random_te(2))


def test_loading_again_writes_the_anchor_in_place() -> None:
    embedding = FactoredEmbedding(V, basis(4))
    anchor = embedding.anchor_Vd
    embedding.load(random_te(2))
    assert embedding.anchor_Vd is anchor
    assert torch.equal(anchor, split_embedding(random_te(2), basis(4))[1])


def test_a_te_that_is_not_ours_to_load_is_refused() -> None:
    for embedding in every_kind(random_te()):
        for wrong in (torch.zeros(1, D), torch.zeros(V, D + 1), torch.zeros(D)):
            with pytest.raises(ValueError, match="TE is"):
                embedding.load(wrong)


def test_only_the_factor_or_te_is_a_parameter() -> None:
    factored, dense = every_kind(random_te())
    assert [tuple(p.shape) for p in factored.parameters()] == [(V, 4)]
    assert [tuple(p.shape) for p in dense.parameters()] == [(V, D)]
