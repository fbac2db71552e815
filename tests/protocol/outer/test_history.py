"""Ranges of rounds, against a plain set; and which of several states stands."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import FormatError
from protocol.identity import PeerId
from protocol.outer.history import Claim, History, outvoted, prevailing

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


def claim(digest: str, contributions: int = 1, author: bool = True) -> Claim:
    return Claim(9, digest, contributions, author)


@pytest.mark.parametrize(
    ("claims", "standing"),
    [
        ([], None),
        ([claim("x"), claim("y"), claim("y")], "y"),
        ([claim("x", 10**6), claim("y"), claim("y")], "y"),
        ([claim("x"), claim("y", author=False), claim("y", author=False)], "x"),
        ([claim("x", 3), claim("y", 4)], "y"),
        ([claim("x", 3), claim("x", 3), claim("y", 2), claim("y", 4)], "y"),
        ([claim("y"), claim("x")], "x"),
    ],
)
def test_the_state_that_most_authors_hold_stands(claims: list[Claim], standing: str | None):
    assert prevailing(claims) == standing


def test_no_state_stands_against_ours_by_one_liars_word_before_all_have_spoken():
    mine, other = Claim(5, "a", 9, True), Claim(5, "b", 10**6, True)
    assert outvoted(mine, [other], 1, all_have_spoken=False) is None
    assert outvoted(mine, [other], 1, all_have_spoken=True) == "b"
    assert outvoted(mine, [other, other], 1, all_have_spoken=False) == "b"
    assert outvoted(mine, [other, mine], 1, all_have_spoken=True) is None
    assert outvoted(mine, [], 0, all_have_spoken=True) is None


def test_those_who_only_follow_are_no_votes_however_many_they_are():
    mine, follows = Claim(5, "a", 9, True), Claim(5, "b", 10**6, False)
    author = Claim(5, "b", 9, True)
    assert outvoted(Claim(5, "a", 9, False), [follows, follows, author], 1, all_have_spoken=False) is None
    assert outvoted(Claim(5, "a", 9, False), [follows, author, author], 1, all_have_spoken=False) == "b"
    assert outvoted(mine, [follows] * 9, 1, all_have_spoken=True) is None
