"""1F1B: the order of forward and backward passes that one stage follows in an inner step.

A stage runs ahead by as many forward passes as there are stages behind it, then alternates. Memory is
bounded by the stages, not by the microbatches, and each stage's backward passes come in microbatch
order, so that gradients are summed in one order wherever the stage runs.
"""

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Forward:
    """Run the forward pass of this microbatch."""

    microbatch: int


@dataclass(frozen=True, slots=True)
class Backward:
    """Run the backward pass of this microbatch."""

    microbatch: int


def one_forward_one_backward(stage: int, stages: int, microbatches: int) -> Iterator[Forward | Backward]:
    """The actions of `stage` (of `stages`) in one inner step of `microbatches`."""
    ahead = min(stages - 1 - stage, microbatches)
    for microbatch in range(ahead):
        yield Forward(microbatch)
    for microbatch in range(microbatches):
        if microbatch + ahead < microbatches:
            yield Forward(microbatch + ahead)
        yield Backward(microbatch)
