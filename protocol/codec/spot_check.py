"""A spot check: numbers at secret places of what a stage received of one microbatch, to be compared with the same
numbers as the outer state makes them.

Whoever holds the whole model can compute a microbatch of a round's first step again, but not to the bit: stages may
compute in other number formats. What an honest stage sent is *like* what is computed again (their cosine is nearly 1),
and what somebody made up is not. A payload is false in most of its numbers or it does little harm, so two thousand of
them tell; their places are drawn by who receives it, and nobody else knows them before the check.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from math import isfinite

import numpy as np
import numpy.typing as npt

from protocol.codec.frames import LARGEST_IN_FRAME, FramePosition, FrameRules
from protocol.codec.seating import check_digest
from protocol.errors import FormatError
from protocol.identity import PeerId
from protocol.layout import parts_followed
from protocol.manifest import Manifest
from protocol.schemas import spot_checks_pb2 as pb

SAMPLED = 2048
"""Numbers of a payload that are compared: the cosine of two that have nothing to do with each other is then below 0.1
in 99,999 of 100,000 cases."""

BESIDE = 2
"""The neighbours that a stage has at most."""

PayloadSample = npt.NDArray[np.float32]

NOTHING: PayloadSample = np.empty(0, np.float32)


@dataclass(frozen=True, slots=True, eq=False)
class ReceivedPass:
    """The payloads of one microbatch that a stage received in a round. `tokens` are [b, L + 1]; `activations` and
    `gradients` are the numbers at the places of `seed` (`places`), `NOTHING` where the stage has no such neighbour."""

    round: int
    stage: int
    compression: int
    """d / k of its group's frames."""
    tokens: npt.NDArray[np.int64]
    seed: int
    activations: PayloadSample
    gradients: PayloadSample
    group_digest: str
    """Over the outer state from which its group began the round, as the stages say; empty if they do not."""
    neighbours: tuple[PeerId, ...] = ()
    """The neighbours of which it asks what they received of the microbatch."""


@dataclass(frozen=True, slots=True)
class Likeness:
    """The likeness of what a stage received to what the outer state makes of the microbatch, as cosines; 0 where the
    stage has no such neighbour."""

    activations: float
    gradients: float
    same_state: bool
    """Whether that outer state is the one from which the group began the round: then payloads of the round's first
    inner step differ by number formats alone."""
    neighbours: Mapping[PeerId, tuple[float, float]] = field(default_factory=dict)
    """The likenesses of the activations and the gradients that neighbours received, who have asked about them, too."""


def group_digest(digests: Mapping[str, str], manifest: Manifest, stage: int, behind: str) -> str:
    """SHA-256 in hexadecimal over the outer state from which a stage and those behind it begin a round: over the
    digests of the parts that the stage follows, and what the stage behind says (empty at the last one)."""
    own = "".join(digests[part] for part in parts_followed(manifest, stage))
    return sha256(f"{own}{behind}".encode()).hexdigest()


def whole_group_digest(digests: Mapping[str, str], manifest: Manifest) -> str:
    """The `group_digest` of all stages of a group whose outer state has these digests."""
    behind = ""
    for stage in reversed(range(manifest.replicas.stages)):
        behind = group_digest(digests, manifest, stage, behind)
    return behind


def places(seed: int, size: int) -> npt.NDArray[np.int64]:
    """`SAMPLED` random places, some of them twice, in a payload of `size` numbers: the same with every version of
    NumPy, which a `Generator`'s would not be."""
    drawn = np.random.SeedSequence(seed).generate_state(SAMPLED, np.uint64)
    return (drawn % np.uint64(size)).astype(np.int64)


def likeness(one: PayloadSample, other: PayloadSample) -> float:
    """The cosine of two samples; 0 where one of them is all zeros."""
    first, second = one.astype(np.float64), other.astype(np.float64)
    sizes = float(np.linalg.norm(first) * np.linalg.norm(second))
    return float(first @ second) / sizes if sizes else 0.0


def pack_question(asked: ReceivedPass) -> pb.SpotCheckQuestion:
    """The message that asks how like a received pass is."""
    return pb.SpotCheckQuestion(
        round=asked.round,
        stage=asked.stage,
        compression=asked.compression,
        tokens=asked.tokens.astype("<u4").tobytes(),
        seed=asked.seed,
        activations=asked.activations.astype("<f4").tobytes(),
        gradients=asked.gradients.astype("<f4").tobytes(),
        group_digest=asked.group_digest,
        neighbours=asked.neighbours,
    )


def unpack_question(message: pb.SpotCheckQuestion, manifest: Manifest) -> ReceivedPass:
    """Check a question of another peer.

    Raises:
        FormatError: it is about no pass of this run.
    """
    last = manifest.replicas.stages - 1
    if not 1 <= message.round <= manifest.outer.rounds or message.stage > last:
        raise FormatError(f"a spot check of round {message.round}, stage {message.stage}, which are none of this run")
    if message.compression not in manifest.compressions:
        raise FormatError(f"a spot check at d / k = {message.compression}, which this run does not have")
    tokens = FrameRules.of(manifest).check_tokens(message.tokens, FramePosition(message.round, 0, 0))
    return ReceivedPass(
        message.round,
        message.stage,
        message.compression,
        tokens,
        message.seed,
        _sample(message.activations, SAMPLED if message.stage else 0),
        _sample(message.gradients, SAMPLED if message.stage < last else 0),
        check_digest(message.group_digest),
        tuple(map(PeerId, message.neighbours[:BESIDE])),
    )


def pack_likeness(like: Likeness, granted: bytes) -> pb.SpotCheckAnswer:
    """The answer; `granted` is the operator's word that this observer is its own."""
    told = pb.SpotCheckAnswer(activations=like.activations, gradients=like.gradients, same_state=like.same_state)
    told.granted = granted
    for peer, (activations, gradients) in like.neighbours.items():
        told.neighbours.append(pb.NeighbourLikeness(peer=peer, activations=activations, gradients=gradients))
    return told


def unpack_likeness(message: pb.SpotCheckAnswer) -> Likeness:
    """Check an observer's answer.

    Raises:
        FormatError: it has numbers that are none.
    """
    beside = {
        PeerId(neighbour.peer): (neighbour.activations, neighbour.gradients)
        for neighbour in message.neighbours[:BESIDE]
    }
    numbers = [message.activations, message.gradients, *(number for both in beside.values() for number in both)]
    if not all(map(isfinite, numbers)):
        raise FormatError("an answer with a likeness that is no number")
    return Likeness(message.activations, message.gradients, message.same_state, beside)


def _sample(data: bytes, count: int) -> PayloadSample:
    if len(data) != 4 * count:
        raise FormatError(f"a spot check with a sample of {len(data)} bytes instead of {4 * count}")
    values = np.frombuffer(data, "<f4")
    if not np.all(np.abs(values) <= LARGEST_IN_FRAME):  # NaN is not, either
        raise FormatError("a spot check with a value that is not a number, or too large")
    return values
