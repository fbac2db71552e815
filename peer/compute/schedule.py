"""The order of forward and backward passes of one stage in an inner step: 1F1B that does not stand still.

1F1B lets a stage run ahead by as many forward passes as there are stages behind it, then alternates. That is enough
where frames take no time. Over a slow link a microbatch takes longer to come back, so a stage may have more of them in
flight, `depth`, and does whatever it has the frame for. Where it could go back or forward, it does not what it did
last: a stage that goes back for as long as it can leaves those behind it without work. Each kind comes in microbatch
order, so gradients are summed in one order, and the step's outcome is the same bits whatever the links do.

With `inner.overlap` a step does not wait for the pipeline to drain and to fill again: each stage passes the first
microbatches of the next step forward before it takes this one, as many as `Manifest.late` says. Their gradients are of
the weights before this step, and how many they are does not depend on the links either.
"""

import math
from dataclasses import InitVar, dataclass, field

from protocol.codec.frames import MOST_IN_FLIGHT


@dataclass(frozen=True, slots=True)
class Forward:
    """Run the forward pass of this microbatch."""

    microbatch: int


@dataclass(frozen=True, slots=True)
class Backward:
    """Run the backward pass of this microbatch."""

    microbatch: int


Action = Forward | Backward


SPARE = 2
"""Microbatches beyond those that fill the round trip: a pass that has begun is not broken off for a frame that comes.
Without them steps last up to an eighth longer, with them up to a thirtieth."""


@dataclass(slots=True)
class Schedule:
    """The order of the passes of `stage` (of `stages`) in one inner step of `microbatches`, with `depth` of them in
    flight at most.

    Microbatches of the next step are numbered on. `begun` of this one have gone forward in the step before; `more` of
    the next one go forward in this, None as long as it is not known whether there is a next one.
    """

    stage: int
    stages: int
    microbatches: int
    depth: int
    begun: InitVar[int] = 0
    more: int | None = 0
    forwards: int = field(init=False)
    backwards: int = 0
    went_back: bool = False
    """Whether its last pass was a backward one."""

    def __post_init__(self, begun: int) -> None:
        self.forwards = begun

    def go_on_with(self, more: int) -> None:
        """Pass so many microbatches of the next step forward in this one; 0: there is no next one."""
        self.more = more

    @property
    def summed(self) -> bool:
        """Whether the step's gradients are complete."""
        return self.backwards == self.microbatches

    @property
    def asks(self) -> bool:
        """Whether this step's microbatches have all gone forward, and it is not known whether there is a next one."""
        return self.more is None and self.forwards == self.microbatches

    @property
    def done(self) -> bool:
        """Whether the last pass has been run."""
        return self.summed and self.more is not None and self.forwards == self.microbatches + self.more

    @property
    def in_flight(self) -> int:
        """Microbatches that hold memory here."""
        return self.forwards - self.backwards

    def next(self, activations: bool, gradients: bool) -> Action | None:
        """Return the next pass, which then counts as done; None: wait. The arguments say whether the frames of the next
        microbatch to go forward, and of the next to go back, have arrived."""
        back = gradients and self.backwards < min(self.forwards, self.microbatches)
        forth = activations and self.forwards < self.most and self.in_flight < self.depth
        if back and not (forth and self.went_back):
            self.backwards, self.went_back = self.backwards + 1, True
            return Backward(self.backwards - 1)
        if forth:
            self.forwards, self.went_back = self.forwards + 1, False
            return Forward(self.forwards - 1)
        return None

    @property
    def due(self) -> Action:
        """The pass that 1F1B would run next; a stage with nothing to do waits for that neighbour's frame. By it no two
        neighbours wait for each other once every frame has come."""
        ahead = max(self.stages - self.stage, (self.more or 0) + 1)
        if self.forwards < min(self.most, self.backwards + ahead) or self.backwards == self.microbatches:
            return Forward(self.forwards)
        return Backward(self.backwards)

    @property
    def most(self) -> int:
        """The number of microbatches that go forward by the end of this step, as far as that is known."""
        return self.microbatches + (self.more or 0)


def least_depth(stage: int, stages: int) -> int:
    """Return the number in flight under 1F1B: one for each stage from this one on."""
    return stages - stage


def depth_for(round_trip: float, passes: float, stage: int, stages: int, room: int) -> int:
    """Return how many microbatches to have in flight, so that the stage never waits for one to come back.

    Args:
        round_trip: seconds from the end of a microbatch's forward pass until its gradients are here, if nothing else is
            on the way.
        passes: seconds that a forward and a backward pass take together.
        room: so many fit into memory. As many as 1F1B has are in flight whether they do or not.
    """
    least = least_depth(stage, stages)
    if passes <= 0:
        return least
    return max(least, min(room, MOST_IN_FLIGHT * stages, 1 + math.ceil(round_trip / passes) + SPARE))
