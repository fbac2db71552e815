"""The boundary between two stages (HET, arXiv 2601.02360, section 2; Subspace Networks, arXiv 2506.01260).

The sender transmits Z = (X − T⊥[x]) U, the receiver rebuilds X̂ = Z Uᵀ + T⊥[x]; backward transmits
G = ∇X̂ U and the receiver uses G Uᵀ. U has orthonormal columns and is never trained. Token ids x travel
beside the payload as the integers they are: bf16 would corrupt every id above 256.

Nothing here is recorded by autograd; the trainer chains the stages by hand:
`x_BLD.backward(boundary.decode_gradient(payload))`.

Letters of shapes: V vocabulary, d = D width of the residual stream, k dimensions of the subspace,
B sequences, L tokens of a sequence.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from peer.model.number_format import NumberFormat


class Boundary(Protocol):
    """The encoding between two stages. Payloads are contiguous; decoded numbers are fp32.

    Token ids and the shape of a payload are checked where frames are parsed, not here.
    """

    def encode(self, x_BLD: Tensor, tokens_BL: Tensor) -> Tensor:
        """Activations → payload, at the sender."""

    def decode(self, payload: Tensor, tokens_BL: Tensor) -> Tensor:
        """Payload → activations [B, L, D], at the receiver."""

    def encode_gradient(self, g_BLD: Tensor) -> Tensor:
        """Gradient of the loss by what `decode` gave → payload, at the receiver."""

    def decode_gradient(self, payload: Tensor) -> Tensor:
        """Payload → gradient [B, L, D] by what `encode` took, at the sender."""


@dataclass(frozen=True, slots=True)
class Formats:
    """Number formats of activations and of gradients."""

    activations: NumberFormat
    gradients: NumberFormat


@dataclass(frozen=True, slots=True, eq=False)
class SubspaceBoundary:
    """k numbers a token, between stages of a compressed group.

    `anchor_Vd` is T⊥ of the round: both sides must have split the same TE.
    """

    basis_dk: Tensor
    anchor_Vd: Tensor
    formats: Formats

    @torch.no_grad()
    def encode(self, x_BLD: Tensor, tokens_BL: Tensor) -> Tensor:
        """Z = (X − T⊥[x]) U."""
        return self.formats.activations.pack((x_BLD - F.embedding(tokens_BL, self.anchor_Vd)) @ self.basis_dk)

    @torch.no_grad()
    def decode(self, payload: Tensor, tokens_BL: Tensor) -> Tensor:
        """X̂ = Z Uᵀ + T⊥[x]."""
        return self.formats.activations.unpack(payload) @ self.basis_dk.T + F.embedding(tokens_BL, self.anchor_Vd)

    @torch.no_grad()
    def encode_gradient(self, g_BLD: Tensor) -> Tensor:
        """G = ∇X̂ U."""
        return self.formats.gradients.pack(g_BLD @ self.basis_dk)

    @torch.no_grad()
    def decode_gradient(self, payload: Tensor) -> Tensor:
        """∇X = G Uᵀ."""
        return self.formats.gradients.unpack(payload) @ self.basis_dk.T


@dataclass(frozen=True, slots=True, eq=False)
class WholeBoundary:
    """Whole activations: groups of a run without compression."""

    formats: Formats

    @torch.no_grad()
    def encode(self, x_BLD: Tensor, tokens_BL: Tensor) -> Tensor:
        return self.formats.activations.pack(x_BLD.detach())

    @torch.no_grad()
    def decode(self, payload: Tensor, tokens_BL: Tensor) -> Tensor:
        return self.formats.activations.unpack(payload)

    @torch.no_grad()
    def encode_gradient(self, g_BLD: Tensor) -> Tensor:
        return self.formats.gradients.pack(g_BLD.detach())

    @torch.no_grad()
    def decode_gradient(self, payload: Tensor) -> Tensor:
        return self.formats.gradients.unpack(payload)


@dataclass(frozen=True, slots=True)
class DirectBoundary:
    """No operator and no rounding: the stages of a datacenter replica."""

    def encode(self, x_BLD: Tensor, tokens_BL: Tensor) -> Tensor:
        return x_BLD.detach()

    def decode(self, payload: Tensor, tokens_BL: Tensor) -> Tensor:
        return payload.detach()

    def encode_gradient(self, g_BLD: Tensor) -> Tensor:
        return g_BLD.detach()

    def decode_gradient(self, payload: Tensor) -> Tensor:
        return payload.detach()


@dataclass(frozen=True, slots=True, eq=False)
class CompiledBoundary:
    """A boundary each of whose operations torch has compiled into one piece, for devices that wait for orders. A number
    at the edge of a cell may be rounded the other way. All boundaries of one kind and shape share the pieces."""

    boundary: Boundary

    def encode(self, x_BLD: Tensor, tokens_BL: Tensor) -> Tensor:
        return _compiled("encode")(self.boundary, x_BLD, tokens_BL)

    def decode(self, payload: Tensor, tokens_BL: Tensor) -> Tensor:
        return _compiled("decode")(self.boundary, payload, tokens_BL)

    def encode_gradient(self, g_BLD: Tensor) -> Tensor:
        return _compiled("encode_gradient")(self.boundary, g_BLD)

    def decode_gradient(self, payload: Tensor) -> Tensor:
        return _compiled("decode_gradient")(self.boundary, payload)


@functools.cache
def _compiled(operation: str) -> Callable[..., Tensor]:
    """An operation of boundaries as torch compiles it, at its first use, for each kind of boundary and shape."""

    def run(boundary: Boundary, *tensors: Tensor) -> Tensor:
        result: Tensor = getattr(boundary, operation)(*tensors)
        return result

    compiled: Callable[..., Tensor] = torch.compile(run, dynamic=False)
    return compiled


def nested(basis_dd: Tensor, k: int) -> Tensor:
    """U [d, k]: the first k columns of the run's basis, so that a smaller k is a subspace of a larger.

    Raises:
        ValueError: the basis has no k columns.
    """
    if not 1 <= k <= basis_dd.shape[1]:
        raise ValueError(f"k = {k} is not in 1 … {basis_dd.shape[1]}")
    return basis_dd[:, :k].contiguous()
