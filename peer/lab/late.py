"""Late gradients: what a pipeline computes whose inner steps follow each other without a bubble.

While the gradients of a step come back, the passes of the next one or the next few have begun, with the weights as they
were. So the gradient that is applied in inner step t was computed with the weights before step t − τ. Both passes of a
microbatch have the same weights, as in PipeDream-2BW (arXiv 2006.09503). At the round's end what is under way is
applied: a round of H steps has H gradients, of which the first τ are computed with the weights that it began with.

`lookahead` is Nesterov's (arXiv 2505.01099): gradients are computed where the weights will be about when they are
applied, τ times the last change ahead.

`OverlappingSteps` are late by less: with `inner.overlap`, some microbatches of each step.
"""

from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from peer.compute.replica import WholeReplica
from peer.compute.trainer import StageTrainer, in_place_of
from peer.optim.inner import clip_factor, stage_clip_factor
from protocol.manifest_tables import Inner

StageGradients = list[list[Tensor]]
"""One for each parameter of each stage."""


@dataclass(slots=True)
class LateGradients:
    """One replica's inner loop with gradients that are `by` steps late."""

    whole: WholeReplica
    by: int
    lookahead: bool
    due: deque[StageGradients] = field(default_factory=deque)
    change: StageGradients | None = None
    """What the last update has added to each parameter."""

    def step(self, batch_SM: Tensor, at: float, clip: "ClipFactors") -> float:
        """Compute the gradients of a batch, and apply those that are due; the batch's mean loss. `at` is the number of
        the update in the run, counted from 0."""
        with self._ahead():
            loss = self.whole.gradients(batch_SM)
        if not self.by:
            self._update(at, clip)
            return loss
        self.due.append([[taken(parameter) for parameter in stage.parameters] for stage in self.whole.stages])
        if len(self.due) > self.by:
            self._apply(at, clip)
        return loss

    def finish(self, at: float, clip: "ClipFactors") -> None:
        """Apply what is still under way at the round's end."""
        while self.due:
            self._apply(at, clip)

    def _apply(self, at: float, clip: "ClipFactors") -> None:
        for stage, gradients in zip(self.whole.stages, self.due.popleft(), strict=True):
            for parameter, gradient in zip(stage.parameters, gradients, strict=True):
                parameter.grad = gradient
        self._update(at, clip)

    def _update(self, at: float, clip: "ClipFactors") -> None:
        before = [copies(stage.parameters) for stage in self.whole.stages] if self.lookahead else []
        for stage, factor in zip(self.whole.stages, clip(self.whole), strict=True):
            stage.update(factor, at)
        if self.lookahead:
            self.change = [
                [parameter.detach() - old for parameter, old in zip(stage.parameters, of, strict=True)]
                for stage, of in zip(self.whole.stages, before, strict=True)
            ]

    @contextmanager
    def _ahead(self) -> Iterator[None]:
        """Within the block, the weights are where the next updates are expected to take them."""
        if self.change is None or not self.due:
            yield
            return
        before = [copies(stage.parameters) for stage in self.whole.stages]
        with torch.no_grad():
            for stage, changes in zip(self.whole.stages, self.change, strict=True):
                torch._foreach_add_([*stage.parameters], changes, alpha=len(self.due))
        yield
        with torch.no_grad():
            for stage, old in zip(self.whole.stages, before, strict=True):
                torch._foreach_copy_([*stage.parameters], old)


@dataclass(slots=True)
class OverlappingSteps:
    """A group's inner loop with `inner.overlap`, of which a swarm's pipeline has the same bits.

    The first microbatches of a step, as many as `Manifest.late` says, pass a stage before it has taken the
    step before: both of their passes are by the weights that it had then. Here they come later, and the weights back.
    """

    whole: WholeReplica
    before: list[list[Tensor]] | None = None
    """The weights of each stage before its last step; None in the first step of a round."""

    def step(self, batch_SM: Tensor, at: float, clip: "ClipFactors") -> float:
        """One inner step, `at` steps after the run's beginning; the batch's mean loss."""
        stages, losses = self.whole.stages, list[float]()
        for number, tokens_BM in enumerate(self.whole.microbatches(batch_SM)):
            payload: Tensor | None = None
            for stage in stages:
                with self._weights(stage, number):
                    payload = stage.forward(number, tokens_BM, payload)
            assert payload is not None
            losses.append(payload.item())
            gradient: Tensor | None = None
            for stage in reversed(stages):
                with self._weights(stage, number):
                    gradient = stage.backward(number, gradient)
        self.before = [copies(stage.parameters) for stage in stages]
        for stage, factor in zip(stages, clip(self.whole), strict=True):
            stage.update(factor, at)
        return sum(losses) / len(losses)

    def finish(self, at: float, clip: "ClipFactors") -> None:
        """Nothing is under way at the round's end."""

    def _weights(self, stage: StageTrainer, microbatch: int) -> AbstractContextManager[None]:
        """Within the block, the stage's weights are those that the microbatch met."""
        if self.before is None or microbatch >= stage.manifest.late(stage.index):
            return nullcontext()
        return in_place_of(stage.parameters, self.before[stage.index])


class ClipFactors:
    """By what each stage's gradients are multiplied: by the replica's norm, or each by its own."""

    def __init__(self, clip: float, by_stage: bool) -> None:
        self.clip, self.by_stage = clip, by_stage

    def __call__(self, whole: WholeReplica) -> list[float]:
        """The factor of each stage of a replica whose gradients are complete.

        Raises:
            DivergedError: a norm is not a number.
        """
        squares = [stage.squared_norm() for stage in whole.stages]
        if self.by_stage:
            return [self.of_stage(square, len(squares)) for square in squares]
        return [clip_factor(squares, self.clip)] * len(squares)

    def of_stage(self, square: float, stages: int) -> float:
        """The factor of one stage of `stages`, whose share of the squared norm that is allowed is as large as the
        others'."""
        return stage_clip_factor(0, square, (), stages, self.clip)


class EarlierClip(ClipFactors):
    """Where steps overlap: by the replica's norm with what the other stages had in the step before, in one round."""

    def __init__(self, clip: float) -> None:
        super().__init__(clip, by_stage=True)
        self.before: list[float] = []

    def __call__(self, whole: WholeReplica) -> list[float]:
        """Raises DivergedError if a norm is not a number."""
        squares = [stage.squared_norm() for stage in whole.stages]
        before, self.before = self.before, squares
        return [stage_clip_factor(i, square, before, len(squares), self.clip) for i, square in enumerate(squares)]


def clip_of_overlap(inner: Inner) -> ClipFactors:
    """By what the gradients of a replica are multiplied whose steps overlap; one for each round."""
    return EarlierClip(inner.clip) if inner.clips_by_others else ClipFactors(inner.clip, by_stage=True)


def taken(parameter: nn.Parameter) -> Tensor:
    """A parameter's gradient, which is replaced by zeros."""
    gradient = parameter.grad
    assert gradient is not None
    parameter.grad = torch.zeros_like(parameter)
    return gradient


def copies(parameters: list[nn.Parameter]) -> list[Tensor]:
    """The values of parameters, as they are now."""
    return [parameter.detach().clone() for parameter in parameters]
