"""Cards: the operator's signed word that a key has a place in the run; and who reads and who shows them.

A gateway (another node of the operator's) may give out cards, too; each then carries the gateway's own card, which the
operator signed. Only the operator itself can make gateways, and revoke: with a gateway fall the cards that it gave.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from protocol.errors import FormatError
from protocol.identity import NO_PEER, PeerId, RunId, contributes_to
from protocol.trust import signed
from protocol.trust.keys import Identity

KIND = "card"

Role = Literal["volunteer", "datacenter", "observer"]
ROLES = (*get_args(Role), "gateway")


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
            FormatError: it does not hold any longer, or is another's.
        """
        card = self.admitted(signer, data)
        if card.issuer and self.fallen(card.issuer):
            raise FormatError(f"the operator has taken out the gateway that let peer {signer[-8:]} in")
        return card

    def read(self, data: bytes) -> Card:
        """Check the signatures of a card.

        Raises:
            FormatError: the signature does not hold, it is of another run, or of nobody who may admit.
        """
        issuer, fields = signed.read_signed(data, KIND)
        card, run, by = _parse(fields)
        if run != self.run:
            raise FormatError(f"the card of {card.peer} is of another run")
        if issuer == self.operator:
            return card
        gateway = self.read(by) if by else None
        if gateway is None or gateway.role != "gateway" or gateway.peer != issuer or card.role == "gateway":
            raise FormatError(f"the card of {card.peer} is signed by nobody who may admit")
        return replace(card, issuer=issuer)


@dataclass(slots=True)
class Signer:
    """The signer of this peer: its key and card, and the run it signs for. A peer that has stood its trial gets another
    card."""

    identity: Identity
    authority: Authority
    card: bytes


def issue(identity: Identity, run: RunId, card: Card, own_card: bytes = b"") -> bytes:
    """Sign the card of a peer. `own_card` is the issuer's, if it is a gateway."""
    return signed.sign(identity, KIND, [run, card.peer, card.role, card.stage, card.slot, int(card.on_trial), own_card])


def _parse(fields: list[Any]) -> tuple[Card, str, bytes]:
    match fields:
        case [str(run), str(peer), str(role), int(stage), int(slot), int(on_trial), bytes(by)] if (
            role in ROLES
            and (1 <= len(peer) <= 64 and peer.isprintable())
            and (0 <= stage < 1024 and 0 <= slot < 2**31 and on_trial in (0, 1))
        ):
            return Card(PeerId(peer), role, stage, slot, bool(on_trial)), run, by
    raise FormatError("a card with other fields than a card's")
