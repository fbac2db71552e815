"""The frames of a pipeline: what one stage sends to its neighbour, checked once at the edge.

A frame takes as many messages as its tensor has pieces: the first says what it is and has the first piece.
A frame is refused before its tensor is touched unless its number format, shape, size, place and
embedding are exactly those that this stage expects next.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from protocol.codec.payloads import LARGEST, Payload
from protocol.errors import FormatError
from protocol.limits import CHUNK_BYTES
from protocol.manifest import Manifest
from protocol.schemas import pipeline_pb2 as pb
from protocol.tensor_formats import FORMATS

MOST_IN_FLIGHT = 4
"""The most microbatches in flight at a stage, for each stage of the pipeline: they hold memory, here and at the stage
behind. At 4, links may take three times what the passes do, and no pass waits."""


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

    place: FramePosition
    activations: bytes
    tokens: npt.NDArray[np.int64]
    embedding_digest: str


@dataclass(frozen=True, slots=True)
class BackwardFrame:
    """Gradients [b, L, width] in wire format."""

    place: FramePosition
    gradients: bytes


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

    def check_tokens(self, data: bytes, place: FramePosition) -> npt.NDArray[np.int64]:
        """Check the bytes of a frame's token ids. Returns the ids [b, L + 1].

        Raises:
            FormatError: another size, or an id outside the vocabulary.
        """
        expected = 4 * self.sequences * (self.context + 1)
        if len(data) != expected:
            raise FormatError(f"frame of {place}: {len(data)} bytes of token ids, expected {expected}")
        tokens = np.frombuffer(data, "<u4").reshape(self.sequences, self.context + 1)
        if int(tokens.max()) >= self.vocabulary:
            raise FormatError(f"frame of {place}: token id {tokens.max()} of {self.vocabulary}")
        return tokens.astype(np.int64)


def check_tensor(tensor: pb.Tensor, rest: Sequence[pb.Frame], expected: Payload, place: FramePosition) -> bytes:
    """Check a neighbour's tensor; `rest` are the messages behind the first. Returns its bytes.

    Raises:
        FormatError: another number format, shape or size than the manifest's, or a value that is too large or none.
    """
    if tensor.format != FORMATS[expected.wire].frame:
        raise FormatError(f"frame of {place}: number format {tensor.format}, the run's is {expected.wire}")
    if len(tensor.shape) != len(expected.shape) or tuple(tensor.shape) != expected.shape:
        raise FormatError(f"frame of {place}: shape {tensor.shape[:8]}, expected {list(expected.shape)}")
    pieces = [tensor.data, *(each.rest for each in rest)]
    if any(len(piece) != CHUNK_BYTES for piece in pieces[:-1]):
        raise FormatError(f"frame of {place}: a piece of its tensor has not {CHUNK_BYTES} bytes")
    data = b"".join(pieces) if rest else tensor.data
    if len(data) != expected.size:
        raise FormatError(f"frame of {place}: {len(data)} bytes of tensor, expected {expected.size}")
    if not expected.in_range(data):
        raise FormatError(f"frame of {place}: a value is not a number, or beyond ±{LARGEST:.0f}")
    return data


def pack_frame(frame: ForwardFrame | BackwardFrame, rules: FrameRules) -> list[pb.Frame]:
    """Split a frame into the `Payload.messages` messages that go over the wire."""
    place = pb.Place(round=frame.place.round, step=frame.place.step, microbatch=frame.place.microbatch)
    if isinstance(frame, BackwardFrame):
        data, head = frame.gradients, pb.Frame(backward=pb.Backward(place=place))
        head.backward.gradients.CopyFrom(_tensor(data, rules.gradients))
    else:
        data, tokens = frame.activations, frame.tokens.astype("<u4").tobytes()
        forward = pb.Forward(place=place, tokens=tokens, embedding_digest=bytes.fromhex(frame.embedding_digest))
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
