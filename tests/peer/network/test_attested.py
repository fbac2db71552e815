"""What a peer makes of what the operator attests: the newest stands, against all but what it has seen itself."""

from collections.abc import Callable
from pathlib import Path

import pytest

from peer.network.attested import Attested
from peer.network.bans import Bans
from protocol.events.activity import Refused
from protocol.events.event import Event
from protocol.identity import EMBEDDING, Part, PeerId, RunId, stage_part
from protocol.outer.history import Claim
from protocol.trust.attestations import GRANTED, KEPT, Attestation, attest, grant, read_attestation
from protocol.trust.membership_card import Authority, Card, Signer, issue
from tests.reference.admitted import identity

RUN = RunId("ab" * 32)
OPERATOR, OBSERVER, ANOTHER, ME, BOB = (identity(name) for name in ("operator", "observer", "another", "me", "bob"))
AUTHORITY = Authority(RUN, OPERATOR.peer_id)
STAGE = stage_part(0)
TRUE, FALSE = "ef" * 32, "01" * 32

Heard = Callable[..., Attested]


def said(*rounds: int, digest: str = TRUE) -> list[Claim]:
    return [Claim(round, digest, 4 * round, True) for round in rounds]


def attestation(round: int, since: int = 0, who: str = "observer", digest: str = TRUE) -> bytes:
    attester = identity(who)
    seen = Attestation(attester.peer_id, round, since, dict.fromkeys((EMBEDDING, STAGE), (digest, 4 * round)))
    return attest(attester, AUTHORITY, seen, grant(OPERATOR, AUTHORITY, attester.peer_id))


def here(folder: Path, who: str = "me", out: set[PeerId] = frozenset(), events: list[Event] | None = None) -> Attested:  # type: ignore[assignment]
    me = identity(who)
    signer = Signer(me, AUTHORITY, issue(OPERATOR, RUN, Card(me.peer_id, "observer", 0, 0)))
    bans = Bans((events if events is not None else []).append)
    return Attested(signer, bans, folder, lambda peer: peer in out)


def test_the_newest_stands_and_is_there_after_a_restart(tmp_path: Path):
    one = here(tmp_path)
    for round, newest in ((5, 5), (9, 9), (7, 9), (9, 9)):
        one.receive(attestation(round), BOB.peer_id)
        assert one.round == newest
    assert one.claim(STAGE) == Claim(9, TRUE, 36, False)
    assert one.claim(stage_part(1)) is None
    assert here(tmp_path).round == 9
    (tmp_path / KEPT).write_bytes(b"damaged")
    assert here(tmp_path).round == 0


def test_who_passes_on_what_is_no_attestation_is_avoided(tmp_path: Path):
    one = here(tmp_path)
    one.receive(b"", BOB.peer_id)
    assert not one.bans.objection(BOB.peer_id)
    whole = attestation(9)
    one.receive(whole[:-1] + bytes([whole[-1] ^ 1]), BOB.peer_id)
    assert one.bans.objection(BOB.peer_id)
    assert one.round == 0
    assert not (tmp_path / KEPT).exists()


def test_what_a_revoked_attester_said_stands_no_longer_and_anothers_takes_its_place(tmp_path: Path):
    out: set[PeerId] = set()
    one = here(tmp_path, out=out)
    one.receive(attestation(2**31 - 1, digest=FALSE), BOB.peer_id)
    out.add(OBSERVER.peer_id)
    assert one.round == 0
    assert one.claim(EMBEDDING) is None
    one.receive(attestation(2**31 - 2), BOB.peer_id)
    assert one.round == 0
    one.receive(attestation(3, who="another"), BOB.peer_id)
    assert one.claim(EMBEDDING) == Claim(3, TRUE, 12, False)


def test_who_was_there_for_longer_than_the_attester_needs_nobodys_word(tmp_path: Path):
    one = here(tmp_path)
    one.receive(attestation(9, since=5, digest=FALSE), BOB.peer_id)
    for mine, since, stands in (([], 0, True), (said(9), 4, False), (said(9), 5, True), (said(8), 4, True)):
        one.since, one.mine = since, {EMBEDDING: mine}
        assert (one.claim(EMBEDDING) is not None) == stands


def test_who_claims_another_past_is_not_believed_until_it_takes_the_attested_one_and_is_not_avoided(tmp_path: Path):
    events: list[Event] = []
    one = here(tmp_path, events=events)
    one.mine = {EMBEDDING: []}
    one.look(BOB.peer_id, {EMBEDDING: said(8, 9, digest=FALSE), STAGE: said(9)})
    assert one.believes(BOB.peer_id, EMBEDDING)
    one.receive(attestation(9), BOB.peer_id)
    for _ in range(2):
        one.look(BOB.peer_id, {EMBEDDING: said(8, 9, digest=FALSE), STAGE: said(9)})
        assert not one.believes(BOB.peer_id, EMBEDDING)
    assert one.believes(BOB.peer_id, STAGE)
    assert [event.peer for event in events if isinstance(event, Refused)] == [BOB.peer_id]
    assert not one.bans.objection(BOB.peer_id)
    one.look(BOB.peer_id, {EMBEDDING: said(9, 10)})
    assert one.believes(BOB.peer_id, EMBEDDING)
    assert one.believes(ME.peer_id, EMBEDDING)  # who has said nothing


@pytest.mark.parametrize(
    ("claims", "since", "round"),
    [
        ({EMBEDDING: said(3, 4), STAGE: said(4)}, 0, 4),
        ({EMBEDDING: said(3, 4), STAGE: said(3)}, 0, 0),
        ({EMBEDDING: said(3, 4), STAGE: []}, 0, 0),
        ({EMBEDDING: said(4), STAGE: said(4)}, 3, 4),
        ({EMBEDDING: said(4), STAGE: said(4)}, 4, 0),
    ],
)
def test_an_attester_signs_what_all_its_parts_were_after_a_round_that_it_saw(
    tmp_path: Path, claims: dict[Part, list[Claim]], since: int, round: int
):
    (tmp_path / GRANTED).write_bytes(grant(OPERATOR, AUTHORITY, OBSERVER.peer_id))
    one = here(tmp_path, "observer")
    one.trust_up_to(since)
    assert one.close(claims) is claims
    assert one.round == round
    assert not one.bans.objection(OBSERVER.peer_id)
    if round:
        seen = read_attestation(one.signed, AUTHORITY)
        assert (seen.attester, seen.since) == (OBSERVER.peer_id, since)
        assert seen.states == dict.fromkeys(claims, (TRUE, 4 * round))


def test_who_is_not_named_attests_nothing(tmp_path: Path):
    (tmp_path / GRANTED).write_bytes(grant(OPERATOR, AUTHORITY, OBSERVER.peer_id))
    one = here(tmp_path, "me")
    one.close({EMBEDDING: said(4), STAGE: said(4)})
    assert one.round == 0


def test_who_starts_again_knows_whose_word_it_took_if_it_attested(tmp_path: Path):
    one = here(tmp_path, "observer")
    one.receive(attestation(9, since=2), BOB.peer_id)
    for who, since in (("observer", 2), ("me", 11)):
        again = here(tmp_path, who)
        again.resume(11)
        assert again.since == since
