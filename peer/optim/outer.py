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
from protocol.identity import ContributionName, Part, PeerId, RunId
from protocol.layout import Layout, part_layout
from protocol.manifest import Manifest

FACTOR_ONE = 2**16
"""β and η are fixed-point numbers: 2⁻¹⁶ is finer than anyone tunes them."""


Grid = dict[str, Tensor]
"""Tensor name → int32 values in units of 2⁻²⁶."""


@dataclass(slots=True)
class OuterState:
    """What a peer keeps of one part across rounds.

    `folded` is θ after the closed rounds; `grid` is θ now: F(S) of each open round is taken off as well, and
    changes with S. `error_feedback` is the peer's own, where it contributes.
    """

    manifest: Manifest
    part: Part
    folded: Grid
    grid: Grid
    error_feedback: Grid

    @staticmethod
    def begin(manifest: Manifest, part: Part, genesis: Mapping[str, Tensor], author: bool) -> "OuterState":
        """The state before round 1: the genesis weights, and an empty error feedback."""
        grid = {name: genesis[name].to(torch.int32) for name in part_layout(manifest, part)}
        empty = {name: torch.zeros_like(tensor) for name, tensor in grid.items()} if author else {}
        return OuterState(manifest, part, grid, dict(grid), empty)

    def contribute(
        self, run: RunId, round: int, author: PeerId, steps: int, moved: Mapping[str, Tensor]
    ) -> tuple[bytes, Contribution]:
        """Turn Δ (float32) into this peer's contribution, and take it out of the error feedback.

        Raises:
            DivergedError: the replica diverged.
        """
        outer = self.manifest.outer
        self.absorb(moved)
        picked: dict[str, SparseTensor] = {}
        for name, error in self.error_feedback.items():
            grid = chunk_grid(tuple(error.shape), outer.chunk_side, outer.top_k)
            picked[name] = top_k(error, grid)
        blob, sent = compose(ContributionName(self.part, round, author), run, steps, picked, self.manifest)
        self.take_out(sent)
        return blob, sent

    def absorb(self, moved: Mapping[str, Tensor]) -> None:
        """e ← β e + Δ, without sending anything: the round has closed, and a later contribution carries it.

        Raises:
            DivergedError: the replica diverged.
        """
        for name, delta in moved.items():
            self.error_feedback[name] = decay_and_add(self.error_feedback[name], delta, self.manifest.outer.beta)

    def take_out(self, sent: Contribution) -> None:
        """e ← e − Δ̂: it is on its way."""
        for name, sparse in sent.tensors.items():
            subtract(self.error_feedback[name], sparse, self.manifest)

    def put_back(self, sent: Contribution) -> None:
        """e ← e + Δ̂: it counts nowhere after all."""
        for name, sparse in sent.tensors.items():
            subtract(self.error_feedback[name], SparseTensor(sparse.offsets, -sparse.values), self.manifest)

    def replace(self, before: Sequence[Contribution], after: Sequence[Contribution]) -> None:
        """A round's set has changed: θ ← θ + F(before) − F(after).

        Raises:
            DivergedError: a weight would leave the grid.
        """
        added = self._term(after)
        removed = self._term(before) if before else {}
        for name, tensor in self.grid.items():
            change = added[name] - removed[name] if removed else added[name]
            self.grid[name] = to_int32(tensor.to(torch.int64) - change, name)

    def fold(self, contributions: Sequence[Contribution]) -> None:
        """Close a round whose set is in `grid` already.

        Raises:
            DivergedError: a weight would leave the grid.
        """
        term = self._term(contributions)
        for name, tensor in self.folded.items():
            self.folded[name] = to_int32(tensor.to(torch.int64) - term[name], name)

    def _term(self, contributions: Sequence[Contribution]) -> dict[str, Tensor]:
        return outer_term(contributions, part_layout(self.manifest, self.part), self.manifest)


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
