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
"""The number 1 as β and η are stored: fixed-point numbers in units of 2⁻¹⁶, finer than anyone tunes them."""

Grid = dict[str, Tensor]
"""Tensor name → int32 values in units of 2⁻²⁶."""


Change = tuple[kernels.Positions, kernels.Terms]
"""Distinct row-major positions of a tensor, and what is subtracted there, in units of 2⁻²⁶."""


@dataclass(slots=True)
class OuterState:
    """The state of one part that a peer keeps across rounds: 8 bytes a value where it contributes, 4 where it only
    follows.

    `grid` is θ now: F(S) of each closed and of each open round is subtracted, and changes with S while the round is
    open. A tensor of it is never written to: where θ changes, a new tensor replaces it. So whoever has taken the
    tensors of an earlier θ keeps that θ. `error_feedback` is e, the peer's own; empty where it only follows.
    """

    manifest: Manifest
    part: Part
    grid: Grid
    error_feedback: Grid

    @staticmethod
    def begin(manifest: Manifest, part: Part, genesis: Mapping[str, Tensor], author: bool) -> "OuterState":
        """The state before round 1: the genesis weights, and, for an `author` of contributions, an error feedback of
        zeros."""
        grid = {name: genesis[name].to(torch.int32, copy=True) for name in part_layout(manifest, part)}
        empty = {name: torch.zeros_like(tensor) for name, tensor in grid.items()} if author else {}
        return OuterState(manifest, part, grid, empty)

    def contribute(
        self, run: RunId, round: int, author: PeerId, steps: int, moved: Mapping[str, Tensor], slot: int = 0
    ) -> tuple[bytes, Contribution]:
        """Turn Δ (`moved`, float32) into this peer's contribution, as bytes and decoded, and take it out of the error
        feedback. `steps` are the inner steps behind it; `slot` is the author's place in the run.

        Raises:
            DivergedError: Δ or the error feedback is outside ±32, or not a number.
        """
        self.absorb(moved)
        picked = self.pick()
        blob, sent = compose(ContributionName(self.part, round, author), run, steps, picked, self.manifest, slot)
        self.take_out(sent)
        return blob, sent

    def pick(self) -> dict[str, SparseTensor]:
        """TopK(e): the largest values of each chunk of the error feedback, which keeps them."""
        outer = self.manifest.outer
        return {
            name: top_k(error, chunk_grid(tuple(error.shape), outer.chunk_side, outer.top_k))
            for name, error in self.error_feedback.items()
        }

    def absorb(self, moved: Mapping[str, Tensor]) -> None:
        """e ← β e + Δ. It sends nothing: called alone, after the round has closed, it leaves Δ to later contributions.

        Raises:
            DivergedError: Δ or the error feedback is outside ±32, or not a number.
        """
        for name, delta in moved.items():
            self.error_feedback[name] = decay_and_add(self.error_feedback[name], delta, self.manifest.outer.beta)

    def take_out(self, sent: Contribution) -> None:
        """e ← e − Δ̂: it is sent, and so no longer owed."""
        for name, sparse in sent.tensors.items():
            subtract(self.error_feedback[name], sparse, self.manifest)

    def keep_error_feedback(self, error_feedback: Grid) -> None:
        """Go on with another error feedback: what a handover has added, or left."""
        self.error_feedback = error_feedback

    def put_back(self, sent: Contribution) -> None:
        """e ← e + Δ̂: it counts in no round after all, and is owed again."""
        for name, sparse in sent.tensors.items():
            subtract(self.error_feedback[name], SparseTensor(sparse.offsets, -sparse.values), self.manifest)

    def replace(self, before: Sequence[Contribution], after: Sequence[Contribution]) -> None:
        """Follow a change of a round's set: θ ← θ + F(before) − F(after).

        Raises:
            DivergedError: a weight would leave the grid. Nothing is changed then.
        """
        for name, change in _changes(self.grid, before, after, self.manifest).items():
            self.grid[name] = _less(self.grid[name], change)

    def adopt(self, grid: Mapping[str, Tensor]) -> None:
        """Replace θ by the state of others, whose tensors belong to this object from now on."""
        self.grid = dict(grid)

    def with_own(self, own: Contribution) -> Grid:
        """θ − F({own}): the start of a replica that goes on before any other contribution to the round has arrived.

        Raises:
            DivergedError: a weight would leave the grid.
        """
        changes = _changes(self.grid, [], [own], self.manifest)
        return {**self.grid, **{name: _less(self.grid[name], change) for name, change in changes.items()}}

    def closed(self, open: Iterable[Sequence[Contribution]]) -> Grid:
        """θ + Σ F(S) over the open rounds: θ after the closed ones alone. `open` are the sets that are in `grid`, the
        last round's first, so that each intermediate result is θ after one of the rounds, and inside ±32.

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
    delta_fits, sums_fit = kernels.decay_and_add_kernel(*arrays, factor)
    if not delta_fits:
        raise DivergedError(FAR)
    if not sums_fit:
        raise DivergedError(f"the error feedback {OUT_OF_RANGE}")
    return fresh


def subtract(error: Tensor, sparse: SparseTensor, manifest: Manifest) -> None:
    """e ← e − Δ̂ in place, on the CPU: exactly the integers that were sent."""
    grid = chunk_grid(tuple(error.shape), manifest.outer.chunk_side, manifest.outer.top_k)
    positions = kernels.flat_positions(sparse.offsets, grid)
    kernels.take_out(error.view(-1).numpy(), positions, np.asarray(sparse.values, np.int64))


def outer_term(contributions: Sequence[Contribution], layout: Layout, manifest: Manifest) -> dict[str, Tensor]:
    """F(S): η · Σ w Δ̂ / Σ w, rounded half to even, as dense int64 tensors in units of 2⁻²⁶.

    With `aggregate = "all"`, Σ w is over all contributions: the paper's mean (equation 2). With `"senders"`, it is at
    each coordinate over those that sent something there, as in the field's code; a value that `clip` has made zero
    still counts as sent.
    """
    term: dict[str, Tensor] = {}
    for name, shape in layout.items():
        positions, terms = _sparse_term(contributions, name, shape, manifest)
        term[name] = torch.zeros(shape, dtype=torch.int64)
        term[name].view(-1).numpy()[positions] = terms
    return term


def eta(outer: Outer, round_: int) -> int:
    """η of round `round_`, in units of 2⁻¹⁶: linear from the first round's to the last round's, rounded down; these two
    are rounded half to even."""
    first = round(outer.learning_rate * FACTOR_ONE)
    last = round(outer.learning_rate * outer.final_learning_rate * FACTOR_ONE)
    return first + (last - first) * (round_ - 1) // max(1, outer.rounds - 1)


def weights(contributions: Sequence[Contribution], outer: Outer, eta: int) -> list[int]:
    """The weight of each contribution in F(S): 1, or the number of inner steps behind it, but at least 1, as one
    without any may carry error feedback.

    Sums have to stay exact in 64 bits. Where the weights times `eta` (in units of 2⁻¹⁶) are too large for that, all
    weights are halved, rounded down, as often as it takes.
    """
    if outer.weights == "equal":
        return [1] * len(contributions)
    step_counts = [max(1, contribution.steps) for contribution in contributions]
    while sum(step_counts) * eta > kernels.LARGEST_FACTOR and max(step_counts) > 1:
        step_counts = [max(1, count // 2) for count in step_counts]
    return step_counts


def _sparse_term(
    contributions: Sequence[Contribution], name: str, shape: tuple[int, ...], manifest: Manifest
) -> Change:
    """F(S) of one tensor where anybody sent something: distinct row-major positions, and the terms there."""
    if not contributions:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    outer = manifest.outer
    grid = chunk_grid(shape, outer.chunk_side, outer.top_k)
    sparse = [contribution.tensors[name] for contribution in contributions]
    values = np.array([sent.values for sent in sparse], np.int32)
    if outer.clip == "median":
        clip_to_medians(values, grid.k)
    rate = eta(outer, contributions[0].name.round)
    weight_of_each = weights(contributions, outer, rate)
    return kernels.outer_term_kernel(
        [sent.offsets for sent in sparse], values, grid, rate, weight_of_each, outer.aggregate == "senders"
    )


def _changes(
    grid: Grid,
    before: Sequence[Contribution],
    after: Sequence[Contribution],
    manifest: Manifest,
) -> dict[str, Change]:
    """F(after) − F(before) for each tensor in which anybody sent something, at the positions that were sent only.

    Raises:
        DivergedError: a weight of θ + F(before) − F(after) would leave the grid.
    """
    changes: dict[str, Change] = {}
    for name, tensor in grid.items():
        removed, added = (
            _sparse_term(contributions, name, tuple(tensor.shape), manifest) for contributions in (before, after)
        )
        positions, terms = _difference(added, removed)
        if not kernels.fits(tensor.view(-1).numpy(), positions, terms):
            raise DivergedError(f"{name} {OUT_OF_RANGE}")
        if len(positions):
            changes[name] = positions, terms
    return changes


def _difference(one: Change, other: Change) -> Change:
    """`one` − `other`, at the positions of either."""
    if not (len(one[0]) and len(other[0])):
        return one if len(one[0]) else (other[0], -other[1])
    positions, index = np.unique(np.concatenate((one[0], other[0])), return_inverse=True)
    terms = np.zeros(len(positions), np.int64)
    np.add.at(terms, index, np.concatenate((one[1], -other[1])))
    return positions, terms


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
