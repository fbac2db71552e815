"""Gradients in fp16: those of a stage's layers are scaled by a power of two, which never leaves the stage.

fp16 has no numbers below 6e-8 and none above 65504. So each microbatch's gradients are scaled where they come into the
layers from behind, so that the largest is between 1 and 2, and back where they leave: towards the stage before, and
into each weight. Powers of two are exact in fp32, which is what gradients are in at all of these places. Sums over
thousands of tokens have room above, and what is smaller than the largest by a factor of 2²⁴ is lost. What overflows all
the same is no number, and ends the step as a diverged replica does.
"""

import math
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.autograd import Function


@dataclass(slots=True, eq=False)
class GradientScale:
    """The scale of one stage, in the backward pass under way."""

    now: float = 1.0

    def watch(self, layers: nn.Module) -> None:
        """Scale the gradients of the layers' weights back, before they are added up."""
        for weight in layers.parameters():
            weight.register_hook(lambda gradient: gradient / self.now)

    def before_layers(self, x: Tensor) -> Tensor:
        """`x`, fp32, whose gradient is scaled back."""
        y: Tensor = _Scaled.apply(x, self, False)  # type: ignore[no-untyped-call]
        return y

    def behind_layers(self, x: Tensor) -> Tensor:
        """`x`, fp32, whose gradient decides the scale, and is scaled."""
        y: Tensor = _Scaled.apply(x, self, True)  # type: ignore[no-untyped-call]
        return y


class _Scaled(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: GradientScale, begins: bool) -> Tensor:
        ctx.scale, ctx.begins = scale, begins
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None]:
        if not ctx.begins:
            return g / ctx.scale.now, None, None
        ctx.scale.now = power_to_one(g.abs().max().item())
        return g * ctx.scale.now, None, None


def power_to_one(largest: float) -> float:
    """The power of two that brings a number to 1 or above, below 2; 1 for what has none, and within what fp32 has."""
    if not math.isfinite(largest) or largest == 0:
        return 1.0
    return 2.0 ** max(-100, min(100, 1 - math.frexp(largest)[1]))
