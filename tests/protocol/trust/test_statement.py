"""What a peer says of its closed rounds, and whether that decides anything."""

from typing import Any

import pytest

from protocol.errors import FormatError
from protocol.identity import EMBEDDING, ReplicaId, RunId, stage_part
from protocol.outer.claims import Claim
from protocol.trust import signed, statement
from protocol.trust.membership_card import Authority, Card, Role, issue
from protocol.trust.proofs import Signer
from protocol.trust.records import PeerRecord, pack_record
from tests.reference.admitted import identity

RUN = RunId("ab" * 32)
OPERATOR, ME = identity("operator"), identity("me")
AUTHORITY = Authority(RUN, OPERATOR.peer_id)
DIGEST = "ef" * 32


def signer(role: Role = "volunteer", on_trial: bool = False) -> Signer:
    return Signer(ME, AUTHORITY, issue(OPERATOR, RUN, Card(ME.peer_id, role, 0, 3, on_trial)))


def record(role: Role = "volunteer", on_trial: bool = False, trains: bool = True) -> PeerRecord:
    replica = ReplicaId(ME.peer_id) if trains else ReplicaId("")
    place: dict[str, Any] = {"role": role, "stage": 0, "slot": 3, "on_trial": on_trial}
    return PeerRecord(peer_id=ME.peer_id, address="10.0.0.1:4000", replica=replica, **place)


@pytest.mark.parametrize(
    ("role", "on_trial", "trains", "votes"),
    [
        ("volunteer", False, True, True),
        ("volunteer", False, False, False),
        ("volunteer", True, True, False),
        ("datacenter", False, True, True),
        ("datacenter", True, True, False),
        ("observer", False, False, False),
    ],
)
def test_only_who_trains_and_counts_has_a_vote(role: Role, on_trial: bool, trains: bool, votes: bool):
    claims = {EMBEDDING: [Claim(4, DIGEST, 9, True)], stage_part(0): []}
    told = statement.read_statement(
        statement.make_statement(signer(role, on_trial), record(role, on_trial, trains), claims), AUTHORITY
    )
    assert told.claims == {EMBEDDING: [Claim(4, DIGEST, 9, votes)], stage_part(0): []}


def test_the_last_three_closed_rounds_are_told():
    claims = {EMBEDDING: [Claim(round, DIGEST, round, True) for round in range(1, 7)]}
    told = statement.read_statement(statement.make_statement(signer(), record(), claims), AUTHORITY)
    assert [claim.folded for claim in told.claims[EMBEDDING]] == [4, 5, 6]


@pytest.mark.parametrize(
    "claims",
    [
        [[4, bytes(32), 9]] * 4,
        [[-1, bytes(32), 9]],
        [[4, bytes(31), 9]],
        [[4, bytes(32), True]],
        [[True, bytes(32), 9]],
        [[4, bytes(32)]],
        "none",
    ],
)
def test_claims_that_cannot_be_are_refused(claims: object):
    fields = [RUN, pack_record(record()), {EMBEDDING: claims}, signer().card]
    with pytest.raises(FormatError, match="claims nothing that can be read"):
        statement.read_statement(signed.sign(ME, statement.KIND, fields), AUTHORITY)
