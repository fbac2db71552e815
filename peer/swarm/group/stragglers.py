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
"""The number of inner steps whose durations a peer remembers."""


@dataclass(slots=True)
class StepPace:
    """The durations of this peer's last inner steps, in seconds, in whatever group."""

    seconds: deque[float] = field(default_factory=lambda: deque(maxlen=PACE_STEPS))
    first: float = FIRST_STEP_SECONDS
    """The longest first step, in seconds, by this peer's own measurement (`first_seconds`)."""

    def remember(self, seconds: float) -> None:
        """Note the duration of a step that has ended well."""
        self.seconds.append(seconds)

    def bound(self) -> float:
        """The longest inner step, in seconds; in a longer one some member holds the others up."""
        return max(SHORTEST_STEP_BOUND_SECONDS, STEP_PATIENCE * median(self.seconds)) if self.seconds else self.first

    def bound_in(self, told: float) -> float:
        """The bound in a group whose first stage has `told` its own, in seconds. All members use that one: of two
        neighbours with different bounds, the one with the longer bound would still wait when the other gives up, and be
        blamed. Against lies it is at most `TRUSTED_PATIENCE` times this peer's own bound; and, once this peer has
        measured steps, at least its own divided by that."""
        own = self.bound()
        least = (
            max(SHORTEST_STEP_BOUND_SECONDS, own / TRUSTED_PATIENCE) if self.seconds else SHORTEST_STEP_BOUND_SECONDS
        )
        return min(max(told, least), TRUSTED_PATIENCE * own)


def first_seconds(tokens: int, tokens_per_second: float) -> float:
    """The longest first inner step of `tokens` tokens, in seconds, by the speed of this peer's own passes. The speeds
    that others state are not used: a lie would make everybody wait."""
    return max(FIRST_STEP_SECONDS, FIRST_STEP_PATIENCE * tokens / tokens_per_second)


def patience_with(bound: float, stages: int) -> float:
    """The seconds into an inner step after which a stage hangs up on a neighbour that it waits for. `bound`: the
    longest step of the group. `stages`: the number of stages on that side, the neighbour included.

    All stages wait in the direction of the one that holds the step up, and each knows only its own neighbour. The fewer
    stages there are on a side, the shorter is the wait. So the stage beside the culprit hangs up first, and those
    further away learn from it that the group is broken before they blame a stage in between.
    """
    return bound * (1 + FURTHER_STAGE_SHARE * (stages - 1))
