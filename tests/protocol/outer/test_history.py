"""Ranges of rounds, against a plain set."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import FormatError
from protocol.identity import PeerId
from protocol.outer.history import History

authors = st.sampled_from([PeerId("a"), PeerId("b"), PeerId("c")])
rounds = st.lists(st.frozensets(authors), max_size=20)


def history(counted: list[frozenset[PeerId]]) -> History:
    made = History()
    for round, who in enumerate(counted, start=1):
        made.add(round, who)
    return made


@given(rounds, authors, st.integers(0, 22), st.integers(0, 22))
def test_it_says_what_a_set_of_pairs_says(counted, author: PeerId, start: int, end: int):
    pairs = {(each, round) for round, who in enumerate(counted, start=1) for each in who}
    made = history(counted)
    assert made.has(author, start) == ((author, start) in pairs)
    assert made.counts(author, start, end) == any((author, round) in pairs for round in range(start, end + 1))
    assert made.total() == len(pairs)


@given(rounds)
def test_it_comes_back_from_the_wire(counted):
    made = history(counted)
    assert History.from_wire(made.to_wire(), len(counted)) == made


def test_neighbouring_rounds_are_one_range():
    made = history([frozenset({PeerId("a")})] * 3 + [frozenset()] + [frozenset({PeerId("a")})])
    assert made.to_wire() == {"a": [[1, 3], [5, 5]]}


def test_a_copy_goes_its_own_way():
    made = history([frozenset({PeerId("a")})])
    copy = made.copy()
    copy.add(2, [PeerId("a")])
    assert (made.total(), copy.total()) == (1, 2)


@pytest.mark.parametrize(
    "data",
    [
        [],
        {"b": [[1, 1]], "a": [[1, 1]]},
        {"a": []},
        {"": [[1, 1]]},
        {"a" * 65: [[1, 1]]},
        {3: [[1, 1]]},
        {"a": [[0, 1]]},
        {"a": [[3, 2]]},
        {"a": [[1, 10]]},
        {"a": [[1, 2], [3, 4]]},
        {"a": [[4, 5], [1, 2]]},
        {"a": [[1]]},
        {"a": [[1, 2.0]]},
        {"a": [[True, 2]]},
        {"a": "12"},
    ],
)
def test_what_is_no_history_is_refused(data: object):
    with pytest.raises(FormatError, match="history"):
        History.from_wire(data, 9)
