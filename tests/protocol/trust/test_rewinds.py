"""Rewinds: of this run's operator alone."""

import pytest

from protocol.errors import FormatError
from protocol.identity import RunId
from protocol.outer.progress import Rewind
from protocol.trust import signed
from protocol.trust.membership_card import Authority
from protocol.trust.rewinds import REWIND_KIND, read_rewind, sign_rewind
from tests.reference.admitted import identity

RUN, OTHER = RunId("ab" * 32), RunId("cd" * 32)
OPERATOR, LIAR = identity("operator"), identity("liar")
AUTHORITY = Authority(RUN, OPERATOR.peer_id)
REWIND = Rewind(9, 19, 1_700_000_000_000)


def test_a_rewind_is_read_as_it_was_signed():
    assert read_rewind(sign_rewind(OPERATOR, AUTHORITY, REWIND), AUTHORITY) == REWIND


@pytest.mark.parametrize(
    "data",
    [
        sign_rewind(LIAR, AUTHORITY, REWIND),
        sign_rewind(OPERATOR, Authority(OTHER, OPERATOR.peer_id), REWIND),
        sign_rewind(OPERATOR, AUTHORITY, REWIND)[:-1],
        sign_rewind(OPERATOR, AUTHORITY, Rewind(19, 19, 1)),
        sign_rewind(OPERATOR, AUTHORITY, Rewind(-1, 19, 1)),
        sign_rewind(OPERATOR, AUTHORITY, Rewind(9, 2**31, 1)),
        sign_rewind(OPERATOR, AUTHORITY, Rewind(9, 19, 0)),
        signed.sign_fields(OPERATOR, REWIND_KIND, [RUN, 9, 19]),
        signed.sign_fields(OPERATOR, "grant", [RUN, 9, 19, 1]),
        b"",
    ],
    ids=["liar", "other run", "cut", "no way back", "before the run", "too far", "no time", "few", "kind", "empty"],
)
def test_nothing_else_is_a_rewind(data: bytes):
    with pytest.raises(FormatError):
        read_rewind(data, AUTHORITY)
