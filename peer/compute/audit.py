"""The effect of a contribution on the held-out loss, and whether two contributions are copies of each other.

A contribution is *silenced*, not removed: it stays in its set S with all values zero. F divides by |S|, so without it
everybody else's would count for more, and whoever sends less than the average would be blamed for that.

    gain of an author = loss at (θ + F(S) − F(S with the author's values zero)) − loss at θ

in nats per token: positive if what it sent helps.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from peer.compute.evaluation import Evaluates
from peer.compute.trainer import GridView
from peer.optim.outer import outer_term
from protocol.codec.chunks import chunk_grid
from protocol.codec.contribution import Contribution, SparseTensor
from protocol.identity import Part, PeerId
from protocol.layout import part_layout
from protocol.manifest import Manifest
from protocol.tensor_formats import INT32_MAX

WORST_NATS = 100.0
"""A loss above this, or that is no number, counts as this: choosing tokens blindly costs log |V|, under 13. So every
gain is finite, also where a contribution destroys the model."""

Sets = Mapping[Part, Sequence[Contribution]]
"""S of one round, by part: what is in θ."""


@dataclass(frozen=True, slots=True)
class Overlap:
    """The overlap of two authors' contributions: the share of values at the same places; `signs`: and of the same sign;
    `chance`: at the same places if both chose theirs at random. Shares, 0 to 1."""

    places: float
    signs: float
    chance: float

    @property
    def beyond_chance(self) -> float:
        """0 for places chosen at random, 1 for the same; 0 too where everything is sent, and places say nothing."""
        return max(0.0, (self.places - self.chance) / (1 - self.chance)) if self.chance < 1 else 0.0


def silence(contribution: Contribution) -> Contribution:
    """The same contribution, with all values zero."""
    silent = {
        name: SparseTensor(sparse.offsets, np.zeros_like(sparse.values))
        for name, sparse in contribution.tensors.items()
    }
    return replace(contribution, tensors=silent)


def silenced(grid: GridView, contributions: Sequence[Contribution], author: PeerId, manifest: Manifest) -> GridView:
    """θ of a part as it would be had `author` sent zeros in this round: int32, a new grid. `grid` is θ after −F(S), S
    being the `contributions`.

    A weight that would leave the grid stays at its edge: this is for measuring only, and two authors that push a weight
    in opposite directions must not be able to stop an audit.
    """
    kept = [
        silence(contribution) if contribution.name.author == author else contribution for contribution in contributions
    ]
    return exchanged(grid, contributions, kept, manifest)


def exchanged(
    grid: GridView, before: Sequence[Contribution], after: Sequence[Contribution], manifest: Manifest
) -> GridView:
    """θ + F(before) − F(after): θ of a part, `grid`, with one set of contributions replaced by another. int32, a new
    grid. `before` may be empty."""
    layout = part_layout(manifest, after[0].name.part)
    old_term = outer_term(before, layout, manifest) if before else dict.fromkeys(layout, 0)
    new_term = outer_term(after, layout, manifest)
    return {
        name: (tensor.to(torch.int64) + old_term[name] - new_term[name]).clamp(-INT32_MAX, INT32_MAX).to(torch.int32)
        for name, tensor in grid.items()
    }


def held_out_loss(evaluator: Evaluates, grids: Mapping[Part, GridView]) -> float:
    """The mean of the loss through the boundaries and the plain one: a run has replicas of both kinds, and what helps
    one kind's loss only is still work."""
    loss = sum(evaluator.evaluate(grids)) / 2
    return loss if math.isfinite(loss) and loss < WORST_NATS else WORST_NATS


def gain(evaluator: Evaluates, grids: Mapping[Part, GridView], sets: Sets, author: PeerId, loss: float) -> float:
    """Return what an author's contributions to the parts in `sets` gain together, in nats per token. `loss` is that at
    θ."""
    without = {
        part: silenced(grids[part], contributions, author, evaluator.manifest) for part, contributions in sets.items()
    }
    return held_out_loss(evaluator, {**grids, **without}) - loss


def trial_gain(
    evaluator: Evaluates, grids: Mapping[Part, GridView], sets: Sets, tried: Mapping[Part, Contribution]
) -> float:
    """Return what contributions that count nowhere would gain, each in the set of its part, which may be empty."""
    (author,) = {contribution.name.author for contribution in tried.values()}
    wider = {part: [*sets[part], contribution] for part, contribution in tried.items()}
    manifest = evaluator.manifest
    with_them = {part: exchanged(grids[part], sets[part], wider[part], manifest) for part in tried}
    would_be = {**grids, **with_them}
    return gain(evaluator, would_be, wider, author, held_out_loss(evaluator, would_be))


def overlap(one: Contribution, other: Contribution, manifest: Manifest) -> Overlap:
    """Return the overlap of two contributions to one part. Both send equally many values, so it is the same from either
    side.

    Takes one pass over both and a byte for each weight of a tensor.
    """
    sent = places = signs = 0
    chance = 0.0
    for name, shape in part_layout(manifest, one.name.part).items():
        grid = chunk_grid(shape, manifest.outer.chunk_side, manifest.outer.top_k)
        first, second = one.tensors[name], other.tensors[name]
        marks = np.zeros(grid.elements, np.int8)
        marks[grid.positions(first.offsets)] = 2 + np.sign(first.values)
        met = marks[grid.positions(second.offsets)]
        sent += grid.kept
        chance += float((grid.counts**2 / grid.sizes).sum())
        places += int(np.count_nonzero(met))
        signs += int(np.count_nonzero(met == 2 + np.sign(second.values)))
    return Overlap(places / sent, signs / sent, chance / sent)
