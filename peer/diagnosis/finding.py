"""The result of a check, in words."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Outcome = Literal["ok", "warning", "failure"]

SET_THE_CLOCK = "Let the system set it from the network: `sudo timedatectl set-ntp true`, or its settings of date"


@dataclass(frozen=True, slots=True)
class Finding:
    """A check's name, what it found, how that is, and, unless it is well, what to do. `numbers` are for programs: SI
    units, bits for rates."""

    name: str
    value: str
    outcome: Outcome = "ok"
    advice: str = ""
    numbers: Mapping[str, float] = field(default_factory=dict)

    @property
    def words(self) -> str:
        """The finding in one line, with what to do behind an arrow."""
        return f"{self.name}: {self.value}{f' → {self.advice}' if self.advice else ''}"

    def __post_init__(self) -> None:
        if (self.outcome == "ok") == bool(self.advice):
            raise ValueError(f"{self.name}: whoever warns says what to do, and nobody else")


def gravest(outcomes: list[Outcome]) -> Outcome:
    """The gravest of some outcomes; `ok` of none."""
    return max(outcomes, key=("ok", "warning", "failure").index, default="ok")
