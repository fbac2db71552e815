"""Muon for the matrices of the layers, AdamW for the rest (Jordan et al., 2024; Liu et al., arXiv 2502.16982)."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from peer.optim.inner import AdamW
from protocol.layout import Shape, is_layer_matrix, writes_residual
from protocol.manifest import Manifest
from protocol.manifest_tables import Inner

MOMENTUM = 0.95

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""The coefficients of the quintic p(s) = a s + b s³ + c s⁵, as Jordan et al. publish them. It takes a singular value
from 0.002 to 1 into 0.68 to 1.21 in five steps, and does not converge to 1."""

ITERATIONS = 5

SMALLEST_NORM = 1e-7
"""A gradient with a smaller norm is not scaled up to a direction."""

NO_SECOND_MOMENT: Shape = (0,)
"""The shape of the second moment that Muon does not keep."""

LIKE_ADAMW = 0.2
"""The root mean square of AdamW's steps, by which Muon's are scaled, so that both share one learning rate (arXiv
2502.16982, equation 4)."""


def orthogonal(matrix: Tensor) -> Tensor:
    """The nearest matrix with orthonormal rows or columns, about: its singular vectors, with singular values near 1, by
    Newton and Schulz's iteration."""
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if tall else matrix
    x = x / x.norm().clamp(min=SMALLEST_NORM)
    a, b, c = COEFFICIENTS
    for _ in range(ITERATIONS):
        square = x @ x.T
        x = torch.addmm(x, torch.addmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return x.T if tall else x


def step_scale(shape: Shape) -> float:
    """The factor of an orthogonal matrix [rows, columns] by which its entries are as large as AdamW's steps."""
    return LIKE_ADAMW * math.sqrt(max(shape))


def state_shapes(inner: Inner, tensor: str, shape: Shape) -> dict[str, Shape]:
    """The state of the manifest's optimizer for a tensor of the model, name → shape. Muon has no second moment."""
    muon = inner.optimizer == "muon" and is_layer_matrix(tensor, shape)
    return {"step": (), "exp_avg": shape, "exp_avg_sq": NO_SECOND_MOMENT if muon else shape}


@dataclass(slots=True)
class Muon(AdamW):
    """Muon, with Nesterov's momentum, for the parameters in `hidden`; AdamW for everything else. Both decay alike.

    A matrix's momentum is kept as AdamW's first moment. It has no second moment: 4 bytes a value less.
    """

    hidden: frozenset[int] = frozenset()
    """Places in `parameters`."""
    within: Mapping[int, Tensor] = field(default_factory=dict)
    """Place in `parameters` → U [d, k], of a matrix [d, inputs] that moves in Col(U) alone."""

    @torch.no_grad()
    def update(self, factor: float, rate: float) -> None:
        self.begin()
        others = [i for i in range(len(self.parameters)) if i not in self.hidden]
        if others:
            rest = {name: [of[i] for i in others] for name, of in self.state.items()}
            AdamW([self.parameters[i] for i in others], self.inner, rest).update(factor, rate)
        self.update_hidden(factor, rate)

    @torch.no_grad()
    def update_hidden(self, factor: float, rate: float) -> None:
        """A step of the matrices in `hidden`."""
        for i in sorted(self.hidden):
            parameter, momentum = self.parameters[i], self.state["exp_avg"][i]
            gradient = parameter.grad
            assert gradient is not None
            gradient.mul_(factor)
            self.state["step"][i] += 1
            momentum.lerp_(gradient, 1 - MOMENTUM)
            step = self.step_of(i, gradient.lerp_(momentum, MOMENTUM))
            parameter.data.mul_(1 - rate * self.inner.weight_decay)
            parameter.data.sub_(step, alpha=rate)
            gradient.zero_()

    def step_of(self, number: int, gradient: Tensor) -> Tensor:
        """Return how far parameter `number` moves at rate 1, by a gradient with momentum."""
        scale = step_scale(tuple(gradient.shape))
        basis_dk = self.within.get(number)
        if basis_dk is None:
            return orthogonal(gradient) * scale
        return basis_dk @ orthogonal(basis_dk.T @ gradient) * scale

    @property
    def shapes(self) -> dict[str, Shape]:
        """The names and shapes of `tensors` after a step."""
        return super(Muon, self).shapes | {f"{i}.exp_avg_sq": NO_SECOND_MOMENT for i in self.hidden}


def make_optimizer(
    parameters: list[nn.Parameter], tensors: Iterable[str], manifest: Manifest, basis_dk: Tensor | None = None
) -> AdamW:
    """The optimizer that the manifest names. `tensors` are the names of the `parameters` in the model. With `basis_dk`
    (U [d, k]), Muon moves the matrices that write into the residual stream within Col(U) alone."""
    inner, model = manifest.inner, manifest.model
    if inner.optimizer == "adamw":
        return AdamW(parameters, inner)
    named = list(enumerate(zip(tensors, parameters, strict=True)))
    hidden = frozenset(i for i, (tensor, parameter) in named if is_layer_matrix(tensor, tuple(parameter.shape)))
    within = {} if basis_dk is None else {i: basis_dk for i, (tensor, _) in named if writes_residual(model, tensor)}
    return Muon(parameters, inner, hidden=hidden, within=within)
