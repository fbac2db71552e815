"""Bits, against a plain reference that sets one after another."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.codec.bitstream import Shorts, pack_fixed, pack_unary, packed_bytes, pieces, unpack_fixed, unpack_unary
from protocol.errors import FormatError

MOST = 4096


def plain(values: list[int], width: int) -> bytes:
    """Fields as the specification says it."""
    streams = b""
    for shift, bits in pieces(width):
        stream = bytearray((len(values) * bits + 7) // 8)
        for i, value in enumerate(values):
            piece = value >> shift & (1 << bits) - 1
            stream[i % len(stream)] |= piece << bits * (i // len(stream))
        streams += stream
    return streams


def unpacked(data: bytes, count: int, width: int) -> Shorts:
    """Fields with nothing above them."""
    values = np.zeros(count, np.uint16)
    unpack_fixed(data, width, values)
    return values


@given(st.integers(0, 16), st.data())
def test_fixed_fields(width: int, data: st.DataObject):
    values = data.draw(st.lists(st.integers(0, 2**width - 1), max_size=40))
    packed = pack_fixed(np.array(values, np.uint16), width)
    assert packed == plain(values, width)
    assert len(packed) == packed_bytes(len(values), width)
    assert unpacked(packed, len(values), width).tolist() == values


def test_a_field_is_cut_into_the_widest_pieces_from_below():
    assert pieces(0) == []
    assert pieces(6) == [(0, 4), (4, 2)]
    assert pieces(11) == [(0, 8), (8, 2), (10, 1)]


def test_fields_are_read_below_what_is_there():
    values = np.array([0x50, 0xFF0], np.uint16)
    unpack_fixed(pack_fixed(np.array([3, 9], np.uint16), 4), 4, values)
    assert values.tolist() == [0x53, 0xFF9]


def test_only_the_low_bits_of_a_field_are_packed():
    assert pack_fixed(np.array([0xFFF5], np.uint16), 4) == b"\x05"


@given(st.integers(1, 16), st.integers(0, 20), st.data())
def test_any_bytes_are_the_only_ones_of_their_fields_or_are_refused(width: int, count: int, data: st.DataObject):
    size = packed_bytes(count, width)
    packed = data.draw(st.binary(min_size=size, max_size=size))
    try:
        values = unpacked(packed, count, width)
    except FormatError:
        return
    assert pack_fixed(values, width) == packed


@given(st.lists(st.integers(0, 40), min_size=1), st.integers(0, 6))
def test_unary(values: list[int], shift: int):
    packed = pack_unary(np.array(values, np.uint16) << shift | (1 << shift) - 1, shift)
    bits = "".join("0" * value + "1" for value in values)
    bits += "0" * (-len(bits) % 8)
    assert packed == bytes(int(bits[i : i + 8][::-1], 2) for i in range(0, len(bits), 8))
    assert unpack_unary(packed, len(values), MOST >> shift, shift).tolist() == [value << shift for value in values]


@given(st.binary(max_size=8), st.integers(1, 20))
def test_any_bytes_are_the_only_ones_of_what_they_say_or_are_refused(data: bytes, count: int):
    try:
        values = unpack_unary(data, count, MOST, 0)
    except FormatError:
        return
    assert pack_unary(values, 0) == data


@pytest.mark.parametrize(("data", "count"), [(b"", 1), (b"\x00", 1), (b"\xff\xff", 8), (b"\x81", 1), (b"\x01\x00", 1)])
def test_too_few_or_too_many_bits_of_unary_are_refused(data: bytes, count: int):
    with pytest.raises(FormatError):
        unpack_unary(data, count, MOST, 0)


@given(st.integers(0, 64), st.integers(0, 200), st.integers(0, 6))
def test_no_unary_value_passes_that_is_far_above_the_most(most: int, value: int, shift: int):
    packed = pack_unary(np.array([0, value << shift], np.uint16), shift)
    try:
        assert unpack_unary(packed, 2, most, shift).tolist() == [0, value << shift]
    except FormatError:
        assert value > most
    else:
        assert value <= most + 14


@pytest.mark.parametrize("data", [b"", b"\x00\x00\x00", b"\x00\x10"])
def test_a_wrong_length_or_a_bit_behind_the_last_field_is_refused(data: bytes):
    with pytest.raises(FormatError):
        unpacked(data, 3, 3)
