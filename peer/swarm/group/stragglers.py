"""Who has to go when a group does not get on: how long a step may take, whom it waited for, whose word counts. Pure."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median

from protocol.identity import PeerId

STEPS_REMEMBERED = 16

PATIENCE = 20.0
"""So many usual steps a step may take: a volunteer at a tenth of the others' speed, who has just taken a quick one's
seat or begun something else on its machine, takes ten, and its link may be busy. Signs of life tell of worse."""

LEAST_SECONDS = 20.0
"""No step is too long before: one may usually take milliseconds, and a machine that swaps, or a link that drops what it
carries, takes seconds."""

FIRST_SECONDS = 120.0
"""Before anything is measured a step may take so long: models are loaded and compiled in the first step."""

FIRST_PATIENCE = 8.0
"""Or so many times what this peer's own passes take: the pipeline fills, and others are slower or share its machine."""

LATE = 4.0
"""A step that took too long is to be called off in this part of the time."""


@dataclass(slots=True)
class StepPace:
    """What the last inner steps of this peer took, in seconds, in whatever group."""

    seconds: deque[float] = field(default_factory=lambda: deque(maxlen=STEPS_REMEMBERED))
    first: float = FIRST_SECONDS
    """How long the first may take, which no other tells of."""

    def remember(self, seconds: float) -> None:
        """A step has ended well."""
        self.seconds.append(seconds)

    def bound(self) -> float:
        """After so many seconds somebody holds the step up."""
        return max(LEAST_SECONDS, PATIENCE * median(self.seconds)) if self.seconds else self.first


def first_seconds(tokens: int, tokens_per_second: float) -> float:
    """How long the first inner step of so many tokens may take, by the speed of this peer's own passes. By its own:
    what others say of theirs may be a lie that holds everybody up."""
    return max(FIRST_SECONDS, FIRST_PATIENCE * tokens / tokens_per_second)


def held_up(first: PeerId, waited_for: Mapping[PeerId, PeerId]) -> tuple[PeerId | None, PeerId]:
    """By whose word, and by whom a step is held up that the leader waited for `first` in.

    All members are in `waited_for`. They say whose frame they waited for; the last that names no other member is at
    fault. 1F1B never waits in a circle: who names one that has been passed already is no better than who names nobody.
    The word is None where the leader saw it itself.
    """
    accuser: PeerId | None = None
    culprit, passed = first, {first}
    while (after := waited_for.get(culprit, culprit)) in waited_for and after not in passed:
        accuser, culprit = culprit, after
        passed.add(culprit)
    return accuser, culprit


@dataclass(slots=True)
class Accusations:
    """What members said of others. One may meet one that breaks the protocol; who meets a second is the likelier liar,
    and could empty the group one by one."""

    against: dict[PeerId, PeerId] = field(default_factory=dict)

    def weigh(self, accuser: PeerId, accused: PeerId) -> PeerId:
        """Who of the two has to go."""
        return accused if self.against.setdefault(accuser, accused) == accused else accuser
