"""The boundaries of the lab's groups: which basis, which anchor, which bytes; and how a fitted basis is fitted.

A boundary may spend its bytes otherwise: the same 2k a token and direction, not for k numbers in bf16.
What crosses a boundary, less its anchor, is told by coordinates in an orthonormal basis, quantized, and the largest
entries of what is left (transform coding). Payloads here are what the receiver reads; the bytes are counted, not made.

Letters of shapes: D width of the residual stream, k coordinates, B sequences, L tokens.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from peer.compute.design import Boundaries
from peer.lab.switches import BITS, SCALE_BITS, Switches, coordinates, residual_bits
from peer.model.embedding import split_embedding
from peer.model.number_format import DTYPES
from peer.model.subspace import Boundary, nested
from protocol.manifest import Manifest

GAUSSIAN_STEPS = (0.0, 1.5956, 0.9957, 0.5860, 0.3352, 0.1881, 0.1041, 0.0569, 0.0308)
"""Of 0 … 8 bits: the step of the uniform quantizer of least squared error for a normal distribution (Max, 1960)."""

MOST_BITS = len(GAUSSIAN_STEPS) - 1

NOISE = 1e-6
"""Of the largest variance: what is below is the rounding of a moment in fp32, and no measure of anything."""


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
        """Forget all microbatches that were seen."""
        self.moment_DD.zero_()
        self.count = self.seen = 0

    def directions(self) -> tuple[Tensor, Tensor]:
        """Its principal directions [D, D], the strongest first, and their variances [D]."""
        values_D, vectors_DD = torch.linalg.eigh(self.moment_DD.double() / max(1, self.count))
        return vectors_DD.flip(1).float().contiguous(), values_D.flip(0).clamp_min(0).float()

    def variances(self, basis_Dk: Tensor) -> Tensor:
        """The variances [k] of the coordinates in another basis."""
        return ((self.moment_DD / max(1, self.count)) @ basis_Dk * basis_Dk).sum(0).clamp_min(0)


@dataclass(frozen=True, slots=True, eq=False)
class CodedBoundary:
    """As `SubspaceBoundary`, with any coder in either direction. Payloads are [B, L, D]: what the receiver has."""

    anchor_VD: Tensor
    forward: Coder
    backward: Coder
    out: Spectrum | None
    back: Spectrum | None

    @torch.no_grad()
    def encode(self, x_BLD: Tensor, tokens_BL: Tensor) -> Tensor:
        rest_BLD = x_BLD - F.embedding(tokens_BL, self.anchor_VD)
        if self.out is not None:
            self.out.watch(rest_BLD)
        return self.forward(rest_BLD)

    @torch.no_grad()
    def decode(self, payload: Tensor, tokens_BL: Tensor) -> Tensor:
        return payload.float() + F.embedding(tokens_BL, self.anchor_VD)

    @torch.no_grad()
    def encode_gradient(self, g_BLD: Tensor) -> Tensor:
        if self.back is not None:
            self.back.watch(g_BLD)
        return self.backward(g_BLD)

    @torch.no_grad()
    def decode_gradient(self, payload: Tensor) -> Tensor:
        return payload.float()


@dataclass(slots=True)
class GroupBoundaries:
    """All boundaries of a group, whose coders may be fitted anew after each round.

    One set for all groups: their weights are one at each round's start, and so are their statistics. A swarm's group
    would fit its own, and send it along.
    """

    manifest: Manifest
    switches: Switches
    basis_dk: Tensor
    """U. Changed in place, so that what was made of it follows."""
    coders: list[tuple[Coder, Coder]]
    spectra: list[tuple[Spectrum, Spectrum]]
    genesis_VD: Tensor
    steps: int = 0

    @staticmethod
    def begin(manifest: Manifest, switches: Switches, basis_DD: Tensor, genesis_VD: Tensor) -> "GroupBoundaries":
        """Before round 1: nothing has been fitted yet, and random directions do."""
        d, boundaries = manifest.model.d, max(1, manifest.replicas.stages - 1)  # a model of one stage asks for one, too
        wire = DTYPES[manifest.replicas.wire]

        def coder(payload: str) -> Coder:
            width, bits_k = _equal_bits(manifest, switches, payload, basis_DD.device)
            return Coder(nested(basis_DD, width), wire, bits_k, residuals=switches.residuals)

        forward, backward = switches.payloads
        out = coder(forward)
        back = out if backward == forward else coder(backward)

        def spectrum() -> Spectrum:
            return Spectrum(torch.zeros(d, d, device=basis_DD.device))

        watched = switches.basis == "fitted" or switches.grassmann
        spectra = [(spectrum(), spectrum()) for _ in range(boundaries)] if watched else []
        return GroupBoundaries(manifest, switches, out.basis_dk, [(out, back)] * boundaries, spectra, genesis_VD)

    def boundaries(self, te_VD: Tensor | None, watched: bool = True) -> Boundaries:
        """Those of an inner loop that starts from TE, or, if nothing is to be learnt from it, of an evaluation."""
        assert te_VD is not None
        anchor_VD = te_VD
        if self.manifest.replicas.factored:
            anchor_VD = split_embedding(te_VD if self.switches.adaptation else self.genesis_VD, self.basis_dk)[1]
        watch = self._watchers() if watched else [(None, None)] * len(self.coders)
        made = [CodedBoundary(anchor_VD, *pair, *each) for pair, each in zip(self.coders, watch, strict=True)]

        def at(stage: int) -> Boundary:
            return made[min(max(stage, 0), len(made) - 1)]

        return at

    def _watchers(self) -> list[tuple[Spectrum | None, Spectrum | None]]:
        """Of each boundary the spectra that `end_round` will read."""
        if not self.spectra:
            return [(None, None)] * len(self.coders)
        switches = self.switches
        fitted = switches.basis == "fitted"
        scaled = switches.payload != "wire" or switches.gradient_basis == "own"
        backward = bool(switches.grassmann) or scaled
        return [(out if fitted else None, back if backward else None) for out, back in self.spectra]

    @property
    def bytes_per_token(self) -> float:
        """Of the first boundary forward, without token ids; a fitted one may leave out directions without variance."""
        coder = self.coders[0][0]
        if coder.bits_k is None:
            bits = 8 * coder.dtype.itemsize * coder.basis_dk.shape[1]
        else:
            bits = SCALE_BITS + int(coder.bits_k.sum())
        return (bits + coder.residuals * residual_bits(self.manifest.model.d)) / 8

    def end_round(self, steps: int) -> None:
        """After `steps` more inner steps: fit, if that is to be done."""
        self.steps += steps
        if self.switches.basis == "fitted":
            self.coders = [self._fitted(*spectra) for spectra in self.spectra]
        if self.switches.grassmann and self.steps >= self.switches.grassmann:
            self.steps = 0
            self.basis_dk.copy_(_towards_gradients(self.basis_dk, [back for _, back in self.spectra]))
        if self.switches.basis == "fitted" or self.steps == 0:
            for spectrum in (each for pair in self.spectra for each in pair):
                spectrum.clear()

    def _fitted(self, out: Spectrum, back: Spectrum) -> tuple[Coder, Coder]:
        directions_DD, variance_D = out.directions()
        own = self.switches.gradient_basis == "own"
        back_DD, back_D = back.directions() if own else (directions_DD, back.variances(directions_DD))
        return self._coder(directions_DD, variance_D), self._coder(back_DD, back_D)

    def _coder(self, directions_DD: Tensor, variance_D: Tensor) -> Coder:
        switches, budget = self.switches, 16 * self.manifest.k
        dtype = DTYPES[self.manifest.replicas.wire]
        bits_k: Tensor | None
        if switches.payload == "allocated":
            room = budget - SCALE_BITS - switches.residuals * residual_bits(self.manifest.model.d)
            allocated_k = allocate(variance_D.cpu(), room)
            width = int(allocated_k.nonzero().max()) + 1
            bits_k = allocated_k[:width].to(directions_DD.device)
        else:
            width, bits_k = _equal_bits(self.manifest, switches, switches.payload, directions_DD.device)
        basis_Dk, variance_k = directions_DD[:, :width].contiguous(), variance_D[:width]
        if bits_k is None:
            return Coder(basis_Dk, dtype, residuals=switches.residuals)
        told_k = variance_k >= NOISE * variance_D.max()
        return Coder(basis_Dk, dtype, bits_k * told_k, variance_k.sqrt(), switches.residuals)


def _equal_bits(
    manifest: Manifest, switches: Switches, payload: str, device: torch.device
) -> tuple[int, Tensor | None]:
    """How many coordinates the bytes of k in bf16 are good for, and the bits of each; None for plain numbers."""
    bits = BITS[payload]
    width = coordinates(16 * manifest.k, bits, switches.residuals, manifest.model.d)
    return width, None if bits == 16 else torch.full((width,), bits, device=device)


def _towards_gradients(basis_dk: Tensor, spectra: list[Spectrum]) -> Tensor:
    """One step on the Grassmann manifold that lowers Σ ‖G − G U Uᵀ‖² (Subspace Networks, arXiv 2506.01260).

    The Euclidean gradient is −2 M U with the moment M = GᵀG; its tangent part is taken, at the length at which the
    largest direction would turn by some 6°, and QR leads back.
    """
    moment_DD = torch.stack([each.moment_DD / max(1, each.count) for each in spectra]).mean(0)
    tangent_dk = moment_DD @ basis_dk
    tangent_dk = tangent_dk - basis_dk @ (basis_dk.T @ tangent_dk)
    length = torch.linalg.matrix_norm(tangent_dk, 2).clamp_min(1e-30)
    turned_dk, triangle_kk = torch.linalg.qr(basis_dk + 0.1 * tangent_dk / length)
    upright_dk: Tensor = turned_dk * triangle_kk.diagonal().sign()
    return upright_dk
