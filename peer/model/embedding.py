"""The token embedding of a replica: TE = T_S + T⊥ (HET, arXiv 2601.02360, equations 3 and 4).

At the start of every inner loop T_S = TE U Uᵀ and T⊥ = TE − T_S, a pure function of TE and U. A
compressed group freezes T⊥ and trains T_S by its factor Z, T_S = Z Uᵀ, so that it cannot leave the
subspace, and weight decay acts on T_S alone. A datacenter replica trains, and decays, all of TE.

Letters of shapes: V vocabulary, d width of the residual stream, k dimensions of the subspace; of
activations B sequences, L tokens of a sequence, D = d.
"""

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@torch.no_grad()
def split_embedding(te_Vd: Tensor, basis_dk: Tensor) -> tuple[Tensor, Tensor]:
    """The factor Z = TE U [V, k] of T_S = Z Uᵀ, and the anchor T⊥ = TE − T_S [V, d].

    A stage after the first needs only the anchor, `split(te_Vd, basis_dk)[1]`.
    """
    z_Vk = te_Vd @ basis_dk
    return z_Vk, te_Vd - z_Vk @ basis_dk.T


@torch.no_grad()
def anchor_of(te_Vd: Tensor, basis_dk: Tensor) -> Tensor:
    """T⊥ [V, d] as `split_embedding` gives it, in the memory of TE, which is used up."""
    return te_Vd.sub_(te_Vd @ basis_dk @ basis_dk.T)


class Embedding(nn.Module, ABC):
    """The interface of a token embedding for the trainer: one parameter, and how far it has moved."""

    @abstractmethod
    def forward(self, tokens_BL: Tensor) -> Tensor:
        """Token ids [B, L], integers in range → residual stream [B, L, D]."""

    @abstractmethod
    def load(self, te_Vd: Tensor) -> None:
        """Begin an inner loop at TE, in place, so that an optimizer keeps its moments.

        Raises:
            ValueError: TE has another shape.
        """

    @abstractmethod
    def moved(self, start_Vd: Tensor) -> Tensor:
        """TE_start − TE_end [V, d]: the Δ of the inner loop that began at TE = `start_Vd` (HET, equation 1); no
        gradient. What is trained in a subspace has kept its start, which is smaller."""


class FactoredEmbedding(Embedding):
    """T⊥[x] + Z[x] Uᵀ on stage 0 of a compressed group: only Z [V, k] is a parameter.

    `anchor_Vd` is T⊥, and `load` writes it in place: a boundary made with it follows.
    """

    basis_dk: Tensor
    anchor_Vd: Tensor
    start_Vk: Tensor

    def __init__(self, vocabulary: int, basis_dk: Tensor) -> None:
        super().__init__()
        d, k = basis_dk.shape
        self.z_Vk = nn.Parameter(torch.empty(vocabulary, k, device=basis_dk.device))
        self.register_buffer("basis_dk", basis_dk, persistent=False)
        self.register_buffer("anchor_Vd", torch.empty(vocabulary, d, device=basis_dk.device), persistent=False)
        self.register_buffer("start_Vk", torch.empty_like(self.z_Vk), persistent=False)

    def forward(self, tokens_BL: Tensor) -> Tensor:
        return F.embedding(tokens_BL, self.anchor_Vd) + F.embedding(tokens_BL, self.z_Vk) @ self.basis_dk.T

    @torch.no_grad()
    def load(self, te_Vd: Tensor) -> None:
        require_shape(te_Vd, self.anchor_Vd)
        te_Vd = te_Vd.to(self.basis_dk)
        torch.matmul(te_Vd, self.basis_dk, out=self.start_Vk)
        torch.sub(te_Vd, self.start_Vk @ self.basis_dk.T, out=self.anchor_Vd)
        self.z_Vk.copy_(self.start_Vk)

    @torch.no_grad()
    def moved(self, start_Vd: Tensor) -> Tensor:
        return (self.start_Vk - self.z_Vk) @ self.basis_dk.T


class DenseEmbedding(Embedding):
    """TE[x] in a datacenter replica, or where compression is off: all of TE [V, d] is the parameter."""

    def __init__(self, vocabulary: int, d: int) -> None:
        super().__init__()
        self.te_Vd = nn.Parameter(torch.empty(vocabulary, d))

    def forward(self, tokens_BL: Tensor) -> Tensor:
        return F.embedding(tokens_BL, self.te_Vd)

    @torch.no_grad()
    def load(self, te_Vd: Tensor) -> None:
        require_shape(te_Vd, self.te_Vd)
        self.te_Vd.copy_(te_Vd)

    @torch.no_grad()
    def moved(self, start_Vd: Tensor) -> Tensor:
        return start_Vd - self.te_Vd


def require_shape(te_Vd: Tensor, ours_Vd: Tensor) -> None:
    """Raises ValueError where `copy_` would broadcast."""
    if te_Vd.shape != ours_Vd.shape:
        raise ValueError(f"TE is {tuple(te_Vd.shape)} instead of {tuple(ours_Vd.shape)}")
