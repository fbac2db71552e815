"""Cards: one level of gateways, seen before any signature is checked; what reading a message costs."""

import tracemalloc

import pytest

from protocol.digest_cache import DigestCache
from protocol.errors import FormatError
from protocol.identity import PeerId, RunId, stage_part
from protocol.limits import CARD_BYTES, PROOF_BYTES, RECORD_BYTES, SIGNATURES_OF_A_MESSAGE, SIGNED_BYTES
from protocol.trust import keys, signed
from protocol.trust.keys import Identity
from protocol.trust.membership_card import Authority, Card, Signer, issue
from protocol.trust.proofs import CONTRIBUTION, RECEIPT, claimed_entry, read_entry, sign_contribution, sign_receipt
from protocol.trust.records import (
    RECORD,
    PeerRecord,
    Register,
    make_statement,
    read_record,
    read_statement,
    sign_record,
)
from tests.reference.admitted import identity
from tests.reference.small_manifest import small_manifest

RUN = RunId("ab" * 32)
OPERATOR, GATEWAY, PEER, OTHER = map(identity, ("operator", "gateway", "peer", "other"))
AUTHORITY = Authority(RUN, OPERATOR.peer_id)
GATEWAY_CARD = issue(OPERATOR, RUN, Card(GATEWAY.peer_id, "gateway", 0, 0))


def card(who: Identity = PEER, by: Identity = OPERATOR, own_card: bytes = b"", **changes: object) -> bytes:
    fields = {"role": "volunteer", "stage": 1, "slot": 7} | changes
    return issue(by, RUN, Card(who.peer_id, **fields), own_card)  # type: ignore[arg-type]


def nested(most: int) -> tuple[bytes, Identity]:
    """A card by a gateway by a gateway, and so on, of `most` bytes at most, and whose it is."""
    made, number = b"", 0
    while (
        len(longer := card(identity(f"level {number + 1}"), identity(f"level {number}"), made, role="gateway")) <= most
    ):
        made, number = longer, number + 1
    return made, identity(f"level {number}")


def record_of(who: Identity, **changes: object) -> PeerRecord:
    made = PeerRecord(peer_id=who.peer_id, address="h:1", role="volunteer", stage=1, slot=7)
    return made.model_copy(update=changes)


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What was checked, from an empty memory on."""
    made: list[bytes] = []
    verify = keys.signer_of

    def counted(public: bytes, data: bytes, signature: bytes) -> PeerId:
        made.append(data)
        return verify(public, data, signature)

    monkeypatch.setattr(signed, "signer_of", counted)
    monkeypatch.setattr(signed, "VERIFIED", DigestCache(signed.CHECKED_MESSAGES_KEPT))
    return made


TOO_DEEP = {
    "two gateways": card(PEER, OTHER, issue(GATEWAY, RUN, Card(OTHER.peer_id, "gateway", 0, 0), GATEWAY_CARD)),
    "a gateway by a gateway": issue(GATEWAY, RUN, Card(OTHER.peer_id, "gateway", 0, 0), GATEWAY_CARD),
    "a peer's card in place of a gateway's": card(PEER, OTHER, card(OTHER)),
    "another gateway's card": card(PEER, OTHER, GATEWAY_CARD),
    "no gateway's card": card(PEER, GATEWAY),
    "a gateway that named itself": card(PEER, OTHER, issue(OTHER, RUN, Card(OTHER.peer_id, "gateway", 0, 0))),
    "another run's": issue(OPERATOR, RunId("cd" * 32), Card(PEER.peer_id, "volunteer", 1, 7)),
    "too long": nested(4096)[0],
    "as long as a message": nested(SIGNED_BYTES)[0],
}


@pytest.mark.parametrize("kind", TOO_DEEP)
def test_a_card_that_nobody_can_have_given_is_refused_before_a_signature_is_checked(kind: str, checks: list[bytes]):
    with pytest.raises(FormatError):
        AUTHORITY.read(TOO_DEEP[kind])
    assert checks == []


@pytest.mark.parametrize("way", ["record", "statement", "contribution", "receipt"])
def test_a_message_with_such_a_card_is_refused_before_a_signature_is_checked(way: str, checks: list[bytes]):
    entry = sign_contribution(Signer(PEER, AUTHORITY, card()), stage_part(1), 1, "ef" * 32, 10)
    for bad in TOO_DEEP.values():
        signer = Signer(PEER, AUTHORITY, bad)
        match way:
            case "record":
                with pytest.raises(FormatError):
                    read_record(sign_record(signer, record_of(PEER)), PEER.peer_id, AUTHORITY)
            case "statement":
                with pytest.raises(FormatError):
                    read_statement(make_statement(signer, record_of(PEER), {}), AUTHORITY)
            case "contribution":
                with pytest.raises(FormatError):
                    read_entry(sign_contribution(signer, stage_part(1), 1, "ef" * 32, 10).proof, [], AUTHORITY)
        if way != "receipt":
            assert checks == []
            continue
        read_entry(entry.proof, [], AUTHORITY)
        before = len(checks)
        assert read_entry(entry.proof, [sign_receipt(signer, entry)], AUTHORITY).receipts == {}
        assert len(checks) == before


def test_reading_a_message_takes_its_own_signature_and_those_of_cards_that_are_not_known(checks: list[bytes]):
    def record(signer: Signer, sequence: int) -> bytes:
        return sign_record(signer, record_of(PEER, sequence=sequence))

    by_gateway = Signer(PEER, AUTHORITY, card(PEER, GATEWAY, GATEWAY_CARD))
    by_operator = Signer(PEER, AUTHORITY, card())
    register = Register(AUTHORITY, small_manifest())
    for signer, sequence, cost in ((by_gateway, 1, SIGNATURES_OF_A_MESSAGE), (by_gateway, 2, 1), (by_operator, 3, 2)):
        message, before = record(signer, sequence), len(checks)
        assert AUTHORITY.unchecked(message, RECORD) == register.signatures(message) == cost
        read_record(message, PEER.peer_id, AUTHORITY)
        assert len(checks) - before == cost
        assert AUTHORITY.unchecked(message, RECORD) == 0
    assert register.signatures(b"x") == register.signatures(7) == register.signatures(bytes(RECORD_BYTES + 1)) == 0


def test_cards_proofs_and_receipts_have_room_for_the_longest_names():
    longest = {"role": "datacenter", "stage": 1023, "slot": 2**31 - 1, "on_trial": True}
    by_gateway = card(PEER, GATEWAY, GATEWAY_CARD, **longest)
    assert len(by_gateway) < CARD_BYTES * 2 / 3
    signer = Signer(PEER, AUTHORITY, by_gateway)
    entry = sign_contribution(signer, stage_part(1), 2**31 - 1, "ef" * 32, 2**62)
    assert AUTHORITY.read_signed(entry.proof, CONTRIBUTION)[2].slot == 2**31 - 1
    assert max(len(entry.proof), len(sign_receipt(signer, entry))) + CARD_BYTES - len(by_gateway) < PROOF_BYTES
    assert AUTHORITY.unchecked(sign_receipt(signer, entry), RECEIPT) == 1
    with pytest.raises(FormatError, match="a contribution's proof of"):
        claimed_entry(entry.proof + bytes(PROOF_BYTES), AUTHORITY)


def test_thousands_of_hostile_cards_and_messages_leave_no_memory_behind(checks: list[bytes]):
    """One of a name could hold 18 MB with 21 cards, as each level was remembered with all that is below it."""
    deep, who = nested(SIGNED_BYTES - 1024)
    signer = Signer(who, AUTHORITY, deep)
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for sequence in range(50):
        message = make_statement(signer, record_of(who, sequence=sequence), {})
        with pytest.raises(FormatError):
            read_statement(message, AUTHORITY)
        with pytest.raises(FormatError):
            AUTHORITY.read(deep)
    for slot in range(50):  # and a gateway that lets in one name as often as it likes
        AUTHORITY.read(card(PEER, GATEWAY, GATEWAY_CARD, slot=slot))
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert after - before < 2**20
