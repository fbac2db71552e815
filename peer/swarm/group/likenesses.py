"""Which of the payloads that a neighbour sent are false, by how like they are to what is computed again from the outer
state (`protocol/codec/spot_check.py`); and how many are checked. Pure.

Weights move in a round, so honest payloads become less like; how much depends on the model, the optimizer, its rate and
the text, and is not the same from step to step (`benchmarks/recompute.py`). But those of one inner step, which the same
weights made of other sequences, are about equally like. So a payload is judged by others of the same neighbour's and
step, and not at all where these are not like either. At a round's first step the weights are those of the outer state.
"""

from collections.abc import Mapping
from statistics import median

from protocol.manifest import Manifest

LIKE = 0.4
"""Where the others of its step are at least so like, in the middle, a payload can be judged."""

FALSE = 0.25
"""Then one below this share of that middle is false. Of 33,000 honest ones of a small model the least had 0.62 with
Muon, and 0.54 with AdamW (activations); what is made up has 0.1 at most."""

DOUBTED = 0.4
"""And so is one below this share, if another stage doubts the microbatch: who sits between the two may have been sent
what is less unlike than what it made of it."""

FIRST = 0.6
"""A payload of a round's first step that is less like than this is false: honest ones differ by number formats only."""

ENOUGH = 3
"""So many others of the step are seen before one is judged."""

CHECKS_OF_GROUP = 28.0
"""Spot checks of a group in a round. In a group of four, one of which makes up one in twenty payloads, the other three
make 63 of them in three rounds: one of these finds a false payload with a probability of 96 %."""

CHECKS_SHARE = 0.02
"""The share of a group's microbatches that are checked at most: each costs its passes once more."""

Likenesses = Mapping[int, float]
"""Cosines by the number of the microbatch in the round."""


def checks_in_a_step(manifest: Manifest) -> float:
    """How many spot checks each member of a group makes in an inner step, on average."""
    inner = manifest.inner
    of_group = min(CHECKS_OF_GROUP, CHECKS_SHARE * inner.microbatches * inner.steps)
    return of_group / manifest.replicas.stages / inner.steps


def judges_gradients(manifest: Manifest) -> bool:
    """Whether gradients are judged, and not activations alone. With AdamW, which moves all weights equally far, the
    gradients of one honest microbatch in a hundred point elsewhere than those that are computed again."""
    return manifest.inner.optimizer == "muon"


def is_first_exact(manifest: Manifest) -> bool:
    """Whether a round's first step is taken by the weights of the outer state: not where the next round begins before
    the last one is in it."""
    return not manifest.outer.overlap


def others_of_step(number: int, n: int) -> list[int]:
    """The other microbatches of the inner step of one; a step has `n`."""
    first = number - number % n
    return [each for each in range(first, first + n) if each != number]


def usual(number: int, n: int, seen: Likenesses) -> float | None:
    """How like the others of its step are, in the middle; None: too few have been seen. A step has `n` microbatches."""
    others = [seen[each] for each in others_of_step(number, n) if each in seen]
    return median(others) if len(others) >= ENOUGH else None


def is_suspicious(number: int, n: int, seen: Likenesses, first_exact: bool) -> bool:
    """Whether a payload that has been seen is so unlike that others of its step are worth seeing, too."""
    return seen[number] < (FIRST if first_exact and number < n else FALSE)


def is_false(number: int, n: int, seen: Likenesses, first_exact: bool, doubted: bool = False) -> bool:
    """Whether the payload of a microbatch that has been seen is false. `first_exact`: at a round's first step the
    weights are those of the outer state. `doubted`: another stage has its doubts."""
    if first_exact and number < n:
        return seen[number] < FIRST
    middle = usual(number, n, seen)
    return middle is not None and middle >= LIKE and seen[number] < (DOUBTED if doubted else FALSE) * middle


def rank(stage: int, stages: int, backward: bool) -> int:
    """The place, in the order in which a microbatch is passed on, of the payload that a stage receives. A false one
    makes all later ones unlike; so the first of them is false, and who receives that one holds its sender to account
    before anybody else does."""
    return 2 * stages - 3 - stage if backward else stage - 1
