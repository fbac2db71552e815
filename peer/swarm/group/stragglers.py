"""The time that an inner step may take, and the member that holds it up. Pure."""

from collections import deque
from dataclasses import dataclass, field
from statistics import median

from protocol.patience import (
    FIRST_STEP_PATIENCE,
    FIRST_STEP_SECONDS,
    FURTHER_STAGE_SHARE,
    SHORTEST_STEP_BOUND_SECONDS,
    STEP_PATIENCE,
    TRUSTED_PATIENCE,
)

PACE_STEPS = 16


@dataclass(slots=True)
class StepPace:
    """The durations of this peer's last inner steps, in seconds, in whatever group."""

    seconds: deque[float] = field(default_factory=lambda: deque(maxlen=PACE_STEPS))
    first: float = FIRST_STEP_SECONDS
    """The longest first step, in seconds; it is not taken from others."""

    def remember(self, seconds: float) -> None:
        """A step has ended well."""
        self.seconds.append(seconds)

    def bound(self) -> float:
        """The seconds after which somebody holds the step up."""
        return max(SHORTEST_STEP_BOUND_SECONDS, STEP_PATIENCE * median(self.seconds)) if self.seconds else self.first

    def bound_in(self, told: float) -> float:
        """The bound in a group whose first stage has told its own, so that all have one: of two that differ, the more
        patient one could be taken for who holds the step up. A lie makes nobody much too patient, nor who has
        seen steps much too impatient."""
        own = self.bound()
        least = (
            max(SHORTEST_STEP_BOUND_SECONDS, own / TRUSTED_PATIENCE) if self.seconds else SHORTEST_STEP_BOUND_SECONDS
        )
        return min(max(told, least), TRUSTED_PATIENCE * own)


def first_seconds(tokens: int, tokens_per_second: float) -> float:
    """The longest first inner step of `tokens` tokens in seconds, by the speed of this peer's own passes. Others'
    statements of theirs may be lies that hold everybody up."""
    return max(FIRST_STEP_SECONDS, FIRST_STEP_PATIENCE * tokens / tokens_per_second)


def patience_with(bound: float, stages: int) -> float:
    """Seconds after which a stage holds a neighbour to account for a step whose `bound` has passed; `stages` are on
    that neighbour's side, itself counted.

    If one holds the step up, all others wait in its direction, and each sees its own neighbour alone. The nearer a
    neighbour is to the group's end the sooner it is held to account: so the first to be is the one at fault, and those
    between it and the others learn in time that the group is broken.
    """
    return bound * (1 + FURTHER_STAGE_SHARE * (stages - 1))
