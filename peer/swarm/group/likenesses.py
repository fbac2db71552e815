"""Which of the payloads that a neighbour sent are false, by how like they are to what is computed again from the outer
state (`protocol/codec/spot_check.py`); and how many are checked. Pure.

Weights move in a round, so honest payloads become less like; how much depends on the model, the optimizer, its rate and
the text, and is not the same from step to step (docs/benchmarks.md). But those of one inner step, which the same
weights made of other sequences, are about equally like. So a payload is judged by others of the same neighbour's and
step, and not at all where these are not like either.

If the group began the round from the observer's outer state, payloads of the first step are *exact*: they differ by
number formats alone. So each of these is judged by itself, and one that is wrong by a tenth is found.
"""

from collections.abc import Mapping
from statistics import median

from protocol.manifest import Manifest
from protocol.tensor_formats import FORMATS

LIKE = 0.4
"""Where the others of its step are at least so like, in the middle, a payload can be judged."""

FALSE = 0.25
"""Then one below this share of that middle is false. Of 33,000 honest ones of a small model the least had 0.62 with
Muon, and 0.54 with AdamW (activations); what is made up has 0.1 at most."""

DOUBTED = 0.4
"""And so is one below this share, if another stage doubts the microbatch: who sits between the two may have been sent
what is less unlike than what it made of it."""

TRUE = 0.8
"""A payload that is at least so much like the best of the others is true for sure; between the two it is not clear who
sent what is false."""

EXACT = 0.9975
"""An exact payload that is less like than this is false. Where a stage computes in bf16 and the observer in fp32, the
least of small models is 0.9997; with a tenth of noise it is 0.9958 at most (docs/benchmarks.md)."""

EXACT_DOUBTED = 0.9985
"""And so is one below this, if another stage doubts the microbatch."""

EXACT_COARSE = 0.9
"""The same of formats of fewer than eight bits, in which honest ones are down to 0.993."""

EXACT_CLEAR = 6.0
"""What is made of an exact payload lacks at least so many times as much to 1 if its sender has falsified it."""

EXACT_SHARE = 0.5
"""Of the checks that a stage makes in a round on average, so many are of the first step, but one at most: it shows what
no later one does."""

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


def checks_of_the_first_step(manifest: Manifest) -> float:
    """How many of its spot checks in a round each member makes of the first step, on average. None of its payloads are
    exact where the next round begins before the last one is in the outer state."""
    in_a_round = checks_in_a_step(manifest) * manifest.inner.steps
    return 0.0 if manifest.outer.overlap else min(1.0, EXACT_SHARE * in_a_round)


def least_exact(wire: str, doubted: bool = False) -> float:
    """The likeness below which an exact payload in this number format is false. `doubted`: another stage has its
    doubts."""
    if FORMATS[wire].bits < 8:
        return EXACT_COARSE
    return EXACT_DOUBTED if doubted else EXACT


def others_of_step(number: int, n: int) -> list[int]:
    """The other microbatches of the inner step of one; a step has `n`."""
    first = number - number % n
    return [each for each in range(first, first + n) if each != number]


def usual(number: int, n: int, seen: Likenesses) -> float | None:
    """How like the others of its step are, in the middle; None: too few have been seen. A step has `n` microbatches."""
    others = [seen[each] for each in others_of_step(number, n) if each in seen]
    return median(others) if len(others) >= ENOUGH else None


def is_suspicious(number: int, seen: Likenesses, doubted: bool = False) -> bool:
    """Whether a payload that has been seen, and is not exact, is so unlike that others of its step are worth seeing.
    `doubted`: another stage has its doubts."""
    return seen[number] < (DOUBTED if doubted else FALSE)


def is_false(number: int, n: int, seen: Likenesses, doubted: bool = False) -> bool:
    """Whether the payload of a microbatch that has been seen, and is not exact, is false. `doubted`: another stage has
    its doubts."""
    middle = usual(number, n, seen)
    return middle is not None and middle >= LIKE and seen[number] < (DOUBTED if doubted else FALSE) * middle


def is_made_of_true_exact(received: float, sent: float, least: float) -> bool | None:
    """Whether who `sent` what is false had `received` what is true, both exact, by how like these are; None: that is
    not clear. A received one below `least` is false."""
    if received < least:
        return False
    return EXACT_CLEAR * (1 - received) <= 1 - sent or None


def is_made_of_true(received: float, number: int, n: int, seen: Likenesses) -> bool | None:
    """The same where payloads are not exact: by `seen`, what others of the step are like."""
    others = [seen[each] for each in others_of_step(number, n) if each in seen]
    if received < DOUBTED * median(others or [1.0]):
        return False
    return received >= TRUE * max(others, default=1.0) or None


def rank(stage: int, stages: int, backward: bool) -> int:
    """The place, in the order in which a microbatch is passed on, of the payload that a stage receives. A false one
    makes all later ones unlike; so the first of them is false, and who receives that one holds its sender to account
    before anybody else does."""
    return 2 * stages - 3 - stage if backward else stage - 1
