"""What the operator's observer attests, and what follows for what others claim."""

from pathlib import Path

import pytest

from protocol.errors import FormatError
from protocol.identity import EMBEDDING, RunId, stage_part
from protocol.outer.history import Claim
from protocol.trust import signed
from protocol.trust.attestations import (
    GRANT,
    KIND,
    Attestation,
    attest,
    contradicted,
    grant,
    read_attestation,
    read_grant,
    vague,
)
from protocol.trust.membership_card import Authority
from tests.reference.admitted import identity

RUN, OTHER = RunId("ab" * 32), RunId("cd" * 32)
OPERATOR, OBSERVER, LIAR = (identity(name) for name in ("operator", "observer", "liar"))
AUTHORITY = Authority(RUN, OPERATOR.peer_id)
GRANTED = grant(OPERATOR, AUTHORITY, OBSERVER.peer_id)
SEEN = Attestation(OBSERVER.peer_id, 7, 2, {EMBEDDING: ("ef" * 32, 30), stage_part(0): ("01" * 32, 29)})


def test_an_attestation_is_that_of_a_peer_that_the_operator_has_named():
    assert read_attestation(attest(OBSERVER, AUTHORITY, SEEN, GRANTED), AUTHORITY) == SEEN
    assert SEEN.claim(stage_part(0)) == Claim(7, "01" * 32, 29, False)
    assert SEEN.claim(stage_part(1)) is None


@pytest.mark.parametrize(
    ("who", "granted", "said"),
    [
        (LIAR, GRANTED, "another's grant"),
        (LIAR, grant(LIAR, AUTHORITY, LIAR.peer_id), "has not named"),
        (OBSERVER, grant(OPERATOR, Authority(OTHER, OPERATOR.peer_id), OBSERVER.peer_id), "has not named"),
        (OPERATOR, b"", "not a signed"),
    ],
)
def test_nobody_else_attests(who: object, granted: bytes, said: str):
    with pytest.raises(FormatError, match=said):
        read_attestation(attest(who, AUTHORITY, SEEN, granted), AUTHORITY)  # type: ignore[arg-type]


def test_an_attestation_of_another_run_is_none():
    other = Authority(OTHER, OPERATOR.peer_id)
    with pytest.raises(FormatError):
        read_attestation(attest(OBSERVER, other, SEEN, GRANTED), AUTHORITY)


@pytest.mark.parametrize(
    "fields",
    [
        [0, 0, {"stage-0": [bytes(32), 1]}],
        [2**31, 0, {"stage-0": [bytes(32), 1]}],
        [1, -1, {"stage-0": [bytes(32), 1]}],
        [1, 0, {}],
        [1, 0, {"stage-0": [bytes(31), 1]}],
        [1, 0, {"stage-0": [bytes(32), -1]}],
        [1, 0, {"stage-0": [bytes(32), True]}],
        [1, 0, {"stage\n0": [bytes(32), 1]}],
        [1, 0, {"s" * 65: [bytes(32), 1]}],
        [1, 0, {5: [bytes(32), 1]}],
        [1, 0, [[bytes(32), 1]]],
    ],
)
def test_an_attestation_that_cannot_be_is_refused(fields: list[object]):
    with pytest.raises(FormatError):
        read_attestation(signed.sign_fields(OBSERVER, KIND, [RUN, *fields, GRANTED]), AUTHORITY)


def test_a_grant_is_read_as_nothing_else(tmp_path: Path):
    assert read_grant(GRANTED, AUTHORITY) == OBSERVER.peer_id
    with pytest.raises(FormatError):
        read_grant(signed.sign_fields(OPERATOR, GRANT, [RUN, 5]), AUTHORITY)
    with pytest.raises(FormatError, match="not a signed"):
        read_grant(signed.sign_fields(OPERATOR, "card", [RUN, OBSERVER.peer_id]), AUTHORITY)


def said(*rounds: int, wrong: int = 0) -> list[Claim]:
    return [Claim(round, "bad" if round == wrong else f"{round:x}", 1, True) for round in rounds]


def test_who_holds_another_state_after_the_attested_round_contradicts_it():
    attested = Claim(7, "7", 1, False)
    assert contradicted(attested, said(5, 6, 7, wrong=7))
    assert not contradicted(attested, said(6, 7, 8, wrong=8))
    assert not contradicted(attested, said(8, 9, 10))
    assert not contradicted(attested, [])


def test_who_speaks_of_what_came_right_after_the_attested_round_has_to_name_that():
    attested = Claim(7, "7", 1, False)
    assert vague(attested, said(8))
    assert vague(attested, said(9, 10))
    assert not vague(attested, said(7, 8, 9))
    assert not vague(attested, said(10, 11, 12))  # three are told: it has no room for the attested one any more
    assert not vague(attested, said(4, 5, 6))
    assert not vague(attested, [])
