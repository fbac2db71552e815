"""The frames of a pipeline: what one stage sends to its neighbour, checked once at the edge.

A frame takes as many messages as its tensor has pieces: the first says what it is and has the first piece.
A frame is refused before its tensor is touched unless its number format, shape, size, place and
embedding are exactly those that this stage expects next.

A tensor is in one of four number formats. Floats are IEEE float32 or its upper half. Integers have 8 or 4 bits: numbers
of cells of one width, with a scale for each token, its root mean square in bf16. A value is (cell + ½) · step · scale,
and the step is that of the uniform quantizer of least squared error for a normal distribution (Max, 1960), which
coordinates in a random basis nearly have.

    a token in int8:  scale (2 bytes) · cell + 128 (a byte each)
    a token in int4:  scale (2 bytes) · cell + 8, two in a byte, the first in its lower half
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from protocol.errors import FormatError
from protocol.limits import CHUNK_BYTES
from protocol.manifest import Manifest
from protocol.schemas import pipeline_pb2 as pb
from protocol.tensor_formats import FORMATS

MOST_IN_FLIGHT = 4
"""The most microbatches in flight at a stage, for each stage of the pipeline: they hold memory, here and at the stage
behind. At 4, links may take three times what the passes do, and no pass waits."""

MOST_SQUARED_NORM = 1e80
"""Norms are of float32, whose largest is 3.4 · 10³⁸; sums of such squares stay numbers."""

SCALE_BYTES = 2

LARGEST_IN_FRAME = 65504.0
"""The largest value in a frame: fp16's largest. Models of this kind are trained in half precision, so activations and
gradients keep well within it, while a number near bf16's largest, 3 · 10³⁸, overflows in the first sum of squares it
meets."""


@dataclass(frozen=True, slots=True)
class Payload:
    """Activations or gradients of a microbatch: `sequences` × `context` tokens of `width` values in a format."""

    wire: str
    sequences: int
    context: int
    width: int

    @property
    def shape(self) -> tuple[int, int, int]:
        """[b, L, k]."""
        return self.sequences, self.context, self.width

    @property
    def scaled(self) -> bool:
        """Whether values are integers, with a scale for each token."""
        return FORMATS[self.wire].step > 0.0

    @property
    def token_bytes(self) -> int:
        """The size of one token in bytes."""
        packed = -(-self.width * FORMATS[self.wire].bits // 8)
        return SCALE_BYTES + packed if self.scaled else packed

    @property
    def size(self) -> int:
        """The size of the whole tensor in bytes."""
        return self.sequences * self.context * self.token_bytes

    @property
    def messages(self) -> int:
        """The number of messages that a frame takes."""
        return -(-self.size // CHUNK_BYTES)

    def in_range(self, data: bytes) -> bool:
        """Whether all values are numbers within ±`LARGEST_IN_FRAME`. Without its sign, a float's bits grow with it, and
        the bits of infinity and of NaN are above all others."""
        if not self.scaled:
            return _in_range(data, self.wire, LARGEST_IN_FRAME)
        rows = np.frombuffer(data, np.uint8).reshape(-1, self.token_bytes)
        half = 1 << (FORMATS[self.wire].bits - 1)
        scales = rows[:, :SCALE_BYTES].tobytes()
        padding = self.wire == "int4" and self.width % 2 == 1 and bool((rows[:, -1] >> 4).any())
        return not padding and _in_range(scales, "bf16", LARGEST_IN_FRAME / (half * FORMATS[self.wire].step))


def _in_range(data: bytes, wire: str, largest: float) -> bool:
    bits = FORMATS[wire].bits
    word = f"<u{bits // 8}"
    unsigned = np.frombuffer(data, word) & np.array((1 << bits - 1) - 1, word)
    bound = int(np.array(largest, "<f4").view("<u4")) >> (32 - bits)
    return int(unsigned.max()) <= bound


@dataclass(frozen=True, slots=True)
class FramePosition:
    """The microbatch that a frame is of: rounds count from 1, steps and microbatches from 0."""

    round: int
    step: int
    microbatch: int

    def __str__(self) -> str:
        return f"round {self.round}, step {self.step}, microbatch {self.microbatch}"


@dataclass(frozen=True, slots=True)
class ForwardFrame:
    """Activations [b, L, width] in wire format, with the token ids [b, L + 1] they came from."""

    position: FramePosition
    activations: bytes
    tokens: npt.NDArray[np.int64]
    embedding_digest: str


@dataclass(frozen=True, slots=True)
class BackwardFrame:
    """Gradients [b, L, width] in wire format."""

    position: FramePosition
    gradients: bytes


@dataclass(frozen=True, slots=True)
class SumsFrame:
    """The knowledge of a stage and all stages behind it of an inner step whose backward passes are done; in the tuples
    the stage itself comes first."""

    squared_norms: tuple[float, ...]
    """Σ g² of each stage's gradients."""
    passes: tuple[float, ...]
    """Seconds that each stage's own passes of a microbatch took."""
    loss: float
    """Mean over the step's microbatches, in nats a token; the last stage's."""


@dataclass(frozen=True, slots=True)
class EndFrame:
    """The first stage's word that an inner step is complete. `last`: no other follows in the round."""

    clip_factor: float
    last: bool
    before: tuple[float, ...] = ()
    """Σ g² of each stage's gradients in the step before, where stages clip by each other's and there was one."""


@dataclass(frozen=True, slots=True)
class FrameRules:
    """The rules for every frame of a run's pipelines: number formats, shapes and vocabulary."""

    activations: Payload
    gradients: Payload
    vocabulary: int

    @staticmethod
    def of(manifest: Manifest) -> "FrameRules":
        sizes = manifest.inner.microbatch, manifest.model.context, manifest.k
        forward, backward = (Payload(wire, *sizes) for wire in manifest.replicas.wires)
        return FrameRules(forward, backward, manifest.model.vocabulary)

    @property
    def sequences(self) -> int:
        """The number of sequences in a microbatch."""
        return self.activations.sequences

    @property
    def context(self) -> int:
        """The number of tokens in a sequence: L."""
        return self.activations.context

    def check_tokens(self, data: bytes, position: FramePosition) -> npt.NDArray[np.int64]:
        """Check the bytes of a frame's token ids. Returns the ids [b, L + 1].

        Raises:
            FormatError: another size, or an id outside the vocabulary.
        """
        expected = 4 * self.sequences * (self.context + 1)
        if len(data) != expected:
            raise FormatError(f"frame of {position}: {len(data)} bytes of token ids, expected {expected}")
        tokens = np.frombuffer(data, "<u4").reshape(self.sequences, self.context + 1)
        if int(tokens.max()) >= self.vocabulary:
            raise FormatError(f"frame of {position}: token id {tokens.max()} of {self.vocabulary}")
        return tokens.astype(np.int64)


def check_tensor(tensor: pb.Tensor, rest: Sequence[pb.Frame], expected: Payload, position: FramePosition) -> bytes:
    """Check a neighbour's tensor; `rest` are the messages behind the first. Returns its bytes.

    Raises:
        FormatError: another number format, shape or size than the manifest's, or a value that is too large or none.
    """
    if tensor.format != FORMATS[expected.wire].frame:
        raise FormatError(f"frame of {position}: number format {tensor.format}, the run's is {expected.wire}")
    if len(tensor.shape) != len(expected.shape) or tuple(tensor.shape) != expected.shape:
        raise FormatError(f"frame of {position}: shape {tensor.shape[:8]}, expected {list(expected.shape)}")
    pieces = [tensor.data, *(extra.rest for extra in rest)]
    if any(len(piece) != CHUNK_BYTES for piece in pieces[:-1]):
        raise FormatError(f"frame of {position}: a piece of its tensor has not {CHUNK_BYTES} bytes")
    data = b"".join(pieces) if rest else tensor.data
    if len(data) != expected.size:
        raise FormatError(f"frame of {position}: {len(data)} bytes of tensor, expected {expected.size}")
    if not expected.in_range(data):
        raise FormatError(f"frame of {position}: a value is not a number, or beyond ±{LARGEST_IN_FRAME:.0f}")
    return data


def pack_frame(frame: ForwardFrame | BackwardFrame, rules: FrameRules) -> list[pb.Frame]:
    """Split a frame into the `Payload.messages` messages that go over the wire."""
    position_message = pb.Place(
        round=frame.position.round, step=frame.position.step, microbatch=frame.position.microbatch
    )
    if isinstance(frame, BackwardFrame):
        data, head = frame.gradients, pb.Frame(backward=pb.Backward(place=position_message))
        head.backward.gradients.CopyFrom(_tensor(data, rules.gradients))
    else:
        data, tokens = frame.activations, frame.tokens.astype("<u4").tobytes()
        forward = pb.Forward(
            place=position_message, tokens=tokens, embedding_digest=bytes.fromhex(frame.embedding_digest)
        )
        head = pb.Frame(forward=forward)
        head.forward.activations.CopyFrom(_tensor(data, rules.activations))
    rest = range(CHUNK_BYTES, len(data), CHUNK_BYTES)
    return [head, *(pb.Frame(rest=data[at : at + CHUNK_BYTES]) for at in rest)]


def _tensor(data: bytes, payload: Payload) -> pb.Tensor:
    """The first message's tensor, of what our own torch thread made."""
    return pb.Tensor(format=pb.Format.Name(FORMATS[payload.wire].frame), shape=payload.shape, data=data[:CHUNK_BYTES])


def unpack_forward(
    messages: Sequence[pb.Frame], rules: FrameRules, expected: FramePosition, embedding: str
) -> ForwardFrame:
    """Check a frame from the stage before this one: `Payload.messages` messages.

    Raises:
        FormatError: it is not the forward frame of `expected`, or was made with another embedding.
    """
    head, *rest = messages
    if head.WhichOneof("kind") != "forward":
        raise FormatError(f"expected the forward frame of {expected}, got {head.WhichOneof('kind')}")
    forward = head.forward
    check_place(forward.place, expected)
    if forward.embedding_digest != bytes.fromhex(embedding):
        raise FormatError(
            f"frame of {expected} was made with the token embedding {forward.embedding_digest[:6].hex()}, "
            f"ours is {embedding[:12]}"
        )
    return ForwardFrame(
        expected,
        check_tensor(forward.activations, rest, rules.activations, expected),
        rules.check_tokens(forward.tokens, expected),
        embedding,
    )


def unpack_backward(messages: Sequence[pb.Frame], rules: FrameRules, expected: FramePosition) -> BackwardFrame:
    """Check a frame from the stage behind this one: `Payload.messages` messages.

    Raises:
        FormatError: it is not the backward frame of `expected`.
    """
    head, *rest = messages
    if head.WhichOneof("kind") != "backward":
        raise FormatError(f"expected the backward frame of {expected}, got {head.WhichOneof('kind')}")
    check_place(head.backward.place, expected)
    return BackwardFrame(expected, check_tensor(head.backward.gradients, rest, rules.gradients, expected))


def check_place(place: pb.Place, expected: FramePosition) -> None:
    """Check that a frame is the one due: frames come in order, and anything else is an error of the sender.

    Raises:
        FormatError: another microbatch than the one due.
    """
    got = FramePosition(place.round, place.step, place.microbatch)
    if got != expected:
        raise FormatError(f"expected the frame of {expected}, got that of {got}")


def pack_doubt(position: FramePosition) -> pb.Frame:
    """The message that has the rest of the group check what each received of a microbatch."""
    return pb.Frame(doubt=pb.Place(round=position.round, step=position.step, microbatch=position.microbatch))


def pack_sums(round: int, step: int, sums: SumsFrame) -> pb.Frame:
    """The message that tells the stage before of an inner step."""
    told = pb.StepSums(round=round, step=step, loss=sums.loss, passes=sums.passes)
    told.squared_norms.extend(sums.squared_norms)
    return pb.Frame(sums=told)


def unpack_sums(message: pb.Frame, round: int, step: int, stages: int) -> SumsFrame:
    """Check what the stage behind tells of an inner step: its own numbers, and those of all `stages` from it on.

    Raises:
        FormatError: it is of another step, or of more or fewer stages, or has a number that cannot be.
    """
    _check_step(message, "sums", round, step)
    sums = message.sums
    if not len(sums.squared_norms) == len(sums.passes) == stages:
        raise FormatError(
            f"sums of round {round}, step {step}: {len(sums.squared_norms)} norms and {len(sums.passes)} times, "
            f"of {stages} stages"
        )
    if not (all(0.0 <= value <= MOST_SQUARED_NORM for value in sums.squared_norms) and math.isfinite(sums.loss)):
        raise FormatError(f"sums of round {round}, step {step}: norms, or a loss, that are no numbers")
    if not all(0.0 <= value < math.inf for value in sums.passes):
        raise FormatError(f"sums of round {round}, step {step}: passes that took no time there is")
    return SumsFrame(tuple(sums.squared_norms), tuple(sums.passes), sums.loss)


def pack_end(round: int, step: int, end: EndFrame) -> pb.Frame:
    """The message that tells the stage behind that an inner step is complete."""
    told = pb.StepEnd(round=round, step=step, clip_factor=end.clip_factor, last=end.last, squared_norms=end.before)
    return pb.Frame(end=told)


def unpack_end(message: pb.Frame, round: int, step: int, stages: int) -> EndFrame:
    """Check the first stage's word that an inner step of `stages` stages is complete, which the stage before has passed
    on.

    Raises:
        FormatError: it is of another step, its clip factor is none, or it has norms of more or fewer stages, or none
            that can be.
    """
    _check_step(message, "end", round, step)
    if not 0.0 < message.end.clip_factor <= 1.0:
        raise FormatError(f"end of round {round}, step {step}: no clip factor from 0 to 1")
    before = tuple(message.end.squared_norms)
    if len(before) not in (0, stages) or not all(0.0 <= square <= MOST_SQUARED_NORM for square in before):
        raise FormatError(f"end of round {round}, step {step}: {len(before)} norms of {stages} stages, or no numbers")
    return EndFrame(message.end.clip_factor, message.end.last, before)


def _check_step(message: pb.Frame, kind: Literal["sums", "end"], round: int, step: int) -> None:
    """Check that a message is the one due behind the frames of an inner step."""
    if message.WhichOneof("kind") != kind:
        raise FormatError(f"expected the {kind} of round {round}, step {step}, got {message.WhichOneof('kind')}")
    told = message.sums if kind == "sums" else message.end
    if (told.round, told.step) != (round, step):
        raise FormatError(f"expected the {kind} of round {round}, step {step}, got that of {told.round}, {told.step}")
