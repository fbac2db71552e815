"""The boundary between two stages as one expression, for autograd to differentiate (HET, section 2)."""

import torch
from torch import Tensor


def embedding(te: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """T_S = TE U Uᵀ and T⊥ = TE − T_S."""
    t_s = te @ u @ u.T
    return t_s, te - t_s


def through(x: Tensor, tokens: Tensor, u: Tensor, t_perp: Tensor) -> Tensor:
    """X̂ = (X − T⊥[x]) U Uᵀ + T⊥[x]: decode ∘ encode, without rounding."""
    return (x - t_perp[tokens]) @ u @ u.T + t_perp[tokens]


def orthonormal(d: int, seed: int = 0) -> Tensor:
    """A d × d orthonormal basis in fp32."""
    gaussian = torch.randn(d, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    q: Tensor = torch.linalg.qr(gaussian).Q
    return q.float()
