"""Proofs: what authors and holders sign about contributions, and the operator about authors. Each carries its signer's
card."""

from collections.abc import Callable
from typing import Any

from protocol.errors import FormatError
from protocol.identity import ContributionName, Part, PeerId
from protocol.limits import PROOF_BYTES
from protocol.outer.ledger import Entry, Revocation
from protocol.trust import signed
from protocol.trust.keys import Identity
from protocol.trust.membership_card import Authority, Card, Signer

CONTRIBUTION, RECEIPT, REVOCATION = "contribution", "receipt", "revocation"


def sign_contribution(signer: Signer, part: Part, round: int, sha256: str, size: int) -> Entry:
    """Sign a contribution of this peer's."""
    name = ContributionName(part, round, signer.identity.peer_id)
    fields = [signer.authority.run, part, round, bytes.fromhex(sha256), size, signer.card]
    return Entry(name, sha256, size, signed.sign_fields(signer.identity, CONTRIBUTION, fields))


def sign_receipt(signer: Signer, entry: Entry) -> bytes:
    """Sign that this peer has accepted an entry."""
    name = entry.name
    fields = [signer.authority.run, name.part, name.round, name.author, bytes.fromhex(entry.sha256), signer.card]
    return signed.sign_fields(signer.identity, RECEIPT, fields)


def claimed_entry(proof: bytes, authority: Authority) -> Entry:
    """Read the entry that a proof claims to be of. **Nothing of it is checked yet.**

    Raises:
        FormatError: it is no proof of this run.
    """
    if len(proof) > PROOF_BYTES:
        raise FormatError(f"a contribution's proof of {len(proof)} bytes, where {PROOF_BYTES} are allowed")
    author, fields = signed.claimed_fields(proof, CONTRIBUTION)
    return _entry(proof, author, fields, authority)


def ignore(error: FormatError) -> None:
    """Pass over an error."""


def read_entry(
    proof: bytes,
    receipts: list[bytes],
    authority: Authority,
    on_false_receipt: Callable[[FormatError], None] = ignore,
) -> Entry:
    """Check an entry that another peer passed on. Receipts of peers that could not contribute to the part are left out.
    So are those that are not for it, or do not hold, of which `on_false_receipt` is told.

    Raises:
        FormatError: the author's signature does not hold, or its contributions to this part do not count.
    """
    entry, author = _contribution(proof, authority)
    if author.on_trial:
        raise FormatError(f"peer {author.peer[-8:]} is on trial: what it contributes does not count yet")
    for receipt in receipts:
        try:
            holder = _holder(receipt, entry, authority)
        except FormatError as error:
            on_false_receipt(error)
            continue
        if holder is not None:
            entry.receipts[holder] = receipt
    return entry


def read_trial(proof: bytes, authority: Authority) -> Entry | None:
    """Check a contribution of a peer on trial, which counts nowhere. Returns None if its author is not on trial.

    Raises:
        FormatError: the author's signature does not hold, or it has no place that contributes to this part.
    """
    entry, author = _contribution(proof, authority)
    return entry if author.on_trial else None


def _contribution(proof: bytes, authority: Authority) -> tuple[Entry, Card]:
    author, fields, owner = authority.read_signed(proof, CONTRIBUTION)
    entry = _entry(proof, author, fields, authority)
    if not owner.authors(entry.name.part):
        raise FormatError(f"peer {author[-8:]} has no place that contributes to {entry.name.part[:40]}")
    entry.slot, entry.issuer = owner.slot, owner.issuer
    return entry, owner


def _entry(proof: bytes, author: PeerId, fields: list[Any], authority: Authority) -> Entry:
    """Read the fields of a contribution's proof."""
    match fields:
        case [authority.run, str(part), int(round), bytes(digest), int(size), bytes(_)] if (
            len(digest) == 32 and 1 <= round < 2**31 and size >= 0 and part.isprintable()
        ):
            return Entry(ContributionName(Part(part), round, author), digest.hex(), size, proof)
    raise FormatError(f"peer {author[-8:]} signed a contribution with other fields than a contribution's")


def _holder(receipt: bytes, entry: Entry, authority: Authority) -> PeerId | None:
    """The peer that signed a receipt for this entry; None if that says nothing, as the peer could not contribute to the
    part itself.

    Raises:
        FormatError: the receipt does not hold, or is for another entry.
    """
    name = entry.name
    expected: list[Any] = [authority.run, name.part, name.round, name.author, bytes.fromhex(entry.sha256)]
    if len(receipt) > PROOF_BYTES or signed.claimed_fields(receipt, RECEIPT)[1][:-1] != expected:
        raise FormatError(f"{name}: it came with what is no receipt for it")
    holder, _, card = authority.read_signed(receipt, RECEIPT)
    return holder if card.may_author(name.part) else None


def sign_revocation(operator: Identity, authority: Authority, revocation: Revocation) -> bytes:
    """Sign a revocation, as the operator."""
    fields = [authority.run, revocation.author, revocation.start, revocation.issued]
    return signed.sign_fields(operator, REVOCATION, fields)


def read_revocation(data: bytes, authority: Authority) -> Revocation:
    """Check a revocation.

    Raises:
        FormatError: it is not one of this run's operator.
    """
    signer, fields = signed.read_signed(data, REVOCATION)
    match fields:
        case [authority.run, str(author), int(start), int(issued)] if signer == authority.operator and start >= 1:
            return Revocation(PeerId(author), start, issued)
    raise FormatError("a revocation that is not this run's operator's")
