"""The head of the model: a slice of tokens at a time becomes logits, cross-entropy and gradients, so that the logits of
a whole microbatch never exist together. At a vocabulary of 32,000 they would be half of the last stage's memory.

Letters of shapes: B sequences, L tokens of a sequence, T tokens in a row, D width of the residual stream, V vocabulary.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from peer.planning.memory import SLICE_TOKENS

SliceLoss = Callable[[Tensor, Tensor, Tensor, bool], tuple[Tensor, Tensor | None]]
"""`sliced_loss`, or what torch has compiled of it."""


class Head(nn.Module):
    """Residual stream, behind the final norm, → mean cross-entropy. The weight [V, D] is left empty: a run's weights
    are always loaded.

    As the loss is linear in the gradient that comes from above, a pass forward computes the gradients of its inputs,
    too, while it has a slice's logits; the pass backward only scales them.
    """

    def __init__(self, width: int, vocabulary: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocabulary, width))
        self.slice: SliceLoss = sliced_loss
        """The function that computes the loss of a slice of tokens, and its slope."""

    def compile_slices(self) -> None:
        """Let torch compile what is computed of a slice, at its first use."""
        self.slice = torch.compile(sliced_loss, dynamic=False)

    def forward(self, x_BLD: Tensor, targets_BL: Tensor) -> Tensor:
        """Mean cross-entropy of the next tokens `targets_BL`, a scalar in nats per token. Under autocast the products
        are in its number format; the cross-entropy is computed in fp32, and gradients of slices add up in fp32."""
        x_TD, targets_T = x_BLD.flatten(0, 1), targets_BL.flatten()
        if torch.is_grad_enabled():
            loss: Tensor = _SlicedLoss.apply(x_TD, self.weight, targets_T, self.slice)  # type: ignore[no-untyped-call]
            return loss
        return _sliced(x_TD, self.weight, targets_T, self.slice, None, None)


class _SlicedLoss(torch.autograd.Function):
    """`_sliced`, which keeps of its pass forward what the pass backward scales."""

    @staticmethod
    def forward(ctx: Any, x_TD: Tensor, weight_VD: Tensor, targets_T: Tensor, slice_of: SliceLoss) -> Tensor:
        ctx.tokens, ctx.gradients = len(x_TD), (torch.empty_like(x_TD), torch.zeros_like(weight_VD))
        return _sliced(x_TD, weight_VD, targets_T, slice_of, *ctx.gradients)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor, None, None]:
        (dx_TD, dweight_VD), ctx.gradients = ctx.gradients, None  # scaled in place: a second pass would do it twice
        g_per_token = g / ctx.tokens
        return dx_TD.mul_(g_per_token), dweight_VD.mul_(g_per_token), None, None


def sliced_loss(x_SD: Tensor, w_VD: Tensor, targets_S1: Tensor, sloped: bool) -> tuple[Tensor, Tensor | None]:
    """Cross-entropy [S] of a slice, and, if it is asked for, its gradient by the logits [S, V]: softmax − one-hot."""
    log_likely_SV = F.log_softmax(F.linear(x_SD, w_VD), -1, dtype=torch.float32)
    losses_S = -log_likely_SV.gather(1, targets_S1).squeeze(1)
    if not sloped:
        return losses_S, None
    if torch.compiler.is_compiling():  # one pass over the slice; uncompiled it would be three
        here_SV = torch.arange(len(w_VD), device=w_VD.device) == targets_S1
        return losses_S, torch.where(here_SV, log_likely_SV.exp() - 1.0, log_likely_SV.exp()).to(x_SD.dtype)
    slope_SV = log_likely_SV.exp_()
    slope_SV.scatter_add_(1, targets_S1, slope_SV.new_full(targets_S1.shape, -1.0))
    return losses_S, slope_SV.to(x_SD.dtype)


def _sliced(
    x_TD: Tensor,
    weight_VD: Tensor,
    targets_T: Tensor,
    slice_of: SliceLoss,
    dx_TD: Tensor | None,
    dweight_VD: Tensor | None,
) -> Tensor:
    """Mean cross-entropy. Where they are given, the gradients of the *sum* over all tokens are written to `dx_TD` and
    added to `dweight_VD`: of a sum the slope is softmax − one-hot, which no number format of factors rounds to zero."""
    kind = x_TD.device.type
    factors = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x_TD.dtype
    w_VD, losses = weight_VD.to(factors), list[Tensor]()
    for start in range(0, len(x_TD), SLICE_TOKENS):
        slice_ = slice(start, start + SLICE_TOKENS)
        x_SD = x_TD[slice_].to(factors)
        losses_S, slope_SV = slice_of(x_SD, w_VD, targets_T[slice_, None], dx_TD is not None)
        losses.append(losses_S)
        if slope_SV is not None and dx_TD is not None and dweight_VD is not None:
            dx_TD[slice_] = slope_SV @ w_VD
            dweight_VD += slope_SV.T @ x_SD
    return torch.cat(losses).mean()
