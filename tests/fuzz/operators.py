"""Readers of the operator's folder, and of the join token, which strangers show."""

import hashlib
import json
from pathlib import Path

from bootstrap.admission import audit_log, invitations, revoked
from bootstrap.admission.audit_log import LOG, AuditEntry
from bootstrap.admission.invitations import INVITATIONS, Book, Invitation
from bootstrap.admission.revoked import REVOKED, RevokedPeer
from peer.cli.tables import invitation_rows, invitations_table, log_line, log_rows
from protocol.errors import RefusedError, ResourceError
from tests.fuzz.material import AUTHOR, HOLDER, folder, from_file
from tests.fuzz.reader import Reader

NOW = 1_800_000_000.0
TOKEN = bytes(range(20))
INVITATION = Invitation(
    id=invitations.invitation_id(TOKEN),
    sha256=hashlib.sha256(TOKEN).hexdigest(),
    uses=2,
    issued=int(NOW) - 60,
    expires=int(NOW) + 60,
    used_by=(HOLDER.peer_id,),
)
BOOK = Book(closed=True, invitations=(INVITATION,)).model_dump_json().encode()
SHUT_OUT = RevokedPeer(peer=HOLDER.peer_id, start=3, at=NOW, signed=b"signed")
LOGGED = AuditEntry(what="refused", at=NOW, peer=HOLDER.peer_id, stage=1, address="192.0.2.1", reason="no\x1b[31m room")


def read_book(path: Path) -> tuple[Invitation, ...]:
    """As `hetpeer admin invitations` shows it."""
    found = invitations.listed(path.parent)
    json.dumps(invitation_rows(found, NOW))
    invitations_table(found, NOW)
    return found


def redeem_by(path: Path) -> str:
    """As the node reads it when a newcomer comes."""
    return invitations.redeem(path.parent, TOKEN, AUTHOR.peer_id, NOW)


def redeem(token: bytes) -> str:
    place = folder() / "redeeming"
    place.mkdir(exist_ok=True)
    (place / INVITATIONS).write_bytes(BOOK)
    return invitations.redeem(place, token, AUTHOR.peer_id, NOW)


def read_log(path: Path) -> list[AuditEntry]:
    """As `hetpeer admin log` shows it."""
    found = audit_log.last(path.parent, 20)
    json.dumps(log_rows(found))
    assert all(each.isprintable() for each in map(log_line, found))
    return found


OPERATORS = (
    Reader("join token", redeem, ((TOKEN, INVITATION.id),), allowed=(RefusedError,)),
    Reader(
        "invitations",
        from_file(f"invitations/{INVITATIONS}", read_book),
        ((BOOK, (INVITATION,)),),
        "json",
        (ResourceError,),
    ),
    Reader(
        "invitations at the door",
        from_file(f"door/{INVITATIONS}", redeem_by),
        ((BOOK, INVITATION.id),),
        "json",
        (ResourceError, RefusedError),
    ),
    Reader(
        "revoked peers",
        from_file(f"revoked peers/{REVOKED}", lambda path: revoked.read_revoked(path.parent)),
        ((SHUT_OUT.model_dump_json().encode() + b"\n", (SHUT_OUT,)),),
        "json",
        (ResourceError,),
    ),
    Reader("operator's log", from_file(f"log/{LOG}", read_log), ((LOGGED.line(), [LOGGED]),), "json", ()),
)
