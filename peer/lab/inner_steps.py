"""The inner steps of one replica of the lab: one after the other, or overlapping (`inner.overlap`)."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from torch import Tensor

from peer.compute.replica import WholeReplica
from peer.compute.trainer import StageTrainer, in_place_of
from peer.optim.inner import clip_factor, stage_clip_factor
from protocol.manifest_tables import Inner


@dataclass(slots=True)
class PlainSteps:
    """One replica's inner loop, in which each step waits for the one before it."""

    replica: WholeReplica

    def step(self, batch_SM: Tensor, at: float, clip: "ClipFactors") -> float:
        """One inner step, `at` steps after the run's beginning; the batch's mean loss."""
        loss = self.replica.gradients(batch_SM)
        for stage, factor in zip(self.replica.stages, clip(self.replica), strict=True):
            stage.update(factor, at)
        return loss


@dataclass(slots=True)
class OverlappingSteps:
    """A group's inner loop with `inner.overlap`, of which a swarm's pipeline has the same bits.

    The first microbatches of a step, as many as `Manifest.late` says, pass a stage before it has taken the
    step before: both of their passes are by the weights that it had then. The lab computes them later, with those
    weights put back.
    """

    replica: WholeReplica
    before: list[list[Tensor]] | None = None
    """The weights of each stage before its last step; None in the first step of a round."""

    def step(self, batch_SM: Tensor, at: float, clip: "ClipFactors") -> float:
        """One inner step, `at` steps after the run's beginning; the batch's mean loss."""
        stages, losses = self.replica.stages, list[float]()
        for number, tokens_BM in enumerate(self.replica.microbatches(batch_SM)):
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
        self.before = [[parameter.detach().clone() for parameter in stage.parameters] for stage in stages]
        for stage, factor in zip(stages, clip(self.replica), strict=True):
            stage.update(factor, at)
        return sum(losses) / len(losses)

    def _weights(self, stage: StageTrainer, microbatch: int) -> AbstractContextManager[None]:
        """Put the weights that the microbatch met in a swarm into the stage, within the block."""
        if self.before is None or microbatch >= stage.manifest.late(stage.index):
            return nullcontext()
        return in_place_of(stage.parameters, self.before[stage.index])


class ClipFactors:
    """The factors of a replica's gradients, one for each stage, by the norm of the whole replica."""

    def __init__(self, clip: float) -> None:
        self.clip = clip

    def __call__(self, replica: WholeReplica) -> list[float]:
        """The factor of each stage of a replica whose gradients are complete.

        Raises:
            DivergedError: a norm is not a number.
        """
        squares = [stage.squared_norm() for stage in replica.stages]
        return [clip_factor(squares, self.clip)] * len(squares)


class StageClip(ClipFactors):
    """The factors where steps overlap and every stage clips by its own norm: each may have an equal share of the
    squared norm that is allowed."""

    def __call__(self, replica: WholeReplica) -> list[float]:
        """Raises DivergedError if a norm is not a number."""
        squares = [stage.squared_norm() for stage in replica.stages]
        return [stage_clip_factor(i, square, (), len(squares), self.clip) for i, square in enumerate(squares)]


class EarlierClip(ClipFactors):
    """The factors where steps overlap, by the replica's norm with what the other stages had in the step before, within
    one round."""

    def __init__(self, clip: float) -> None:
        super().__init__(clip)
        self.before: list[float] = []

    def __call__(self, replica: WholeReplica) -> list[float]:
        """Raises DivergedError if a norm is not a number."""
        squares = [stage.squared_norm() for stage in replica.stages]
        before, self.before = self.before, squares
        return [stage_clip_factor(i, square, before, len(squares), self.clip) for i, square in enumerate(squares)]


def clip_of_overlap(inner: Inner) -> ClipFactors:
    """The factors of a replica whose steps overlap, for one round."""
    return EarlierClip(inner.clip) if inner.clips_by_others else StageClip(inner.clip)
