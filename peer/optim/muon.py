"""Muon for the matrices of the layers, AdamW for the rest (Jordan et al., 2024; Liu et al., arXiv 2502.16982)."""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from peer.optim.inner import AdamW

MOMENTUM = 0.95

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the quintic p(s) = a s + b s³ + c s⁵, as Jordan et al. publish them. It takes a singular value from 0.002 to 1
into 0.68 to 1.21 in five steps, and does not converge to 1."""

ITERATIONS = 5

SMALLEST = 1e-7
"""A gradient with a smaller norm is not scaled up to a direction."""

LIKE_ADAMW = 0.2
"""The root mean square of AdamW's steps, by which Muon's are scaled, so that both share one learning rate (arXiv
2502.16982, equation 4)."""


def orthogonal(matrix: Tensor) -> Tensor:
    """The nearest matrix with orthonormal rows or columns, about: its singular vectors, with singular values near 1, by
    Newton and Schulz's iteration."""
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if tall else matrix
    x = x / x.norm().clamp(min=SMALLEST)
    a, b, c = COEFFICIENTS
    for _ in range(ITERATIONS):
        square = x @ x.T
        x = torch.addmm(x, torch.addmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return x.T if tall else x


def step_scale(shape: torch.Size) -> float:
    """What an orthogonal matrix [rows, columns] is multiplied by, so that its entries are as large as AdamW's steps."""
    return LIKE_ADAMW * math.sqrt(max(shape))


@dataclass(slots=True)
class Muon(AdamW):
    """Muon, with Nesterov's momentum, for the matrices in `hidden`; AdamW for everything else. Both decay alike.

    A matrix's momentum is kept as AdamW's first moment; its second moment stays zero.
    """

    hidden: set[int] = field(default_factory=set)
    """Places in `parameters`."""

    @torch.no_grad()
    def update(self, factor: float, rate: float) -> None:
        self.begin()
        others = [i for i in range(len(self.parameters)) if i not in self.hidden]
        if others:
            rest = {name: [of[i] for i in others] for name, of in self.state.items()}
            AdamW([self.parameters[i] for i in others], self.inner, rest).update(factor, rate)
        for i in self.hidden:
            parameter, momentum = self.parameters[i], self.state["exp_avg"][i]
            gradient = parameter.grad
            assert gradient is not None
            gradient.mul_(factor)
            self.state["step"][i] += 1
            momentum.lerp_(gradient, 1 - MOMENTUM)
            direction = orthogonal(gradient.lerp_(momentum, MOMENTUM))
            parameter.mul_(1 - rate * self.inner.weight_decay)
            parameter.sub_(direction, alpha=rate * step_scale(parameter.shape))
            gradient.zero_()


def hidden(stage: nn.Module, parameters: list[nn.Parameter]) -> set[int]:
    """The places in `parameters` of the matrices of a stage's layers: not of its head, and not of a token embedding."""
    matrices = {id(each) for name, each in stage.named_parameters() if name.startswith("model.") and each.dim() == 2}
    return {i for i, each in enumerate(parameters) if id(each) in matrices}
