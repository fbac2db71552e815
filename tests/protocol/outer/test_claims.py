"""Which of several states stands."""

import pytest

from protocol.outer.claims import Claim, outvoted, prevailing


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
