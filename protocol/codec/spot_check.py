"""A spot check: numbers at secret places of what a stage received of one microbatch, to be compared with the same
numbers as the outer state makes them.

Whoever holds the whole model can compute a microbatch again, but not to the bit: the stages have taken inner steps
since the round began. What an honest stage sent is *like* what is computed again (their cosine is well above zero), and
what somebody made up is not. A payload is false in most of its numbers or it does little harm, so two thousand of them
tell; their places are drawn by who receives it, and nobody else knows them before the check.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from protocol.codec.frames import LARGEST, FramePosition, FrameRules
from protocol.errors import FormatError
from protocol.manifest import Manifest
from protocol.schemas import spot_checks_pb2 as pb

SAMPLED = 2048
"""Numbers of a payload that are compared: the cosine of two that have nothing to do with each other is then below 0.1
in 99,999 of 100,000 cases."""

PayloadSample = npt.NDArray[np.float32]

NOTHING: PayloadSample = np.empty(0, np.float32)


@dataclass(frozen=True, slots=True, eq=False)
class ReceivedPass:
    """What a stage received of one microbatch in a round. `tokens` are [b, L + 1]; `activations` and `gradients` are
    the numbers at the places of `seed` (`places`), `NOTHING` where the stage has no such neighbour."""

    round: int
    stage: int
    compression: int
    """d / k of its group's frames."""
    tokens: npt.NDArray[np.int64]
    seed: int
    activations: PayloadSample
    gradients: PayloadSample


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
    )


def _sample(data: bytes, count: int) -> PayloadSample:
    if len(data) != 4 * count:
        raise FormatError(f"a spot check with a sample of {len(data)} bytes instead of {4 * count}")
    values = np.frombuffer(data, "<f4")
    if not np.all(np.abs(values) <= LARGEST):  # NaN is not, either
        raise FormatError("a spot check with a value that is not a number, or too large")
    return values
