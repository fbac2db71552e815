"""The operator's decisions on who may register: the invitations, the list of those banned, and the log."""

from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from bootstrap.admission import audit_log, operator_lists
from bootstrap.admission.audit_log import AuditEntry
from bootstrap.admission.database import Trials
from bootstrap.admission.operator_lists import RevokedList
from bootstrap.rate_limit import Rates, host_of
from protocol.clock import monotonic, unix_time
from protocol.errors import RefusedError, ResourceError
from protocol.identity import PeerId
from protocol.limits import SIGNED_BYTES
from protocol.trust.attestations import KEPT
from protocol.trust.membership_card import Card

OBSERVER_FOLDER = "observer"
"""The folder of the observer beside the node, in the node's folder."""


@dataclass(slots=True)
class AdmissionPolicy:
    """`folder` is the node's. What welcomes, tries and notes waits for the disk: off the event loop."""

    folder: Path
    rates: Rates = field(default_factory=Rates)
    revoked: RevokedList = field(init=False)

    def __post_init__(self) -> None:
        self.revoked = RevokedList(self.folder)

    def count_attempt(self, caller: str, token: bytes) -> None:
        """Count a registration attempt, from the address that gRPC reports.

        Raises:
            RefusedError: too often.
        """
        self.rates.take(caller, operator_lists.invitation_id(token), monotonic())

    def require_welcome(self, peer: PeerId, token: bytes, gateway: bool = False) -> str:
        """The id of the invitation by which a peer may come in, or become a gateway; empty where it needs none, or has
        shown none again.

        Raises:
            RefusedError: it may not.
            ResourceError: the node's folder cannot be read or written; nobody is let in then.
        """
        self.revoked.check(peer)
        if not gateway and not operator_lists.is_closed(self.folder):
            return ""
        return operator_lists.redeem(self.folder, token, peer, unix_time(), gateway)

    def is_closed(self) -> bool:
        """Whether joining takes an invitation.

        Raises:
            ResourceError: the node's folder cannot be read.
        """
        return operator_lists.is_closed(self.folder)

    def trials(self) -> Trials:
        """Whether newcomers are tried, and who has stood it.

        Raises:
            ResourceError: the node's folder cannot be read; nobody is let in then.
        """
        return operator_lists.read_trials(self.folder)

    def attestation(self) -> bytes:
        """The newest that the observer beside this node has made or heard of; empty: none."""
        try:
            with (self.folder / OBSERVER_FOLDER / KEPT).open("rb") as file:
                return file.read(SIGNED_BYTES)
        except OSError:
            return b""

    def objection(self, peer: PeerId) -> str:
        """Return why a peer's calls are refused now; empty: they are not. Checks the list's date, and reads what is
        new."""
        try:
            self.revoked.check(peer)
        except RefusedError as error:
            return str(error)
        except ResourceError:  # the details are no business of strangers
            return "this node cannot keep its records now"
        return ""

    def is_revoked(self, peer: PeerId) -> bool:
        """Whether the operator has revoked a peer, as far as the list can be read."""
        try:
            self.revoked.check(peer)
        except RefusedError:
            return True
        except ResourceError:
            return False
        return False

    def note_admitted(self, card: Card, caller: str, invitation: str, again: bool) -> None:
        """Write down who has come in, or has renewed its certificate."""
        entry = AuditEntry(
            what="renewed" if again else "admitted",
            at=unix_time(),
            peer=card.peer,
            role=card.role,
            stage=card.stage,
            slot=card.slot,
            reason="on trial" if card.on_trial else "",
            address=host_of(caller),
            invitation=invitation,
        )
        audit_log.append_entry(self.folder, entry)

    def note_refused(self, peer: str, caller: str, reason: str) -> None:
        """Write down who was not let in."""
        entry = AuditEntry(what="refused", at=unix_time(), peer=peer, address=host_of(caller), reason=reason)
        with suppress(ResourceError):  # a full disk is no reason to tell a stranger anything else
            audit_log.append_entry(self.folder, entry)
