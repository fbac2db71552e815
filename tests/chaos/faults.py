"""Faults of the harness alone, in the notation of `peer/testnet/faults.py`: of links, at random, and attacks. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from peer.testnet.faults import Fault, Moment, Target, When, in_seconds, short_number

Side = tuple[Target, ...]


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
            return f"partition:{sides}{self.when}+{in_seconds(self.seconds)}"
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
        return f"slow:{self.target}={self.rate}{self.when}+{in_seconds(self.seconds)}"


RandomKind = Literal["kill", "pause", "slow", "partition"]


@dataclass(frozen=True, slots=True)
class Random:
    """Faults of these kinds at moments drawn from a seed, `per_minute` on average; they hit volunteers alone."""

    seed: int
    per_minute: float
    kinds: tuple[RandomKind, ...] = ("kill",)

    def __str__(self) -> str:
        kinds = "" if self.kinds == ("kill",) else ":" + "+".join(self.kinds)
        return f"random:{self.seed}:{short_number(self.per_minute)}{kinds}"


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
    """One peer more, which attacks from the start (`tests/chaos/attackers/attacker.py`)."""

    kind: AttackKind

    def __str__(self) -> str:
        return f"attacker:{self.kind}"


CrowdKind = Literal[
    "clock", "spam", "slow", "equivocation", "flood", "replay", "slots", "gateway", "door", "dht", "dashboard"
]


@dataclass(frozen=True, slots=True)
class Crowd:
    """`names` hostile names in one process (`tests/chaos/attackers/hostile_process.py`), which attack for `seconds`:
    all in one way, or all ways shared out among them ("all")."""

    kind: CrowdKind | Literal["all"]
    names: int
    when: When
    seconds: float

    def __str__(self) -> str:
        return f"crowd:{self.kind}*{self.names}{self.when}+{in_seconds(self.seconds)}"


HarnessFault = Fault | Partition | Slow | Crowd
ChaosItem = HarnessFault | Random | Attacker


def needs_namespaces(items: Iterable[ChaosItem]) -> bool:
    """Whether these faults cut or slow links."""
    return any(
        isinstance(item, Partition | Slow) or (isinstance(item, Random) and {"slow", "partition"} & {*item.kinds})
        for item in items
    )
