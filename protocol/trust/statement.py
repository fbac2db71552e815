"""Statements: what a peer says of itself whenever it talks to another, its record and its digests of the last closed
rounds. As a record in the DHT, a statement comes with its signer's card."""

from collections.abc import Mapping
from dataclasses import dataclass

from protocol.errors import FormatError
from protocol.identity import Part, PeerId
from protocol.outer.claims import Claim
from protocol.trust import signed
from protocol.trust.membership_card import Authority
from protocol.trust.proofs import Signer
from protocol.trust.records import PeerRecord, pack_record, unpack_record

KIND = "statement"
CLAIMS_TOLD = 3
"""The number of closed rounds of which a statement tells. Peers close rounds within a round or two of each other, so
that some closed round is in both their statements."""

Claims = Mapping[Part, list[Claim]]


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement, checked. `claims` are by part, of the last closed rounds in rising order."""

    record: PeerRecord
    claims: Claims


def make_statement(signer: Signer, record: PeerRecord, claims: Claims) -> bytes:
    """Sign a statement of what this peer is and holds now."""
    told = {
        part: [[each.folded, bytes.fromhex(each.digest), each.contributions] for each in last[-CLAIMS_TOLD:]]
        for part, last in claims.items()
    }
    return signed.sign(signer.identity, KIND, [signer.authority.run, pack_record(record), told, signer.card])


def read_statement(data: bytes, authority: Authority) -> Statement:
    """Check a statement.

    Raises:
        FormatError: it is malformed, of another run, or its record is none that its signer may tell.
    """
    signer, fields = signed.read_signed(data, KIND, again=False)
    match fields:
        case [authority.run, bytes(packed), dict(told), bytes(card)] if len(told) <= 1024:
            record = unpack_record(packed, signer, card, authority)
            trains = bool(record.replica) and not record.on_trial
            return Statement(record, {Part(str(part)): _claims(each, signer, trains) for part, each in told.items()})
    raise FormatError(f"peer {signer[-8:]} made no statement of this run")


def _claims(told: object, signer: PeerId, author: bool) -> list[Claim]:
    if not isinstance(told, list) or len(told) > CLAIMS_TOLD:
        raise FormatError(f"peer {signer[-8:]} claims nothing that can be read")
    claims = []
    for each in told:
        match each:
            case [int(folded), bytes(digest), int(contributions)] if (
                type(folded) is type(contributions) is int and folded >= 0 and len(digest) == 32
            ):
                claims.append(Claim(folded, digest.hex(), contributions, author))
            case _:
                raise FormatError(f"peer {signer[-8:]} claims nothing that can be read")
    return claims
