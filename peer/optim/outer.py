"""The outer optimizer: SparseLoCo in exact integers (HET, equations 1 and 2; docs/design/outer-state.md).

    Δ  = θ_start − θ_end
    e  ← β e + Δ
    Δ̂  = Q(TopK(e)),   e ← e − Δ̂
    θ  ← θ_start − F(S),   F(S) = η · Σ w Δ̂ / Σ w over S

The weights w are 1, as in the paper, or the numbers of inner steps behind the contributions (`outer.weights`).
Everything is an integer in units of 2⁻²⁶; β and η are in units of 2⁻¹⁶. Sums of integers have no order, so F is a
function of the set S of contributions, and equal sets give equal bits. With `outer.clip`, the Δ̂ in F are what
`peer.optim.clipping` leaves of them, which is a function of the set as well.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from peer.optim import kernels
from peer.optim.clipping import clip_to_medians
from peer.optim.grid import FAR, OUT_OF_RANGE
from protocol.codec.chunks import ChunkGrid, chunk_grid
from protocol.codec.contribution import Contribution, SparseTensor, compose
from protocol.errors import DivergedError
from protocol.identity import ContributionName, Part, PeerId, RunId
from protocol.layout import Layout, part_layout
from protocol.manifest import Manifest
from protocol.manifest_tables import Outer

FACTOR_ONE = 2**16
"""β and η are fixed-point numbers: 2⁻¹⁶ is finer than anyone tunes them."""

Grid = dict[str, Tensor]
"""Tensor name → int32 values in units of 2⁻²⁶."""


Change = tuple[kernels.Positions, kernels.Terms]
"""Distinct row-major places of a tensor, and what is subtracted there."""


@dataclass(slots=True)
class OuterState:
    """The state of one part that a peer keeps across rounds: 8 bytes a value where it contributes, 4 where it only
    follows.

    `grid` is θ now: F(S) of each closed and of each open round is taken off, and changes with S while the round is
    open. A tensor of it is never written to: where θ changes, another tensor takes its place. So whoever has taken the
    tensors of an earlier θ keeps that θ. `error_feedback` is the peer's own, where it contributes.
    """

    manifest: Manifest
    part: Part
    grid: Grid
    error_feedback: Grid

    @staticmethod
    def begin(manifest: Manifest, part: Part, genesis: Mapping[str, Tensor], author: bool) -> "OuterState":
        """The state before round 1: the genesis weights, and an empty error feedback."""
        grid = {name: genesis[name].to(torch.int32, copy=True) for name in part_layout(manifest, part)}
        empty = {name: torch.zeros_like(tensor) for name, tensor in grid.items()} if author else {}
        return OuterState(manifest, part, grid, empty)

    def contribute(
        self, run: RunId, round: int, author: PeerId, steps: int, moved: Mapping[str, Tensor], slot: int = 0
    ) -> tuple[bytes, Contribution]:
        """Turn Δ (float32) into this peer's contribution, and take it out of the error feedback. `slot` is its place.

        Raises:
            DivergedError: the replica diverged.
        """
        self.absorb(moved)
        picked = self.pick()
        blob, sent = compose(ContributionName(self.part, round, author), run, steps, picked, self.manifest, slot)
        self.take_out(sent)
        return blob, sent

    def pick(self) -> dict[str, SparseTensor]:
        """TopK(e)."""
        outer = self.manifest.outer
        return {
            name: top_k(error, chunk_grid(tuple(error.shape), outer.chunk_side, outer.top_k))
            for name, error in self.error_feedback.items()
        }

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
            DivergedError: a weight would leave the grid. Nothing is changed then.
        """
        for name, change in _changes(self.grid, before, after, self.manifest).items():
            self.grid[name] = _less(self.grid[name], change)

    def adopt(self, grid: Mapping[str, Tensor]) -> None:
        """Take the place of θ by the state of others. Its tensors are this peer's from now on."""
        self.grid = dict(grid)

    def with_own(self, own: Contribution) -> Grid:
        """θ − F({own}): where a replica starts when of a round's set nothing but its own contribution is there yet.

        Raises:
            DivergedError: a weight would leave the grid.
        """
        changes = _changes(self.grid, [], [own], self.manifest)
        return {**self.grid, **{name: _less(self.grid[name], change) for name, change in changes.items()}}

    def closed(self, open: Iterable[Sequence[Contribution]]) -> Grid:
        """θ + Σ F(S) over the open rounds: θ after the closed ones alone. `open` are the sets that are in `grid`, those
        of the last round first, so that what is computed on the way is θ after each of the rounds.

        Raises:
            DivergedError: a weight would leave the grid.
        """
        grid, copied = dict(self.grid), set[str]()
        for contributions in open:
            for name, change in _changes(grid, contributions, [], self.manifest).items():
                if name in copied:
                    kernels.take_out(grid[name].view(-1).numpy(), *change)
                else:
                    grid[name] = _less(grid[name], change)
                    copied.add(name)
        return grid


def decay_and_add(error: Tensor, delta: Tensor, beta: float) -> Tensor:
    """e ← β e + Δ, with β e rounded half to even: int32, from a float32 Δ on the CPU.

    Raises:
        DivergedError: Δ or the sum is outside ±32, or not a number.
    """
    factor = round(beta * FACTOR_ONE)
    error, delta = error.contiguous(), delta.detach().contiguous()
    fresh = torch.empty_like(error)
    arrays = error.view(-1).numpy(), delta.view(-1).numpy(), fresh.view(-1).numpy()
    near, narrow = kernels.decay_and_add_kernel(*arrays, factor)
    if not near:
        raise DivergedError(FAR)
    if not narrow:
        raise DivergedError(f"the error feedback {OUT_OF_RANGE}")
    return fresh


def subtract(error: Tensor, sparse: SparseTensor, manifest: Manifest) -> None:
    """e ← e − Δ̂ in place, on the CPU: exactly the integers that were sent."""
    grid = chunk_grid(tuple(error.shape), manifest.outer.chunk_side, manifest.outer.top_k)
    places = kernels.flat_positions(sparse.offsets, grid)
    kernels.take_out(error.view(-1).numpy(), places, np.asarray(sparse.values, np.int64))


def outer_term(contributions: Sequence[Contribution], layout: Layout, manifest: Manifest) -> dict[str, Tensor]:
    """F(S): η · Σ w Δ̂ / Σ w, over all or over the senders of each coordinate, rounded half to even; int64.

    `aggregate = "all"` is the paper's mean (equation 2); `"senders"` is what the field's code does. `clip` changes
    values before they are summed, never who sent them: what was clipped to zero has a sender still.
    """
    term: dict[str, Tensor] = {}
    for name, shape in layout.items():
        places, terms = _sparse_term(contributions, name, shape, manifest)
        term[name] = torch.zeros(shape, dtype=torch.int64)
        term[name].view(-1).numpy()[places] = terms
    return term


def eta(outer: Outer, round_: int) -> int:
    """η of a round's contributions, in units of 2⁻¹⁶: from that of the first round it goes linearly to that of the
    last, rounded down; both ends are rounded half to even."""
    first = round(outer.learning_rate * FACTOR_ONE)
    last = round(outer.learning_rate * outer.final_learning_rate * FACTOR_ONE)
    return first + (last - first) * (round_ - 1) // max(1, outer.rounds - 1)


def weights(contributions: Sequence[Contribution], outer: Outer, eta: int) -> list[int]:
    """The weight of each contribution in F(S), whose η this is in units of 2⁻¹⁶: 1, or the number of inner steps of its
    author, but at least 1 (error feedback alone may be in it).

    Sums have to stay exact in 64 bits. Where the numbers of steps are too large for that, all are halved, rounded down,
    as often as it takes.
    """
    if outer.weights == "equal":
        return [1] * len(contributions)
    counted = [max(1, step_count.steps) for step_count in contributions]
    while sum(counted) * eta > kernels.LARGEST_FACTOR and max(counted) > 1:
        counted = [max(1, step_count // 2) for step_count in counted]
    return counted


def _sparse_term(
    contributions: Sequence[Contribution], name: str, shape: tuple[int, ...], manifest: Manifest
) -> Change:
    """F(S) of one tensor where anybody sent something: distinct row-major places, and the terms there."""
    if not contributions:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    outer = manifest.outer
    grid = chunk_grid(shape, outer.chunk_side, outer.top_k)
    sparse = [contribution.tensors[name] for contribution in contributions]
    values = np.array([sent.values for sent in sparse], np.int32)
    if outer.clip == "median":
        clip_to_medians(values, grid.k)
    rate = eta(outer, contributions[0].name.round)
    counted = weights(contributions, outer, rate)
    return kernels.outer_term_kernel(
        [sent.offsets for sent in sparse], values, grid, rate, counted, outer.aggregate == "senders"
    )


def _changes(
    grid: Grid,
    before: Sequence[Contribution],
    after: Sequence[Contribution],
    manifest: Manifest,
) -> dict[str, Change]:
    """F(after) − F(before), of the tensors in which anybody sent something. Other coordinates are not visited.

    Raises:
        DivergedError: a weight of θ + F(before) − F(after) would leave the grid.
    """
    changes: dict[str, Change] = {}
    for name, tensor in grid.items():
        removed, added = (
            _sparse_term(contributions, name, tuple(tensor.shape), manifest) for contributions in (before, after)
        )
        places, terms = _difference(added, removed)
        if not kernels.fits(tensor.view(-1).numpy(), places, terms):
            raise DivergedError(f"{name} {OUT_OF_RANGE}")
        if len(places):
            changes[name] = places, terms
    return changes


def _difference(one: Change, other: Change) -> Change:
    """One term less the other."""
    if not (len(one[0]) and len(other[0])):
        return one if len(one[0]) else (other[0], -other[1])
    places, at = np.unique(np.concatenate((one[0], other[0])), return_inverse=True)
    terms = np.zeros(len(places), np.int64)
    np.add.at(terms, at, np.concatenate((one[1], -other[1])))
    return places, terms


def _less(tensor: Tensor, change: Change) -> Tensor:
    """A new tensor with the change subtracted."""
    fresh = tensor.clone()
    kernels.take_out(fresh.view(-1).numpy(), *change)
    return fresh


def top_k(values: Tensor, grid: ChunkGrid) -> SparseTensor:
    """TopK(e): from int32 `values` of the grid's shape on the CPU, each chunk's k largest by magnitude (SparseLoCo).

    Ties go to the lowest offset. The order is canonical: by chunk, then by rising offset.
    """
    return SparseTensor(*kernels.largest(values.contiguous().view(-1).numpy(), grid))
