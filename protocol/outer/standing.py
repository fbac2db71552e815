"""What becomes of a contribution that a peer is offered."""

from enum import Enum


class Standing(Enum):
    """What a ledger makes of an entry it is offered."""

    ACCEPTED = "accepted"
    WANTED = "its bytes are missing"
    EARLY = "its round has not begun here"
    UNPROVEN = "it is late and has too few receipts"
    CLOSED = "its round is closed"
    SURPLUS = "two versions of it are known, which void each other"
    FALLEN = "the operator has taken out the gateway that let its author in"
