"""Frames: what a stage accepts from its neighbour, and what it refuses."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from protocol.codec.frames import (
    LARGEST_IN_FRAME,
    BackwardFrame,
    EndFrame,
    ForwardFrame,
    FramePosition,
    FrameRules,
    Payload,
    SumsFrame,
    pack_end,
    pack_frame,
    pack_sums,
    unpack_backward,
    unpack_end,
    unpack_forward,
    unpack_sums,
)
from protocol.errors import FormatError
from protocol.limits import CHUNK_BYTES
from protocol.schemas import pipeline_pb2 as pb
from tests.reference.small_manifest import small_manifest

RULES = FrameRules(Payload("bf16", 2, 4, 3), Payload("bf16", 2, 4, 3), vocabulary=300)
PLACE = FramePosition(round=1, step=2, microbatch=3)
DIGEST = "cd" * 32
TOKENS = np.arange(10, dtype=np.int64).reshape(2, 5) + 290
PAYLOAD = bytes(range(48))


def forward() -> list[pb.Frame]:
    return pack_frame(ForwardFrame(PLACE, PAYLOAD, TOKENS, DIGEST), RULES)


def test_a_forward_frame_round_trips_with_token_ids_as_integers():
    frame = unpack_forward(forward(), RULES, PLACE, DIGEST)
    assert frame.activations == PAYLOAD
    assert (frame.tokens == TOKENS).all()
    assert frame.tokens.dtype == np.int64


def test_a_backward_frame_round_trips():
    message = pack_frame(BackwardFrame(PLACE, PAYLOAD), RULES)
    assert unpack_backward(message, RULES, PLACE) == BackwardFrame(PLACE, PAYLOAD)


LARGE = FrameRules(Payload("bf16", 4, 128, 300), Payload("bf16", 4, 128, 300), vocabulary=300)


def test_a_large_tensor_goes_in_pieces_that_together_are_it():
    data = np.random.default_rng(0).integers(0, 0x3F00, LARGE.gradients.size // 2).astype("<u2").tobytes()
    messages = pack_frame(BackwardFrame(PLACE, data), LARGE)
    assert len(messages) == LARGE.gradients.messages == 2
    assert max(message.ByteSize() for message in messages) < CHUNK_BYTES + 64
    assert unpack_backward(messages, LARGE, PLACE) == BackwardFrame(PLACE, data)


@pytest.mark.parametrize("change", [lambda data: data[:-2], lambda data: data + b"00", lambda data: b""])
@pytest.mark.parametrize("which", [0, 1])
def test_a_piece_of_another_length_is_refused(which: int, change: Callable[[bytes], bytes]):
    messages = pack_frame(BackwardFrame(PLACE, bytes(LARGE.gradients.size)), LARGE)
    if which:
        messages[1].rest = change(messages[1].rest)
    else:
        messages[0].backward.gradients.data = change(messages[0].backward.gradients.data)
    with pytest.raises(FormatError, match=r"a piece of its tensor has not|bytes of tensor, expected"):
        unpack_backward(messages, LARGE, PLACE)


def test_another_frame_is_no_piece_of_this_one():
    messages = pack_frame(BackwardFrame(PLACE, bytes(LARGE.gradients.size)), LARGE)
    with pytest.raises(FormatError):
        unpack_backward([messages[0], messages[0]], LARGE, PLACE)
    with pytest.raises(FormatError):
        unpack_backward([messages[1], messages[1]], LARGE, PLACE)


def damage_format(frame: pb.Frame) -> None:
    frame.forward.activations.format = pb.Format.FP32


def damage_shape(frame: pb.Frame) -> None:
    frame.forward.activations.shape[0] = 2**31


def damage_size(frame: pb.Frame) -> None:
    frame.forward.activations.data = PAYLOAD[:-1]


def damage_place(frame: pb.Frame) -> None:
    frame.forward.place.step = 7


def damage_round(frame: pb.Frame) -> None:
    frame.forward.place.round = 9


def damage_embedding(frame: pb.Frame) -> None:
    frame.forward.embedding_digest = b"\0" * 32


def damage_token_count(frame: pb.Frame) -> None:
    frame.forward.tokens = frame.forward.tokens[:-4]


def damage_token_range(frame: pb.Frame) -> None:
    frame.forward.tokens = np.full((2, 5), 300, "<u4").tobytes()


def damage_kind(frame: pb.Frame) -> None:
    frame.backward.gradients.data = b""


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (damage_format, "number format"),
        (damage_shape, "shape"),
        (damage_size, "47 bytes of tensor, expected 48"),
        (damage_place, "expected the frame of round 1, step 2, microbatch 3, got that of round 1, step 7"),
        (damage_round, "got that of round 9"),
        (damage_embedding, "was made with the token embedding 000000000000"),
        (damage_token_count, "36 bytes of token ids, expected 40"),
        (damage_token_range, "token id 300 of 300"),
        (damage_kind, "expected the forward frame"),
    ],
)
def test_a_frame_that_is_not_the_one_due_is_refused_in_words(damage, words: str):
    frame = forward()
    damage(frame[0])
    with pytest.raises(FormatError, match=words):
        unpack_forward(frame, RULES, PLACE, DIGEST)


def test_an_empty_message_is_refused():
    with pytest.raises(FormatError):
        unpack_forward([pb.Frame()], RULES, PLACE, DIGEST)
    with pytest.raises(FormatError):
        unpack_backward([pb.Frame()], RULES, PLACE)


@pytest.mark.parametrize(
    ("wire", "dtype"),
    [("bf16", torch.bfloat16), ("fp32", torch.float32)],
)
@given(value=st.floats(width=32))
def test_a_value_is_in_range_if_it_is_a_number_that_fp16_could_hold(wire: str, dtype: torch.dtype, value: float):
    payload = Payload(wire, 1, 2, 1)
    values = torch.tensor([0.5, value]).to(dtype)
    assert payload.in_range(values.view(torch.uint8).numpy().tobytes()) == bool(
        (values.float().abs() <= LARGEST_IN_FRAME).all()
    )


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), 3.3e38, -70000.0])
def test_a_frame_with_a_value_that_would_overflow_is_refused(value: float):
    values = torch.zeros(RULES.gradients.shape)
    values.view(-1)[-1] = value  # one of many
    hostile = values.to(torch.bfloat16).view(torch.uint8).numpy().tobytes()
    with pytest.raises(FormatError, match="a value is not a number, or beyond ±65504"):
        unpack_backward(pack_frame(BackwardFrame(PLACE, hostile), RULES), RULES, PLACE)
    message = pack_frame(ForwardFrame(PLACE, hostile, TOKENS, DIGEST), RULES)
    with pytest.raises(FormatError, match="a value is not a number, or beyond ±65504"):
        unpack_forward(message, RULES, PLACE, DIGEST)


@pytest.mark.parametrize(("forward", "backward"), [("int4", "bf16"), ("fp32", "int8"), ("int8", "int4")])
def test_activations_and_gradients_have_each_their_own_format(forward: str, backward: str):
    rules = FrameRules(Payload(forward, 2, 4, 3), Payload(backward, 2, 4, 3), vocabulary=300)
    ahead = pack_frame(ForwardFrame(PLACE, bytes(rules.activations.size), TOKENS, DIGEST), rules)
    back = pack_frame(BackwardFrame(PLACE, bytes(rules.gradients.size)), rules)
    assert unpack_forward(ahead, rules, PLACE, DIGEST).activations == bytes(rules.activations.size)
    assert unpack_backward(back, rules, PLACE).gradients == bytes(rules.gradients.size)
    swapped = FrameRules(rules.gradients, rules.activations, vocabulary=300)
    with pytest.raises(FormatError, match="number format"):
        unpack_backward(back, swapped, PLACE)
    with pytest.raises(FormatError, match="number format"):
        unpack_forward(ahead, swapped, PLACE, DIGEST)


@pytest.mark.parametrize("given", ["bf16", "fp32", "int8", "int4"])
def test_a_manifest_names_both_formats_or_one(given: str):
    same = FrameRules.of(small_manifest(replicas={"wire": given}))
    mixed = FrameRules.of(small_manifest(replicas={"gradient_wire": given}))
    assert (same.activations.wire, same.gradients.wire) == (given, given)
    assert (mixed.activations.wire, mixed.gradients.wire) == ("bf16", given)


SUMS = SumsFrame((4.0, 9.0, 0.0), (0.5, 0.0, 0.25), 6.5)


def test_what_stages_tell_of_a_step_round_trips():
    assert unpack_sums(pack_sums(2, 0, SUMS), 2, 0, 3) == SUMS
    for end in (EndFrame(0.25, False), EndFrame(1.0, True), EndFrame(1.0, False, (4.0, 9.0, 0.0))):
        assert unpack_end(pack_end(2, 0, end), 2, 0, 3) == end


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (pack_end(2, 0, EndFrame(1.0, False)), "expected the sums of round 2, step 0, got end"),
        (pb.Frame(), "got None"),
        (pack_sums(2, 1, SUMS), "got that of 2, 1"),
        (pack_sums(1, 0, SUMS), "got that of 1, 0"),
        (pack_sums(2, 0, SumsFrame((4.0, 9.0), (0.5, 0.0), 6.5)), "2 norms and 2 times, of 3 stages"),
        (pack_sums(2, 0, SumsFrame((4.0, 9.0, 1.0), (0.5, 0.0), 6.5)), "3 norms and 2 times"),
        (pack_sums(2, 0, SumsFrame((4.0, -9.0, 1.0), SUMS.passes, 6.5)), "no numbers"),
        (pack_sums(2, 0, SumsFrame((4.0, float("nan"), 1.0), SUMS.passes, 6.5)), "no numbers"),
        (pack_sums(2, 0, SumsFrame((4.0, 1e81, 1.0), SUMS.passes, 6.5)), "no numbers"),
        (pack_sums(2, 0, SumsFrame(SUMS.squared_norms, SUMS.passes, float("inf"))), "no numbers"),
        (pack_sums(2, 0, SumsFrame(SUMS.squared_norms, (0.5, -1.0, 0.0), 6.5)), "no time there is"),
        (pack_sums(2, 0, SumsFrame(SUMS.squared_norms, (0.5, float("inf"), 0.0), 6.5)), "no time there is"),
    ],
)
def test_sums_that_cannot_be_are_refused(message: pb.Frame, words: str):
    with pytest.raises(FormatError, match=words):
        unpack_sums(message, 2, 0, 3)


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (pack_sums(2, 0, SUMS), "expected the end of round 2, step 0, got sums"),
        (pack_end(2, 1, EndFrame(1.0, False)), "got that of 2, 1"),
        (pack_end(3, 0, EndFrame(1.0, False)), "got that of 3, 0"),
        (pack_end(2, 0, EndFrame(0.0, False)), "no clip factor"),
        (pack_end(2, 0, EndFrame(1.5, False)), "no clip factor"),
        (pack_end(2, 0, EndFrame(float("nan"), False)), "no clip factor"),
        (pack_end(2, 0, EndFrame(1.0, False, (4.0, 9.0))), "2 norms of 3 stages"),
        (pack_end(2, 0, EndFrame(1.0, False, (4.0, 9.0, 0.0, 0.0))), "4 norms of 3 stages"),
        (pack_end(2, 0, EndFrame(1.0, False, (4.0, -9.0, 0.0))), "or no numbers"),
        (pack_end(2, 0, EndFrame(1.0, False, (4.0, float("nan"), 0.0))), "or no numbers"),
        (pack_end(2, 0, EndFrame(1.0, False, (4.0, 1e81, 0.0))), "or no numbers"),
    ],
)
def test_an_end_that_cannot_be_is_refused(message: pb.Frame, words: str):
    with pytest.raises(FormatError, match=words):
        unpack_end(message, 2, 0, 3)
