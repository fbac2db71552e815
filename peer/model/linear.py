"""y = x Wᵀ, whose gradients of W can be left for later: the backward pass of a pipeline without a bubble."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from peer.model.gradient_scale import GradientScale


class Linear(nn.Linear):
    """y = x Wᵀ. The weight is left empty: a run's weights are always loaded, never drawn here."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, bias=False)

    later: "WeightGradients | None" = None
    """The collection that takes the gradients of W, if they are not computed in the backward pass."""

    def reset_parameters(self) -> None:
        pass

    def forward(self, x: Tensor) -> Tensor:
        """[…, inputs] → […, outputs]."""
        if self.later is None or not torch.is_grad_enabled():
            return super().forward(x)
        kind = x.device.type
        if torch.is_autocast_enabled(kind):  # autograd would keep what it multiplies: in few bits, too
            x = x.to(torch.get_autocast_dtype(kind))
        y: Tensor = _InputFirst.apply(x, self.weight, self.later)  # type: ignore[no-untyped-call]
        return y


@dataclass(slots=True)
class WeightGradients:
    """Products that are left to do for the gradients of weights: xᵀ g, of inputs x and gradients g of outputs (zero
    bubble, arXiv 2401.10241). Computed as autograd would, so that bits are the same."""

    products: list[tuple[nn.Parameter, Tensor, Tensor, float]] = field(default_factory=list)
    """Weight, x, g, and by how much g is scaled."""
    scale: GradientScale = field(default_factory=GradientScale)

    def take(self) -> "WeightGradients":
        """Return the gradients collected until now, and begin anew."""
        taken, self.products = WeightGradients(self.products, self.scale), []
        return taken

    @torch.no_grad()
    def compute(self) -> None:
        """Add them to the weights' gradients."""
        for weight, x, g, scale in self.products:
            assert weight.grad is not None
            weight.grad.add_((x.flatten(0, -2).T @ g.flatten(0, -2)).T, alpha=1 / scale)
        self.products = []


class _InputFirst(torch.autograd.Function):
    """y = x Wᵀ, whose backward pass computes the gradient of x alone."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: nn.Parameter, later: WeightGradients) -> Tensor:
        ctx.save_for_backward(x)
        ctx.weight, ctx.later = weight, later
        return F.linear(x, weight.to(x.dtype))

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, None, None]:
        (x,) = ctx.saved_tensors
        ctx.later.products.append((ctx.weight, x, g, ctx.later.scale.now))
        return g @ ctx.weight.to(g.dtype) if ctx.needs_input_grad[0] else None, None, None
