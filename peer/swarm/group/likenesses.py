"""The judgement of the payloads that a neighbour sent, by how like they are to what is computed again from the outer
state (`protocol/codec/spot_check.py`); and how often one is checked. Pure.

If a group began the round from the observer's outer state, payloads of the round's first inner step are *exact*: they
differ by number formats alone, with any optimizer, so one that is wrong by a tenth is found. Later ones are made by
weights that have moved, and are not judged.
"""

from typing import Literal

from protocol.codec.spot_check import Likeness
from protocol.identity import PeerId
from protocol.manifest import Manifest
from protocol.tensor_formats import FORMATS

EXACT = 0.9975
"""An exact payload that is less like than this is false. Where a stage computes in bf16 and the observer in fp32, the
least of small models is 0.9997; with a tenth of noise it is 0.9958 at most (docs/benchmarks.md)."""

EXACT_COARSE = 0.9
"""The same in a run that has a format of fewer than eight bits, in which honest ones are down to 0.993."""

CLEAR = 6.0
"""The factor by which what was made of true payloads differs more from them, in 1 − cosine, if its sender has falsified
it."""

CHECKS_SHARE = 0.02
"""The share of a group's microbatches that are checked at most: each costs its passes once more."""

PayloadKind = Literal["activations", "gradients"]


def chance_of_check(manifest: Manifest) -> float:
    """The probability that a stage checks a microbatch in a round. None of its payloads are exact where the next round
    begins before the last one is in the outer state."""
    inner = manifest.inner
    share = CHECKS_SHARE * inner.microbatches * inner.steps / manifest.replicas.stages
    return 0.0 if manifest.outer.overlap else min(1.0, share)


def least_exact(manifest: Manifest) -> float:
    """The likeness below which an exact payload of this run is false. Gradients are made of activations, so the coarser
    of the two formats decides."""
    return EXACT if min(FORMATS[wire].bits for wire in manifest.replicas.wires) >= 8 else EXACT_COARSE


def false_payload(like: Likeness, manifest: Manifest, stage: int) -> PayloadKind | None:
    """Return which of the payloads of a microbatch that a stage received is false; None: neither. What is made of a
    false payload is false, too, and gradients come after activations: so these are named first."""
    least = least_exact(manifest)
    if stage > 0 and like.activations < least:
        return "activations"
    if stage < manifest.replicas.stages - 1 and like.gradients < least:
        return "gradients"
    return None


def likeness_of_sources(
    like: Likeness, kind: PayloadKind, sender: PeerId, manifest: Manifest, stage: int
) -> float | None:
    """Return the least likeness of the payloads of which `sender` made what it sent this stage; None: it has not had
    them checked. The first stage makes activations of the text alone, and the last one gradients of activations
    alone."""
    if kind == "activations" and stage == 1:
        return 1.0
    if sender not in like.neighbours:
        return None
    activations, gradients = like.neighbours[sender]
    if kind == "activations" or stage + 1 == manifest.replicas.stages - 1:
        return activations
    return min(like.activations if stage else 1.0, gradients)


def is_made_of_true(sources: float, sent: float, manifest: Manifest) -> bool | None:
    """Whether who `sent` what is false made it of what is true, by how like these are; None: that is not clear."""
    if sources < least_exact(manifest):
        return False
    return CLEAR * (1 - sources) <= 1 - sent or None
