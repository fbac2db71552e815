"""The outer step: SparseLoCo in exact integers (HET, equations 1 and 2; design, section 3).

    Δ  = θ_start − θ_end
    e  ← β e + Δ
    Δ̂  = Q(TopK(e)),   e ← e − Δ̂
    θ  ← θ_start − F(S),   F(S) = η · mean over S of Δ̂

Everything is an integer in units of 2⁻²⁶; β and η are in units of 2⁻¹⁶. Sums of integers have no order, so
F is a function of the set S of contributions, and equal sets give equal bits.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from peer.optim.grid import divide_half_even, to_int32, to_units
from peer.optim.topk import top_k
from protocol.chunks import chunk_grid
from protocol.contribution import Contribution, SparseTensor, compose
from protocol.identity import ContributionName, Part, ReplicaId, RunId
from protocol.layout import Layout, part_layout
from protocol.manifest import Manifest

FACTOR_ONE = 2**16
"""β and η are fixed-point numbers: 2⁻¹⁶ is finer than anyone tunes them."""


@dataclass(slots=True)
class OuterState:
    """What a peer keeps of one part across rounds: θ, and its own error feedback where it contributes."""

    manifest: Manifest
    part: Part
    grid: dict[str, Tensor]
    error_feedback: dict[str, Tensor]

    @staticmethod
    def begin(manifest: Manifest, part: Part, genesis: Mapping[str, Tensor], author: bool) -> "OuterState":
        """The state before round 1: the genesis weights, and an empty error feedback."""
        grid = {name: genesis[name].to(torch.int32) for name in part_layout(manifest, part)}
        empty = {name: torch.zeros_like(tensor) for name, tensor in grid.items()} if author else {}
        return OuterState(manifest, part, grid, empty)

    def contribute(
        self, run: RunId, round: int, replica: ReplicaId, steps: int, moved: Mapping[str, Tensor]
    ) -> tuple[bytes, Contribution]:
        """Turn Δ (float32) into this replica's contribution, and take it out of the error feedback.

        Raises:
            DivergedError: the replica diverged.
        """
        outer = self.manifest.outer
        picked: dict[str, SparseTensor] = {}
        for name, delta in moved.items():
            self.error_feedback[name] = decay_and_add(self.error_feedback[name], delta, outer.beta)
            grid = chunk_grid(tuple(delta.shape), outer.chunk_side, outer.top_k)
            picked[name] = top_k(self.error_feedback[name], grid)
        blob, sent = compose(ContributionName(self.part, round, replica), run, steps, picked, self.manifest)
        for name, sparse in sent.tensors.items():
            subtract(self.error_feedback[name], sparse, self.manifest)
        return blob, sent

    def apply(self, contributions: Sequence[Contribution]) -> None:
        """θ ← θ − F(S) for the whole set S of a round.

        Raises:
            DivergedError: a weight would leave the grid.
        """
        term = outer_term(contributions, part_layout(self.manifest, self.part), self.manifest)
        for name, tensor in self.grid.items():
            self.grid[name] = to_int32(tensor.to(torch.int64) - term[name], name)


def decay_and_add(error: Tensor, delta: Tensor, beta: float) -> Tensor:
    """e ← β e + Δ, with β e rounded half to even; int32."""
    decayed = divide_half_even(error.to(torch.int64) * round(beta * FACTOR_ONE), FACTOR_ONE)
    return to_int32(decayed + to_units(delta), "the error feedback")


def subtract(error: Tensor, sparse: SparseTensor, manifest: Manifest) -> None:
    """e ← e − Δ̂ in place: exactly the integers that were sent."""
    positions, values = _positions(sparse, tuple(error.shape), manifest)
    error.view(-1)[positions] -= values.to(torch.int32)


def outer_term(contributions: Sequence[Contribution], layout: Layout, manifest: Manifest) -> dict[str, Tensor]:
    """F(S): η · Σ Δ̂ / M, or over the senders of each coordinate, rounded half to even; int64.

    `aggregate = "all"` is the paper's mean (equation 2); `"senders"` is what the field's code does.
    """
    eta = round(manifest.outer.learning_rate * FACTOR_ONE)
    term: dict[str, Tensor] = {}
    for name, shape in layout.items():
        total = torch.zeros(shape, dtype=torch.int64).view(-1)
        senders = torch.zeros_like(total)
        for contribution in contributions:
            positions, values = _positions(contribution.tensors[name], shape, manifest)
            total.index_add_(0, positions, values)
            senders[positions] += 1
        count = senders.clamp_(min=1) if manifest.outer.aggregate == "senders" else max(1, len(contributions))
        term[name] = divide_half_even(total * eta, count * FACTOR_ONE).view(shape)
    return term


def _positions(sparse: SparseTensor, shape: tuple[int, ...], manifest: Manifest) -> tuple[Tensor, Tensor]:
    """Row-major positions in the tensor, and the values there; both int64 [kept], positions distinct."""
    grid = chunk_grid(shape, manifest.outer.chunk_side, manifest.outer.top_k)
    return torch.from_numpy(grid.positions(sparse.offsets)), torch.from_numpy(sparse.values)
