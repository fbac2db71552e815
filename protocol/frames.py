"""The frames of a pipeline: what one stage sends to its neighbour, checked once at the edge.

A frame takes as many messages as its tensor has pieces: the first says what it is and has the first piece.
A frame is refused before its tensor is touched unless its number format, shape, size, place and
embedding are exactly those that this stage expects next.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from protocol.errors import FormatError
from protocol.limits import CHUNK_BYTES
from protocol.manifest import Manifest
from protocol.schemas import pipeline_pb2 as pb

LARGEST = 65504.0
"""Of a frame's values: fp16's largest. Models of this kind are trained in half precision, so activations and gradients
keep well within it, while a number near bf16's largest, 3 · 10³⁸, overflows in the first sum of squares it meets."""

MOST_IN_FLIGHT = 4
"""Microbatches in flight at a stage, for each stage there is, at most: they hold memory, here and at the stage behind.
At 4, links may take three times what the passes do, and no pass waits."""

FORMATS = {"bf16": pb.Format.BF16, "fp32": pb.Format.FP32}
BYTES_PER_VALUE = {"bf16": 2, "fp32": 4}

_WORDS = {"bf16": "<u2", "fp32": "<u4"}
_SIGN = {"bf16": 0x8000, "fp32": 0x8000_0000}


@dataclass(frozen=True, slots=True)
class Place:
    """Which microbatch of the run: rounds count from 1, steps and microbatches from 0."""

    round: int
    step: int
    microbatch: int

    def __str__(self) -> str:
        return f"round {self.round}, step {self.step}, microbatch {self.microbatch}"


@dataclass(frozen=True, slots=True)
class ForwardFrame:
    """Activations [b, L, width] in wire format, with the token ids [b, L + 1] they came from."""

    place: Place
    activations: bytes
    tokens: npt.NDArray[np.int64]
    embedding_digest: str


@dataclass(frozen=True, slots=True)
class BackwardFrame:
    """Gradients [b, L, width] in wire format."""

    place: Place
    gradients: bytes


@dataclass(frozen=True, slots=True)
class FrameRules:
    """What every frame of a run's pipelines looks like."""

    wire: str
    sequences: int
    context: int
    width: int
    vocabulary: int

    @staticmethod
    def of(manifest: Manifest) -> "FrameRules":
        return FrameRules(
            wire=manifest.replicas.wire,
            sequences=manifest.inner.microbatch,
            context=manifest.model.context,
            width=manifest.k,
            vocabulary=manifest.model.vocabulary,
        )

    @property
    def shape(self) -> tuple[int, int, int]:
        """[b, L, k] of activations and gradients."""
        return self.sequences, self.context, self.width

    @property
    def tensor_bytes(self) -> int:
        """Of activations, and of gradients."""
        return self.sequences * self.context * self.width * BYTES_PER_VALUE[self.wire]

    @property
    def messages(self) -> int:
        """Of one frame."""
        return -(-self.tensor_bytes // CHUNK_BYTES)

    def tensor(self, data: bytes) -> pb.Tensor:
        """Wrap the first piece of wire bytes that our own torch thread made."""
        return pb.Tensor(format=FORMATS[self.wire], shape=self.shape, data=data[:CHUNK_BYTES])

    def check_tensor(self, tensor: pb.Tensor, rest: Sequence[pb.Frame], place: Place) -> bytes:
        """The bytes of a neighbour's tensor; `rest` are the messages behind the first.

        Raises:
            FormatError: another number format, shape or size than the manifest's, or a value that is too large or no
                number.
        """
        if tensor.format != FORMATS[self.wire]:
            raise FormatError(f"frame of {place}: number format {tensor.format}, the run's is {self.wire}")
        if len(tensor.shape) != len(self.shape) or tuple(tensor.shape) != self.shape:
            raise FormatError(f"frame of {place}: shape {tensor.shape[:8]}, expected {list(self.shape)}")
        pieces = [tensor.data, *(each.rest for each in rest)]
        if any(len(piece) != CHUNK_BYTES for piece in pieces[:-1]):
            raise FormatError(f"frame of {place}: a piece of its tensor has not {CHUNK_BYTES} bytes")
        data = b"".join(pieces) if rest else tensor.data
        if len(data) != self.tensor_bytes:
            raise FormatError(f"frame of {place}: {len(data)} bytes of tensor, expected {self.tensor_bytes}")
        if not self.in_range(data):
            raise FormatError(f"frame of {place}: a value is not a number, or beyond ±{LARGEST:.0f}")
        return data

    def in_range(self, data: bytes) -> bool:
        """Whether all values are numbers within ±`LARGEST`. Without its sign, a float's bits grow with it, and those of
        infinity and of what is no number are above all others."""
        bits = np.frombuffer(data, _WORDS[self.wire]) & np.array(_SIGN[self.wire] - 1, _WORDS[self.wire])
        largest = int(np.array(LARGEST, "<f4").view("<u4")) >> (16 if self.wire == "bf16" else 0)
        return int(bits.max()) <= largest

    def check_tokens(self, data: bytes, place: Place) -> npt.NDArray[np.int64]:
        """Token ids [b, L + 1].

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


def pack(frame: ForwardFrame | BackwardFrame, rules: FrameRules) -> list[pb.Frame]:
    """A frame as it goes on the wire: `FrameRules.messages` of them."""
    data = frame.gradients if isinstance(frame, BackwardFrame) else frame.activations
    rest = range(CHUNK_BYTES, len(data), CHUNK_BYTES)
    return [_head(frame, rules), *(pb.Frame(rest=data[at : at + CHUNK_BYTES]) for at in rest)]


def _head(frame: ForwardFrame | BackwardFrame, rules: FrameRules) -> pb.Frame:
    place = pb.Place(round=frame.place.round, step=frame.place.step, microbatch=frame.place.microbatch)
    if isinstance(frame, BackwardFrame):
        return pb.Frame(backward=pb.Backward(place=place, gradients=rules.tensor(frame.gradients)))
    return pb.Frame(
        forward=pb.Forward(
            place=place,
            activations=rules.tensor(frame.activations),
            tokens=frame.tokens.astype("<u4").tobytes(),
            embedding_digest=bytes.fromhex(frame.embedding_digest),
        )
    )


def unpack_forward(messages: Sequence[pb.Frame], rules: FrameRules, expected: Place, embedding: str) -> ForwardFrame:
    """Check what the stage before us sent: `FrameRules.messages` of them.

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
        rules.check_tensor(forward.activations, rest, expected),
        rules.check_tokens(forward.tokens, expected),
        embedding,
    )


def unpack_backward(messages: Sequence[pb.Frame], rules: FrameRules, expected: Place) -> BackwardFrame:
    """Check what the stage behind us sent: `FrameRules.messages` of them.

    Raises:
        FormatError: it is not the backward frame of `expected`.
    """
    head, *rest = messages
    if head.WhichOneof("kind") != "backward":
        raise FormatError(f"expected the backward frame of {expected}, got {head.WhichOneof('kind')}")
    check_place(head.backward.place, expected)
    return BackwardFrame(expected, rules.check_tensor(head.backward.gradients, rest, expected))


def check_place(place: pb.Place, expected: Place) -> None:
    """Frames come in order; anything else is an error of the sender.

    Raises:
        FormatError: another microbatch than the one due.
    """
    got = Place(place.round, place.step, place.microbatch)
    if got != expected:
        raise FormatError(f"expected the frame of {expected}, got that of {got}")
