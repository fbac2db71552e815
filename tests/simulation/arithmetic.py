"""A toy outer state: θ is two small integers, and F is the mean over a set, rounded half to even.

The formula is that of `peer/optim/outer.py` with η = 1. A sum forgets in which order it was added, a rounded
mean does not forget how many there were: so a term applied twice, or to the wrong round, shows.
"""

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from hashlib import blake2b

from protocol.identity import PeerId
from protocol.outer.history import History

Vector = tuple[int, int]

ZERO: Vector = (0, 0)


def add(one: Vector, other: Vector) -> Vector:
    return one[0] + other[0], one[1] + other[1]


def subtract(one: Vector, other: Vector) -> Vector:
    return one[0] - other[0], one[1] - other[1]


def term(contributions: Collection[Vector]) -> Vector:
    """F(S)."""
    count = len(contributions) or 1
    x = y = 0
    for each in contributions:
        x += each[0]
        y += each[1]
    return _half_even(x, count), _half_even(y, count)


def _half_even(total: int, count: int) -> int:
    quotient, rest = divmod(total, count)
    return quotient + (2 * rest > count or (2 * rest == count and quotient & 1))


def digest(theta: Vector, history: History) -> str:
    """What stands for a folded state: its numbers, and whose contributions are in them."""
    return blake2b(f"{theta} {sorted(history.ranges.items())}".encode(), digest_size=8).hexdigest()


@dataclass(slots=True)
class State:
    """θ after the folded rounds, θ now, the terms of the open rounds that make the difference, and an author's own
    error feedback: of all that it `computed`, what it has not sent. `closed`, for the judge alone: which versions
    are in the folded rounds."""

    folded: Vector = ZERO
    theta: Vector = ZERO
    terms: dict[int, Vector] = field(default_factory=dict)
    residual: Vector = ZERO
    computed: Vector = ZERO
    closed: dict[int, dict[PeerId, str]] = field(default_factory=dict)

    def copy(self) -> "State":
        return replace(self, terms=dict(self.terms), closed=dict(self.closed))

    def settle(self, round: int, new: Vector) -> None:
        """The term of an open round is another one now: add the old, subtract the new."""
        self.theta = subtract(add(self.theta, self.terms.get(round, ZERO)), new)
        self.terms[round] = new

    def fold(self, round: int, chosen: dict[PeerId, str]) -> None:
        """The term of a round is final."""
        self.closed[round] = chosen
        self.folded = subtract(self.folded, self.terms.pop(round, ZERO))

    def adopt(self, folded: Vector, closed: dict[int, dict[PeerId, str]]) -> None:
        """Another peer's θ after the folded rounds; the terms of open rounds are to be settled anew."""
        self.folded = self.theta = folded
        self.terms, self.closed = {}, dict(closed)
