"""Readers of what peers sign. The body is what is mutated, and it is signed anew."""

from collections.abc import Callable

from protocol.identity import EMBEDDING, ReplicaId, stage_part
from protocol.outer.history import Claim
from protocol.outer.ledger import Entry, Revocation
from protocol.schemas import reconciliation_pb2
from protocol.trust import attestations, handovers, membership_card, proofs, receipts, records, signed
from protocol.trust.handovers import HandoverOffer
from protocol.trust.keys import Identity
from protocol.trust.membership_card import Card
from protocol.trust.proofs import sign_contribution, sign_receipt
from tests.fuzz.material import (
    AUTHOR,
    AUTHORITY,
    GATEWAY,
    HOLDER,
    OPERATOR,
    PEER,
    RUN,
    card,
    sealed,
    signer,
)
from tests.fuzz.reader import Reader, from_protobuf

SHA256 = "ef" * 32


def body(message: bytes, kind: str) -> bytes:
    """What is behind key and kind."""
    return message[97 + len(kind) + 1 :]


def behind_signature(
    name: str, who: Identity, kind: str, read: Callable[[bytes], object], message: bytes, means: object
) -> Reader:
    """A reader of signed messages of a kind, given their bodies."""
    return Reader(name, lambda data: read(sealed(who, kind, data)), ((body(message, kind), means),), "msgpack")


RECORD = records.PeerRecord(
    peer_id=AUTHOR.peer_id,
    address="10.0.0.1:4000",
    libp2p="/ip4/10.0.0.1/tcp/4001/p2p/QmPeer",
    role="volunteer",
    stage=0,
    slot=0,
    round=3,
    sequence=9,
    moves_to=[1],
)

CARD = Card(AUTHOR.peer_id, "volunteer", 0, 0)
VIA_GATEWAY = membership_card.issue(GATEWAY, RUN, CARD, card(GATEWAY, "gateway"))
CLAIMS = {EMBEDDING: [Claim(1, SHA256, 3, False), Claim(2, SHA256, 5, False)], stage_part(0): []}
ENTRY = sign_contribution(signer(AUTHOR), EMBEDDING, 2, SHA256, 100)
RECEIPT = sign_receipt(signer(HOLDER), ENTRY)
REVOCATION = Revocation(PEER, 2, 17)
GRANTED = attestations.grant(OPERATOR, AUTHORITY, HOLDER.peer_id)
ATTESTATION = attestations.Attestation(HOLDER.peer_id, 7, 2, {EMBEDDING: (SHA256, 30), stage_part(0): (SHA256, 29)})
HANDOVER = HandoverOffer(AUTHOR.peer_id, HOLDER.peer_id, 3, 0, SHA256, 1000)

WORK = receipts.Work(AUTHOR.peer_id, PEER, 3, ReplicaId(AUTHOR.peer_id), 1, 0, 1, 1, 9, 9, 90)


def read_receipt(data: bytes) -> Entry:
    """A receipt that is none is left out."""
    return proofs.read_entry(ENTRY.proof, [data], AUTHORITY)


def with_receipt() -> Entry:
    return Entry(ENTRY.name, ENTRY.sha256, ENTRY.size, ENTRY.proof, {HOLDER.peer_id: RECEIPT})


def read_passed_on(data: bytes) -> Entry:
    message = from_protobuf(reconciliation_pb2.Entry, data)
    return proofs.read_entry(message.proof, list(message.receipts), AUTHORITY)


SIGNED = (
    Reader(
        "signed",
        lambda data: signed.read_signed(data, membership_card.CARD_KIND),
        ((VIA_GATEWAY, signed.read_signed(VIA_GATEWAY, "card")),),
    ),
    behind_signature("card", OPERATOR, membership_card.CARD_KIND, AUTHORITY.read, card(AUTHOR), CARD),
    behind_signature("card by a gateway", GATEWAY, membership_card.CARD_KIND, AUTHORITY.read, VIA_GATEWAY, CARD),
    behind_signature(
        "statement",
        AUTHOR,
        records.STATEMENT,
        lambda data: records.read_statement(data, AUTHORITY),
        records.make_statement(signer(AUTHOR), RECORD, CLAIMS),
        records.Statement(RECORD, CLAIMS),
    ),
    behind_signature(
        "entry", AUTHOR, proofs.CONTRIBUTION, lambda data: proofs.read_entry(data, [], AUTHORITY), ENTRY.proof, ENTRY
    ),
    behind_signature("receipt", HOLDER, proofs.RECEIPT, read_receipt, RECEIPT, with_receipt()),
    behind_signature(
        "revocation",
        OPERATOR,
        proofs.REVOCATION,
        lambda data: proofs.read_revocation(data, AUTHORITY),
        proofs.sign_revocation(OPERATOR, AUTHORITY, REVOCATION),
        REVOCATION,
    ),
    behind_signature(
        "attester",
        OPERATOR,
        attestations.GRANT,
        lambda data: attestations.read_grant(data, AUTHORITY),
        GRANTED,
        HOLDER.peer_id,
    ),
    behind_signature(
        "attestation",
        HOLDER,
        attestations.KIND,
        lambda data: attestations.read_attestation(data, AUTHORITY),
        attestations.attest(HOLDER, AUTHORITY, ATTESTATION, GRANTED),
        ATTESTATION,
    ),
    behind_signature(
        "handover",
        AUTHOR,
        handovers.KIND,
        lambda data: handovers.read_handover(data, AUTHORITY),
        handovers.sign_handover(signer(AUTHOR), HANDOVER),
        HANDOVER,
    ),
    behind_signature(
        "answer to a handover",
        HOLDER,
        handovers.ANSWER,
        lambda data: handovers.read_answer(data, HANDOVER, AUTHORITY),
        handovers.sign_answer(signer(HOLDER), HANDOVER, "busy"),
        "busy",
    ),
    behind_signature(
        "receipt of work",
        AUTHOR,
        receipts.WORK,
        lambda data: receipts.read_receipt(data, AUTHORITY),
        receipts.sign_credit_receipt(signer(AUTHOR), WORK),
        WORK,
    ),
    Reader(
        "receipt in a file",
        lambda data: receipts.read_receipt(receipts.receipt_from_line(data), AUTHORITY),
        ((receipts.receipt_to_line(receipts.sign_credit_receipt(signer(AUTHOR), WORK)), WORK),),
    ),
    Reader(
        "entry passed on",
        read_passed_on,
        ((reconciliation_pb2.Entry(proof=ENTRY.proof, receipts=[RECEIPT]).SerializeToString(), with_receipt()),),
    ),
)
