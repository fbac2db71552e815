"""Faults of a testnet: values whose `str` is what `--chaos` reads. Pure.

Groups, stages and datacenters count from 0 here.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, Protocol


@dataclass(frozen=True, slots=True)
class Moment:
    """The moment at which the first of all processes has done inner step `step` (from 1) of `round`."""

    round: int
    step: int = 1

    def __str__(self) -> str:
        return f"@round={self.round}" + (f".{self.step}" if self.step != 1 else "")


@dataclass(frozen=True, slots=True)
class After:
    """A time in seconds after the swarm's first inner step."""

    seconds: float

    def __str__(self) -> str:
        return f"@{in_seconds(self.seconds)}"


When = Moment | After


@dataclass(frozen=True, slots=True)
class Target:
    """One process or several. `number` is the group's or the datacenter's; `stage` the volunteer's."""

    kind: Literal["volunteer", "group", "datacenter", "bootstrap", "all"]
    number: int = 0
    stage: int = 0

    def __str__(self) -> str:
        match self.kind:
            case "volunteer":
                return (f"group={self.number}/" if self.number else "") + f"stage={self.stage}"
            case "group" | "datacenter":
                return f"{self.kind}={self.number}"
            case _:
                return self.kind


@dataclass(frozen=True, slots=True)
class Kill:
    """SIGKILL. The process starts again with the same folder after `back` seconds; None: it does not."""

    target: Target
    when: When
    back: float | None = None

    def __str__(self) -> str:
        return f"kill:{self.target}{self.when}" + (f"+{in_seconds(self.back)}" if self.back is not None else "")


@dataclass(frozen=True, slots=True)
class Pause:
    """SIGSTOP, and SIGCONT after `seconds`."""

    target: Target
    when: When
    seconds: float

    def __str__(self) -> str:
        return f"pause:{self.target}{self.when}+{in_seconds(self.seconds)}"


@dataclass(frozen=True, slots=True)
class Leave:
    """SIGINT: the process leaves in order."""

    target: Target
    when: When

    def __str__(self) -> str:
        return f"leave:{self.target}{self.when}"


@dataclass(frozen=True, slots=True)
class Join:
    """The start of one more process: a volunteer of `stage`; None: a datacenter."""

    stage: int | None
    when: When

    def __str__(self) -> str:
        return f"join:{'datacenter' if self.stage is None else f'stage={self.stage}'}{self.when}"


class Scheduled(Protocol):
    """A fault of any kind: it has a moment, and its `str` is the notation that `--chaos` reads."""

    @property
    def when(self) -> When:
        """The moment at which it is done."""


Fault = Kill | Pause | Leave | Join


def short_number(value: float) -> str:
    """A number of at most three decimals, without zeros at its end."""
    return f"{value:.3f}".rstrip("0").rstrip(".")


def in_seconds(value: float) -> str:
    """A time of `value` seconds in the notation of faults: "1.5s"."""
    return f"{short_number(value)}s"


def ends_a_datacenter(faults: Iterable[object]) -> bool:
    """Whether a datacenter, which is the process that evaluates, may be gone at the end after these faults."""
    return any(isinstance(fault, Kill | Leave) and fault.target.kind in ("datacenter", "all") for fault in faults)
