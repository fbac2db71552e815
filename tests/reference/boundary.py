"""The boundary between two stages as one expression, for autograd to differentiate (HET, section 2)."""

import math

import torch
from torch import Tensor

from peer.model.number_format import Floats
from peer.model.subspace import Formats


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


def floats(dtype: torch.dtype) -> Formats:
    """One number format, of floats, in both directions."""
    return Formats(Floats(dtype), Floats(dtype))


def quantized(values: list[float], bits: int) -> list[float]:
    """What is left of one token's values in integers: cells of one width, the scale its root mean square in bf16."""
    step = {8: 0.0308, 4: 0.3352}[bits]
    scale = torch.tensor(values).square().mean().sqrt().bfloat16().float().item()
    if scale == 0:
        return [0.0] * len(values)
    half = 2 ** (bits - 1)
    cells = [max(-half, min(half - 1, math.floor(value / (scale * step)))) for value in values]
    return [(cell + 0.5) * step * scale for cell in cells]
