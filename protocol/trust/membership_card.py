"""Cards: the operator's signed word that a key has a place in the run; and who reads and who shows them.

A gateway (another node of the operator's) may give out cards, too; each then carries the gateway's own card, which the
operator signed. Only the operator itself can make gateways, and revoke: with a gateway fall the cards that it gave. So
there is one level of gateways, which is seen before a signature is checked.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from protocol.errors import FormatError
from protocol.identity import NO_PEER, PeerId, RunId, contributes_to
from protocol.limits import CARD_BYTES
from protocol.trust import signed
from protocol.trust.keys import Identity

CARD_KIND = "card"

Role = Literal["volunteer", "datacenter", "observer"]
CARD_ROLES = (*get_args(Role), "gateway")


@dataclass(frozen=True, slots=True)
class Card:
    """A card: who may take part, as what. `slot` decides which tokens the replica reads that this peer leads.

    Who is `on_trial` takes part in everything, but what it contributes counts nowhere, until the operator has seen what
    it would have done and gives it another card. A contribution counts if there is *any* card with which its author
    signed it and that lets it count: so peers that were shown different cards agree in the end.
    """

    peer: PeerId
    role: str
    stage: int
    slot: int
    on_trial: bool = False
    issuer: PeerId = field(default=NO_PEER, compare=False)
    """The gateway that gave the card; empty: the operator itself."""

    def authors(self, part: str) -> bool:
        """Whether this peer's place is one that contributes to a part."""
        return contributes_to(self.role, self.stage, part)

    def may_author(self, part: str) -> bool:
        """Whether contributions of this peer to a part count."""
        return self.authors(part) and not self.on_trial


class FallenError(FormatError):
    """The operator has taken out the gateway that let a peer in. Who has not heard of that yet still believes the
    peer's card, and passes on what it came with."""


@dataclass(frozen=True, slots=True)
class Authority:
    """The authority of a run, by whose word peers are admitted. `fallen` tells whether the operator has taken a gateway
    out."""

    run: RunId
    operator: PeerId
    fallen: Callable[[PeerId], bool] = field(default=lambda gateway: False, compare=False, repr=False)

    def admitted(self, signer: PeerId, data: bytes) -> Card:
        """Check the card that came with what a peer signed. Whether the card held in the round that is signed for is
        the ledger's to say.

        Raises:
            FormatError: it is nobody's who may admit, or another's.
        """
        card = self.read(data)
        if card.peer != signer:
            raise FormatError(f"peer {signer[-8:]} signed with another's card")
        return card

    def admitted_now(self, signer: PeerId, data: bytes) -> Card:
        """Check the card that a peer shows to take part.

        Raises:
            FormatError: it does not hold any longer (`FallenError`), or is another's.
        """
        card = self.admitted(signer, data)
        self.require_standing(card)
        return card

    def require_standing(self, card: Card) -> None:
        """Check that the gateway that gave a card, if one did, has not been taken out.

        Raises:
            FallenError: it has.
        """
        if card.issuer and self.fallen(card.issuer):
            raise FallenError(f"the operator has taken out the gateway that let peer {card.peer[-8:]} in")

    def read(self, data: bytes) -> Card:
        """Check the signatures of a card.

        Raises:
            FormatError: a signature does not hold, it is of another run, or of nobody who may admit.
        """
        card, chain = self._claimed(data)
        for signed_card in chain:
            signed.verify_signature(signed_card)
        return card

    def read_signed(self, data: bytes, kind: str) -> tuple[PeerId, list[Any], Card]:
        """Check a message of a kind, whose first field is the run's id and whose last is its signer's card. Returns who
        signed it, its fields, which are still to be checked, and the card.

        What the message and its cards claim is looked at first, so that one that cannot hold costs no check of a
        signature; any other costs `SIGNATURES_OF_A_MESSAGE` at most.

        Raises:
            FormatError: it is malformed, of another kind or run, or its signer was not admitted.
        """
        signer, fields, card, chain = self._message(data, kind)
        for signed_card in (*chain, data):
            signed.verify_signature(signed_card)
        return signer, fields, card

    def unchecked(self, data: bytes, kind: str) -> int:
        """Count the signatures of a message that would have to be checked to read it: what reading it costs. A message
        that cannot hold takes none."""
        try:
            _, _, _, chain = self._message(data, kind)
        except FormatError:
            return 0
        return sum(not signed.is_verified(signed_card) for signed_card in (*chain, data))

    def _message(self, data: bytes, kind: str) -> tuple[PeerId, list[Any], Card, tuple[bytes, ...]]:
        """Read what a message and its signer's cards claim. **Nothing of it is checked yet.**"""
        signer, fields = signed.claimed_fields(data, kind)
        match fields:
            case [self.run, *_, bytes(card_data)]:
                card, chain = self._claimed(card_data)
                if card.peer != signer:
                    raise FormatError(f"peer {signer[-8:]} signed with another's card")
                return signer, fields, card, chain
        raise FormatError(f"peer {signer[-8:]} signed no {kind} of this run")

    def _claimed(self, data: bytes) -> tuple[Card, tuple[bytes, ...]]:
        """Read what a card claims. Returns it, and the signed cards to check: its gateway's, if it has one, and its
        own. **Nothing of it is checked yet.**"""
        if len(data) > CARD_BYTES:
            raise FormatError(f"a card of {len(data)} bytes, where {CARD_BYTES} are allowed")
        issuer, card, by = self._level(data)
        if issuer == self.operator and not by:
            return card, (data,)
        if by and card.role != "gateway":
            gateway_issuer, gateway, above = self._level(by)
            if (gateway_issuer, gateway.role, gateway.peer, above) == (self.operator, "gateway", issuer, b""):
                return replace(card, issuer=issuer), (by, data)
        raise FormatError(f"the card of {card.peer} is signed by nobody who may admit")

    def _level(self, data: bytes) -> tuple[PeerId, Card, bytes]:
        """Read one card. Returns who would have signed it, what it says, and the bytes of that peer's own card."""
        issuer, fields = signed.claimed_fields(data, CARD_KIND)
        card, run, by = _parse(fields)
        if run != self.run:
            raise FormatError(f"the card of {card.peer} is of another run")
        return issuer, card, by


@dataclass(slots=True)
class Signer:
    """The signer of this peer: its key and card, and the run it signs for. A peer that has stood its trial gets another
    card."""

    identity: Identity
    authority: Authority
    card: bytes


def issue(identity: Identity, run: RunId, card: Card, own_card: bytes = b"") -> bytes:
    """Sign the card of a peer. `own_card` is the issuer's, if it is a gateway."""
    return signed.sign_fields(
        identity, CARD_KIND, [run, card.peer, card.role, card.stage, card.slot, int(card.on_trial), own_card]
    )


def _parse(fields: list[Any]) -> tuple[Card, str, bytes]:
    match fields:
        case [str(run), str(peer), str(role), int(stage), int(slot), int(on_trial), bytes(by)] if (
            role in CARD_ROLES
            and (1 <= len(peer) <= 64 and peer.isprintable())
            and (0 <= stage < 1024 and 0 <= slot < 2**31 and on_trial in (0, 1))
        ):
            return Card(PeerId(peer), role, stage, slot, bool(on_trial)), run, by
    raise FormatError("a card with other fields than a card's")
