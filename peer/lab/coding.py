"""How else a boundary could spend its bytes: the same 2k a token and direction, not for k numbers in bf16.

What crosses a boundary, less its anchor, is told by coordinates in an orthonormal basis, quantized, and the largest
entries of what is left (transform coding). Payloads here are what the receiver reads; the bytes are counted, not made.

Letters of shapes: D width of the residual stream, k coordinates, B sequences, L tokens.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

GAUSSIAN_STEPS = (0.0, 1.5956, 0.9957, 0.5860, 0.3352, 0.1881, 0.1041, 0.0569, 0.0308)
"""Of 0 … 8 bits: the step of the uniform quantizer of least squared error for a normal distribution (Max, 1960)."""

MOST_BITS = len(GAUSSIAN_STEPS) - 1

SCALE_BITS = 16
"""A token's own scale, in bf16, where coordinates are quantized."""

BITS = {"wire": 16, "8bit": 8, "4bit": 4, "2bit": 2, "allocated": 4}
"""Of a coordinate; where bits are allocated, before there are variances to go by."""


def coordinates(budget: int, bits: int, residuals: int, d: int) -> int:
    """How many coordinates of `bits` each fit into `budget` bits a token, beside its scale and `residuals` entries.

    Raises:
        ValueError: none do.
    """
    scale = SCALE_BITS if bits < 16 else 0
    fit = min(d, (budget - scale - residuals * residual_bits(d)) // bits)
    if fit < 1:
        raise ValueError(
            f"{budget} bits a token are too few for {residuals} residuals and one coordinate of {bits} bits"
        )
    return fit


def residual_bits(d: int) -> int:
    """One entry of the residual: its place, and its value in bf16."""
    return (d - 1).bit_length() + 16


def allocate(variance_k: Tensor, budget: int) -> Tensor:
    """Bits for each coordinate, `budget` in all: one after another to the largest error (reverse water-filling)."""
    errors, bits = variance_k.double().clone(), torch.zeros(len(variance_k), dtype=torch.int64)
    for _ in range(min(budget, MOST_BITS * len(bits))):
        most = int(errors.argmax())
        bits[most] += 1
        errors[most] = errors[most] / 4 if bits[most] < MOST_BITS else -1.0
    return bits


@dataclass(frozen=True, slots=True, eq=False)
class Coder:
    """One direction of one boundary. `basis_dk` has orthonormal columns; `bits_k` is None for plain `dtype`.

    Quantized coordinates are scaled by their deviation, which both sides know, and by the token's own scale.
    """

    basis_dk: Tensor
    dtype: torch.dtype
    bits_k: Tensor | None = None
    deviation_k: Tensor | None = None
    residuals: int = 0

    @torch.no_grad()
    def __call__(self, x_BLD: Tensor) -> Tensor:
        """X → what the receiver has of it."""
        z_BLk = self._rounded((x_BLD @ self.basis_dk).float())
        rebuilt_BLD = z_BLk @ self.basis_dk.T
        if self.residuals:
            rest_BLD = x_BLD - rebuilt_BLD
            places_BLs = rest_BLD.abs().topk(self.residuals, dim=-1).indices
            kept_BLs = rest_BLD.gather(-1, places_BLs).to(torch.bfloat16).to(rebuilt_BLD.dtype)
            rebuilt_BLD = rebuilt_BLD.scatter_add(-1, places_BLs, kept_BLs)
        return rebuilt_BLD

    def _rounded(self, z_BLk: Tensor) -> Tensor:
        if self.bits_k is None:
            return z_BLk.to(self.dtype).float()
        steps_k = torch.tensor(GAUSSIAN_STEPS, device=z_BLk.device)[self.bits_k]
        half_k = 2.0 ** (self.bits_k - 1)
        deviation_k = torch.ones_like(steps_k) if self.deviation_k is None else self.deviation_k
        sent_k = self.bits_k > 0
        unit_BLk = z_BLk / deviation_k.clamp_min(1e-12)
        scale_BL1 = (unit_BLk**2 * sent_k).sum(-1, keepdim=True).div(sent_k.sum()).sqrt().to(torch.bfloat16).float()
        cells_BLk = (unit_BLk / (scale_BL1 * steps_k).clamp_min(1e-30)).floor()
        cells_BLk = torch.maximum(torch.minimum(cells_BLk, half_k - 1), -half_k)
        return (cells_BLk + 0.5) * steps_k * scale_BL1 * deviation_k * sent_k


@dataclass(slots=True)
class Spectrum:
    """The second moment of what crosses a boundary in one direction, of every `EVERY`-th microbatch."""

    moment_DD: Tensor
    count: int = 0
    seen: int = 0

    EVERY = 4

    @torch.no_grad()
    def watch(self, x_BLD: Tensor) -> None:
        """Take a microbatch into it; in fp32 also where the model is computed in bf16, whose rounding would drown the
        weak directions."""
        if self.seen % self.EVERY == 0:
            x_nD = x_BLD.flatten(0, -2).float()
            with torch.autocast(x_nD.device.type, enabled=False):
                self.moment_DD += x_nD.T @ x_nD
            self.count += len(x_nD)
        self.seen += 1

    def clear(self) -> None:
        """Begin anew."""
        self.moment_DD.zero_()
        self.count = self.seen = 0

    def directions(self) -> tuple[Tensor, Tensor]:
        """Its principal directions [D, D], the strongest first, and their variances [D]."""
        values_D, vectors_DD = torch.linalg.eigh(self.moment_DD.double() / max(1, self.count))
        return vectors_DD.flip(1).float().contiguous(), values_D.flip(0).clamp_min(0).float()

    def variances(self, basis_Dk: Tensor) -> Tensor:
        """The variances [k] in another basis."""
        return ((self.moment_DD / max(1, self.count)) @ basis_Dk * basis_Dk).sum(0).clamp_min(0)
