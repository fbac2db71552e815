"""What can be done to a testnet, as values whose `str` is what `--chaos` reads. Pure.

Groups, stages and datacenters count from 0 here.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Moment:
    """When some process first has done inner step `step` (from 1) of `round`."""

    round: int
    step: int = 1

    def __str__(self) -> str:
        return f"@round={self.round}" + (f".{self.step}" if self.step != 1 else "")


@dataclass(frozen=True, slots=True)
class After:
    """So many seconds after the swarm's first inner step."""

    seconds: float

    def __str__(self) -> str:
        return f"@{_seconds(self.seconds)}"


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


Side = tuple[Target, ...]


@dataclass(frozen=True, slots=True)
class Kill:
    """SIGKILL; after `back` seconds started again with the same folder, or never."""

    target: Target
    when: When
    back: float | None = None

    def __str__(self) -> str:
        return f"kill:{self.target}{self.when}" + (f"+{_seconds(self.back)}" if self.back is not None else "")


@dataclass(frozen=True, slots=True)
class Pause:
    """SIGSTOP, and SIGCONT after `seconds`."""

    target: Target
    when: When
    seconds: float

    def __str__(self) -> str:
        return f"pause:{self.target}{self.when}+{_seconds(self.seconds)}"


@dataclass(frozen=True, slots=True)
class Leave:
    """SIGINT: it goes in order."""

    target: Target
    when: When

    def __str__(self) -> str:
        return f"leave:{self.target}{self.when}"


@dataclass(frozen=True, slots=True)
class Join:
    """One process more: a volunteer of `stage`, or a datacenter (None)."""

    stage: int | None
    when: When

    def __str__(self) -> str:
        return f"join:{'datacenter' if self.stage is None else f'stage={self.stage}'}{self.when}"


@dataclass(frozen=True, slots=True)
class Partition:
    """Nothing passes between two sides (None: two halves of whole replicas), for `seconds`, or, where that is None,
    until some process has ended round `last`."""

    sides: tuple[Side, Side] | None
    when: When
    last: int = 0
    seconds: float | None = None

    def __str__(self) -> str:
        sides = "half" if self.sides is None else "|".join("+".join(map(str, side)) for side in self.sides)
        if self.seconds is not None:
            return f"partition:{sides}{self.when}+{_seconds(self.seconds)}"
        assert isinstance(self.when, Moment)
        return f"partition:{sides}@rounds={self.when.round}-{self.last}"


@dataclass(frozen=True, slots=True)
class Slow:
    """The process's link carries `rate` (as `tc` writes it) each way, for `seconds`."""

    target: Target
    rate: str
    when: When
    seconds: float

    def __str__(self) -> str:
        return f"slow:{self.target}={self.rate}{self.when}+{_seconds(self.seconds)}"


RandomKind = Literal["kill", "pause", "slow", "partition"]


@dataclass(frozen=True, slots=True)
class Random:
    """So many faults a minute, of these kinds, drawn from a seed; only volunteers are hit."""

    seed: int
    per_minute: float
    kinds: tuple[RandomKind, ...] = ("kill",)

    def __str__(self) -> str:
        kinds = "" if self.kinds == ("kill",) else ":" + "+".join(self.kinds)
        return f"random:{self.seed}:{_number(self.per_minute)}{kinds}"


AttackKind = Literal[
    "garbage",
    "shapes",
    "lengths",
    "loris",
    "spam",
    "stale",
    "equivocation",
    "scaled",
    "copied",
    "flipped",
]


CONTRIBUTING: tuple[AttackKind, ...] = ("equivocation", "scaled", "copied", "flipped")
"""Attacks of a datacenter, by what it contributes; the others are a volunteer's."""


@dataclass(frozen=True, slots=True)
class Attacker:
    """One peer more, which attacks from the start (`peer/testnet/attackers/attacker.py`)."""

    kind: AttackKind

    def __str__(self) -> str:
        return f"attacker:{self.kind}"


CrowdKind = Literal[
    "clock", "spam", "slow", "equivocation", "flood", "replay", "slots", "gateway", "door", "dht", "dashboard"
]


@dataclass(frozen=True, slots=True)
class Crowd:
    """`names` hostile names in one process (`peer/testnet/attackers/hostile_process.py`), which attack for `seconds`:
    all in one way, or all ways shared out among them ("all")."""

    kind: CrowdKind | Literal["all"]
    names: int
    when: When
    seconds: float

    def __str__(self) -> str:
        return f"crowd:{self.kind}*{self.names}{self.when}+{_seconds(self.seconds)}"


Fault = Kill | Pause | Leave | Join | Partition | Slow | Crowd
ChaosItem = Fault | Random | Attacker


def _number(value: float) -> str:
    return f"{value:.3f}".rstrip("0").rstrip(".")


def _seconds(value: float) -> str:
    return f"{_number(value)}s"


def targets(item: ChaosItem) -> tuple[Target, ...]:
    """The targets that an item names."""
    match item:
        case Kill(target) | Pause(target) | Leave(target) | Slow(target):
            return (target,)
        case Partition(sides) if sides is not None:
            return (*sides[0], *sides[1])
        case _:
            return ()


def needs_namespaces(items: Iterable[ChaosItem]) -> bool:
    """Whether these faults cut or slow links."""
    return any(
        isinstance(item, Partition | Slow) or (isinstance(item, Random) and {"slow", "partition"} & {*item.kinds})
        for item in items
    )


def ends_a_datacenter(items: Iterable[ChaosItem]) -> bool:
    """Whether these faults may leave the process that evaluates gone at the end."""
    return any(
        isinstance(item, Kill | Leave) and {"datacenter", "all"} & {target.kind for target in targets(item)}
        for item in items
    )
