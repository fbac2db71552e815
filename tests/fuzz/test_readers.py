"""What a stranger sends or a disk returns is read, or refused in one line; and what is valid is read right.

`tests/fuzz/guided.py` goes on where this stops.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.mutations import mutated, odd
from tests.fuzz.reader import Reader
from tests.fuzz.readers import READERS

every_reader = pytest.mark.parametrize("reader", READERS.values(), ids=READERS.keys())


@every_reader
def test_a_valid_input_is_read_right(reader: Reader):
    reader.read_examples()


@every_reader
def test_a_value_in_the_place_of_another_is_read_or_refused(reader: Reader):
    for data in odd(reader):
        reader.attempt(data)


@every_reader
@settings(max_examples=40)
@given(data=st.data())
def test_mutations_of_valid_inputs_are_read_or_refused(reader: Reader, data: st.DataObject):
    reader.attempt(data.draw(mutated(reader)))


@every_reader
@settings(max_examples=20)
@given(data=st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(reader: Reader, data: bytes):
    reader.attempt(data)
