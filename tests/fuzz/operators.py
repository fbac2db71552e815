"""Readers of the operator's folder, and of the join token, which strangers show."""

import hashlib
import json
import tempfile
from collections.abc import Callable
from pathlib import Path

from bootstrap.admission import audit_log, operator_lists
from bootstrap.admission.audit_log import AuditEntry
from bootstrap.admission.database import DATABASE, INVITATIONS, LOG, REVOKED, TRIALS, Invitation, RevokedPeer, Trials
from peer.cli.tables import invitation_rows, invitations_table, log_line, log_rows
from protocol.errors import RefusedError, ResourceError
from tests.fuzz.material import AUTHOR, HOLDER, folder, from_file
from tests.fuzz.reader import Reader

NOW = 1_800_000_000.0
TOKEN = bytes(range(20))
INVITATION = Invitation(
    id=operator_lists.invitation_id(TOKEN),
    sha256=hashlib.sha256(TOKEN).hexdigest(),
    uses=2,
    issued=int(NOW) - 60,
    expires=int(NOW) + 60,
    used_by=(HOLDER.peer_id,),
)
BOOK = json.dumps({"closed": True, "invitations": [INVITATION.model_dump()]}).encode()
SHUT_OUT = RevokedPeer(peer=HOLDER.peer_id, start=3, at=NOW, signed=b"signed")
LOGGED = AuditEntry(what="refused", at=NOW, peer=HOLDER.peer_id, stage=1, address="192.0.2.1", reason="no\x1b[31m room")


def read_book(path: Path) -> tuple[Invitation, ...]:
    """As `hetpeer admin invitations` shows it."""
    found = operator_lists.read_invitations(path.parent)
    json.dumps(invitation_rows(found, NOW))
    invitations_table(found, NOW)
    return found


def redeem_by(path: Path) -> str:
    """As the node reads it when a newcomer comes."""
    return operator_lists.redeem(path.parent, TOKEN, AUTHOR.peer_id, NOW)


def redeem(token: bytes) -> str:
    return old_file(INVITATIONS, lambda path: operator_lists.redeem(path.parent, token, AUTHOR.peer_id, NOW))(BOOK)


def read_log(path: Path) -> list[AuditEntry]:
    """As `hetpeer admin log` shows it."""
    found = audit_log.last(path.parent, 20)
    json.dumps(log_rows(found))
    assert all(each.isprintable() for each in map(log_line, found))
    return found


def old_file(name: str, read: Callable[[Path], object]) -> Callable[[bytes], object]:
    """A reader of a file that an earlier version left, which is read in once: each time in a folder of its own."""
    return lambda data: from_file(f"{tempfile.mkdtemp(dir=folder())}/{name}", read)(data)


def database() -> bytes:
    """A database of all lists, as a node that has stopped leaves it."""
    place = Path(tempfile.mkdtemp(dir=folder()))
    (place / INVITATIONS).write_bytes(BOOK)
    operator_lists.add_revoked(place, SHUT_OUT)
    operator_lists.note_stood(place, HOLDER.peer_id)
    audit_log.append_entry(place, LOGGED)
    return (place / DATABASE).read_bytes()


def read_all(path: Path) -> tuple[object, ...]:
    """All lists of a database."""
    return (
        read_book(path),
        operator_lists.read_revoked(path.parent),
        operator_lists.read_trials(path.parent),
        read_log(path),
    )


TRIED = Trials(required=True, stood=frozenset({HOLDER.peer_id}))
ALL = (INVITATION,), (SHUT_OUT,), Trials(stood=frozenset({HOLDER.peer_id})), [LOGGED]

OPERATORS = (
    Reader("join token", redeem, ((TOKEN, INVITATION.id),), allowed=(RefusedError,)),
    Reader("operator's database", old_file(DATABASE, read_all), ((database(), ALL),), allowed=(ResourceError,)),
    Reader("old invitations", old_file(INVITATIONS, read_book), ((BOOK, (INVITATION,)),), "json", (ResourceError,)),
    Reader(
        "old invitations at the door",
        old_file(INVITATIONS, redeem_by),
        ((BOOK, INVITATION.id),),
        "json",
        (ResourceError, RefusedError),
    ),
    Reader(
        "old list of revoked peers",
        old_file(REVOKED, lambda path: operator_lists.read_revoked(path.parent)),
        ((SHUT_OUT.model_dump_json().encode() + b"\n", (SHUT_OUT,)),),
        "json",
        (ResourceError,),
    ),
    Reader(
        "old list of trials",
        old_file(TRIALS, lambda path: operator_lists.read_trials(path.parent)),
        ((TRIED.model_dump_json().encode(), TRIED),),
        "json",
        (ResourceError,),
    ),
    Reader("old log", old_file(LOG, read_log), ((LOGGED.line().encode() + b"\n", [LOGGED]),), "json", ()),
)
