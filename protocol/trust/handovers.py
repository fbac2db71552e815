"""Handovers: a volunteer that leaves hands its error feedback and the optimizer's state to another of its stage.

Error feedback must count once. The giver sets it aside for one successor, durably, before it offers it, and does not
use it again unless that successor has declined. The successor adds it to its own and writes down the handover's number
in one step, durably, before it answers; a repeat is answered and not added. So a crash at any moment leaves it with
exactly one of them: with the successor, or set aside in the giver's folder until the two meet again.

On the wire an offer is a `bequest`, and the answer to it an `inheritance`.
"""

import hashlib
from dataclasses import dataclass, field
from typing import Literal

from protocol.errors import FormatError
from protocol.identity import PeerId, parts_authored
from protocol.layout import elements, model_layout
from protocol.manifest import Manifest
from protocol.trust import signed
from protocol.trust.membership_card import Authority, Signer

KIND, ANSWER = "bequest", "inheritance"

REASON_CHARACTERS = 200

NAME_BYTES = 1024
"""The longest line of one tensor in the header of a safetensors file, generously."""


@dataclass(frozen=True, slots=True)
class HandoverOffer:
    """One giver's offer to one successor. `number` counts the giver's handovers from 1; `stage` is the giver's."""

    giver: PeerId
    successor: PeerId
    number: int
    stage: int
    sha256: str
    size: int


@dataclass(slots=True)
class Handovers:
    """The handovers that one peer has given and taken. `blob` is what it has set aside for `successor`, which has not
    answered yet; both are empty otherwise. `given` counts its handovers, `taken` has the number of each giver's last
    one."""

    given: int = 0
    successor: PeerId | Literal[""] = ""
    blob: bytes = b""
    taken: dict[PeerId, int] = field(default_factory=dict)
    sha256: str = field(init=False)
    """The SHA-256 of `blob`."""

    def __post_init__(self) -> None:
        self.sha256 = hashlib.sha256(self.blob).hexdigest()

    def set_aside(self, successor: PeerId, blob: bytes) -> None:
        """Set one more handover aside for a successor."""
        self.given, self.successor, self.blob = self.given + 1, successor, blob
        self.sha256 = hashlib.sha256(blob).hexdigest()

    def settle(self) -> None:
        """Forget the handover that was set aside: its successor has answered."""
        self.successor, self.blob = "", b""

    def has_taken(self, offer: HandoverOffer) -> bool:
        """Whether a handover is this peer's already. A giver has one open at a time, so older ones are settled."""
        return offer.number <= self.taken.get(offer.giver, 0)


def largest_handover(manifest: Manifest, stage: int) -> int:
    """The most bytes in a handover of a stage: int32 error feedback, two float32 moments, a count and a name each."""
    layouts = [model_layout(manifest)[part] for part in parts_authored(stage)]
    tensors = sum(len(layout) for layout in layouts)
    return sum(3 * 4 * elements(layout) for layout in layouts) + 4 * (NAME_BYTES + 4) * tensors


def sign_handover(signer: Signer, offer: HandoverOffer) -> bytes:
    """Sign an offer; the card tells the stage."""
    sha256 = bytes.fromhex(offer.sha256)
    fields = [signer.authority.run, offer.successor, offer.number, sha256, offer.size, signer.card]
    return signed.sign_fields(signer.identity, KIND, fields)


def read_handover(data: bytes, authority: Authority) -> HandoverOffer:
    """Check an offer.

    Raises:
        FormatError: the signature does not hold, or the giver was not admitted as a volunteer.
    """
    giver, fields, card = authority.read_signed(data, KIND)
    match fields:
        case [_, str(successor), int(number), bytes(digest), int(size), _] if (
            1 <= number < 2**31 and len(digest) == 32 and size >= 0
        ):
            if card.role != "volunteer":
                raise FormatError(f"peer {giver[-8:]} was not admitted as a volunteer, and has nothing to hand over")
            return HandoverOffer(giver, PeerId(successor), number, card.stage, digest.hex(), size)
    raise FormatError(f"peer {giver[-8:]} signed a bequest with other fields than a bequest's")


def sign_answer(signer: Signer, offer: HandoverOffer, reason: str) -> bytes:
    """Sign the successor's answer: an empty `reason` means that the handover is taken and safe on disk, any other that
    it is not taken, and why."""
    fields = [signer.authority.run, offer.giver, offer.number, reason[:REASON_CHARACTERS]]
    return signed.sign_fields(signer.identity, ANSWER, fields)


def read_answer(data: bytes, offer: HandoverOffer, authority: Authority) -> str:
    """Check an answer. Returns why the handover was declined; empty: it is taken.

    Raises:
        FormatError: it is not this successor's to this offer.
    """
    successor, fields = signed.read_signed(data, ANSWER)
    match fields:
        case [authority.run, offer.giver, offer.number, str(reason)] if successor == offer.successor:
            return reason[:REASON_CHARACTERS]
    raise FormatError(f"peer {successor[-8:]} answered for peer {offer.successor[-8:]}, or to another bequest")
