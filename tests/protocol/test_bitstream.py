"""Bits, against strings of ones and zeros."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.bitstream import pack_fixed, pack_unary, unpack_fixed, unpack_unary
from protocol.errors import FormatError


def as_bytes(bits: str) -> bytes:
    """The plain reference: a text of bits, filled up with zeros."""
    bits += "0" * (-len(bits) % 8)
    return bytes(int(bits[i : i + 8], 2) for i in range(0, len(bits), 8))


@given(st.integers(0, 32), st.data())
def test_fixed_fields(width: int, data: st.DataObject):
    values = data.draw(st.lists(st.integers(0, 2**width - 1)))
    packed = pack_fixed(np.array(values, np.int64), width)
    assert packed == as_bytes("".join(f"{value:0{width}b}" if width else "" for value in values))
    assert unpack_fixed(packed, len(values), width).tolist() == values


@given(st.lists(st.integers(0, 40), min_size=1))
def test_unary(values: list[int]):
    packed = pack_unary(np.array(values, np.int64))
    assert packed == as_bytes("".join("1" * value + "0" for value in values))
    assert unpack_unary(packed, len(values)).tolist() == values


@given(st.binary(max_size=8), st.integers(1, 20))
def test_any_bytes_are_the_only_ones_of_what_they_say_or_are_refused(data: bytes, count: int):
    try:
        values = unpack_unary(data, count)
    except FormatError:
        return
    assert pack_unary(values) == data


@pytest.mark.parametrize(("data", "count"), [(b"", 1), (b"\xff", 1), (b"\x00\x00", 8), (b"\x81", 1)])
def test_too_few_or_too_many_bits_of_unary_are_refused(data: bytes, count: int):
    with pytest.raises(FormatError):
        unpack_unary(data, count)


@pytest.mark.parametrize("data", [b"", b"\x00\x00", b"\x01"])
def test_a_wrong_length_or_a_bit_behind_the_last_field_is_refused(data: bytes):
    with pytest.raises(FormatError):
        unpack_fixed(data, 2, 3)
