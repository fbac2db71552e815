"""The time that an inner step may take, and the member that holds it up. Pure."""

from collections import deque
from dataclasses import dataclass, field
from statistics import median

PACE_STEPS = 16

PATIENCE = 20.0
"""The longest step, in usual steps: a volunteer at a tenth of the others' speed, who has just taken a quick one's seat
or begun something else on its machine, takes ten, and its link may be busy. Missing heartbeats tell of worse."""

SHORTEST_STEP_BOUND_SECONDS = 20.0
"""No step is too long before: one may usually take milliseconds, and a machine that swaps, or a link that drops what it
carries, takes seconds."""

FIRST_STEP_SECONDS = 120.0
"""The longest first step, in seconds, before anything is measured: models are loaded and compiled in it."""

FIRST_PATIENCE = 8.0
"""The longest first step, in times of what this peer's own passes take: the pipeline fills, and others are slower or
share its machine."""

TRUSTED = 4.0
"""The longest wait that another stage may ask for, in times of this peer's own."""

FURTHER = 0.25
"""The share by which a neighbour is waited for longer, for each stage between it and the end of the group."""


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
        return max(SHORTEST_STEP_BOUND_SECONDS, PATIENCE * median(self.seconds)) if self.seconds else self.first

    def bound_in(self, told: float) -> float:
        """The bound in a group whose first stage has told its own, so that all have one: of two that differ, the more
        patient one could be taken for who holds the step up. A lie makes nobody much too patient, nor who has
        seen steps much too impatient."""
        own = self.bound()
        least = max(SHORTEST_STEP_BOUND_SECONDS, own / TRUSTED) if self.seconds else SHORTEST_STEP_BOUND_SECONDS
        return min(max(told, least), TRUSTED * own)


def first_seconds(tokens: int, tokens_per_second: float) -> float:
    """The longest first inner step of `tokens` tokens in seconds, by the speed of this peer's own passes. Others'
    statements of theirs may be lies that hold everybody up."""
    return max(FIRST_STEP_SECONDS, FIRST_PATIENCE * tokens / tokens_per_second)


def patience_with(bound: float, stages: int) -> float:
    """Seconds after which a stage holds a neighbour to account for a step whose `bound` has passed; `stages` are on
    that neighbour's side, itself counted.

    If one holds the step up, all others wait in its direction, and each sees its own neighbour alone. The nearer a
    neighbour is to the group's end the sooner it is held to account: so the first to be is the one at fault, and those
    between it and the others learn in time that the group is broken.
    """
    return bound * (1 + FURTHER * (stages - 1))
