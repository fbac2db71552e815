"""The largest honest contribution: what learning rate, optimizer and error feedback allow, and no more."""

import math
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from peer.optim.inner import learning_rate
from peer.optim.muon import NO_SECOND_MOMENT, step_scale
from protocol.codec.contribution import Contribution
from protocol.errors import FormatError
from protocol.layout import EMBEDDING_TENSOR, Shape, is_layer_matrix, part_layout
from protocol.manifest import Manifest
from protocol.tensor_formats import UNITS_PER_ONE

ADAM_STEP = 2.0
"""|m̂ / √v̂| is at most 1 but for the first steps with these betas (Kingma and Ba, section 2.1); twice that is ample."""

MUON_STEP = 1.3
"""No entry of a matrix is larger than its largest singular value, and Muon's iteration leaves none above 1.21; rounding
may add a little (`peer/optim/muon.py`). That is before a step is scaled by the matrix's shape."""

MOMENTUM_SLACK = 1.001
"""Muon's momentum is a mean of gradients that were clipped: no longer than `inner.clip`, but for rounding."""

TINY = 1e-20
"""The v̂ that underflows to nothing: m̂ may be as small as this, and ε = 10⁻⁸ makes a step of it that is no step."""

LARGEST_WEIGHT = 32.0
"""The grid's range: weight decay moves a weight by at most its share of this."""


def largest_step(manifest: Manifest, tensor: str, shape: Shape) -> float:
    """The largest movement of a tensor's entry in one inner step at rate 1, without weight decay: 2 by AdamW; by Muon,
    1.3 · 0.2 √n of a matrix whose longer side is n. A compressed group's token embedding moves by Z Uᵀ, whose entries
    are at most √k of Z's."""
    if manifest.inner.optimizer == "muon" and is_layer_matrix(tensor, shape):
        return MUON_STEP * step_scale(shape)
    return ADAM_STEP * _spread(manifest, tensor)


def _spread(manifest: Manifest, tensor: str) -> float:
    """The ratio of the largest entry of Z Uᵀ to that of Z; 1 for what is no token embedding."""
    factored = tensor == EMBEDDING_TENSOR and manifest.replicas.factored
    return math.sqrt(manifest.k) if factored else 1.0


def largest_value(manifest: Manifest, tensor: str, shape: Shape, round: int) -> int:
    """The largest magnitude, in units of 2⁻²⁶, of a tensor in an honest contribution of a round.

    One round of n steps, H or `inner.most_steps`, moves a weight by at most n · α · (s + λ · 32), α the highest rate so
    far and s the largest step; the error feedback holds at most min(t, 1 / (1 − β)) of it, and as much again that was
    put back.
    """
    inner, beta = manifest.inner, manifest.outer.beta
    steps = round * inner.steps
    rate = learning_rate(manifest, min(steps, max(1, inner.warmup)) - 1)
    decay = inner.weight_decay * LARGEST_WEIGHT * _spread(manifest, tensor)
    moved = inner.steps_at_most * rate * (largest_step(manifest, tensor, shape) + decay)
    rounds = float(round) if beta == 1 else min(round, 1 / (1 - beta))
    return min(2**31 - 1, math.ceil(2 * moved * rounds * UNITS_PER_ONE))


def check_magnitudes(contribution: Contribution, manifest: Manifest) -> None:
    """Raises FormatError if a value is larger than any honest one."""
    name = contribution.name
    layout = part_layout(manifest, name.part)
    for tensor, sparse in contribution.tensors.items():
        bound = largest_value(manifest, tensor, layout[tensor], name.round)
        largest = int(np.abs(sparse.values).max(initial=0))
        if largest > bound:
            raise FormatError(
                f"{name}: {tensor} moves by {largest / UNITS_PER_ONE:.3g}, "
                f"more than learning rate and error feedback allow ({bound / UNITS_PER_ONE:.3g})"
            )


def check_moments(tensors: Mapping[str, Tensor], shapes: Mapping[str, Shape], manifest: Manifest) -> None:
    """Check the optimizer's state that another peer made: `shapes` has every tensor of it, by `<parameter>.<name>`.

    Raises:
        FormatError: it is not what the optimizer can have come to: AdamW to |m̂ / √v̂| beyond `ADAM_STEP`, or Muon to a
            momentum longer than `inner.clip`.
    """
    if tensors.keys() != shapes.keys():
        raise FormatError("an optimizer's state of other parameters than this stage's")
    for key, shape in shapes.items():
        if tensors[key].dtype != torch.float32 or tuple(tensors[key].shape) != shape:
            raise FormatError(f"the optimizer's {key} is not float32 of shape {shape}")
    fast, slow = manifest.inner.betas
    total = manifest.outer.rounds * manifest.inner.steps_at_most
    for parameter in {key.rpartition(".")[0] for key in shapes}:
        step = tensors[f"{parameter}.step"].item()
        if not (1 <= step <= total and step == int(step)):
            raise FormatError(f"the optimizer's count {step} is no number of steps of this run")
        if shapes[f"{parameter}.exp_avg_sq"] == NO_SECOND_MOMENT:
            if not tensors[f"{parameter}.exp_avg"].double().norm() <= MOMENTUM_SLACK * manifest.inner.clip:
                raise FormatError("Muon's momentum is such as no clipped gradients make")
            continue
        mean = tensors[f"{parameter}.exp_avg"].double() / (1 - fast**step)
        square = tensors[f"{parameter}.exp_avg_sq"].double() / (1 - slow**step)
        honest = bool((square >= 0).all()) and bool((mean.abs() <= ADAM_STEP * square.sqrt() + TINY).all())
        if not honest or not bool(square.isfinite().all()):
            raise FormatError("AdamW's moments are such as no gradients make")
