"""The operator's lists, each read and changed by `hetpeer admin` and by the node at once: invitations (who may join a
closed run, who may become a gateway of any), revoked peers, and trials (whose contributions count).

An invitation is known by its *join token*, 4 bytes of id and 16 random bytes, which its holders show and the database
does not hold: that has its SHA-256. (A secret of 128 bits needs no slow hash.)
"""

import hashlib
import hmac
import os
import secrets
import sqlite3
import threading
from dataclasses import dataclass, field
from pathlib import Path

from bootstrap.admission.database import (
    ADD_INVITATION,
    ADD_REVOKED,
    ASK,
    DATABASE,
    MOST_USES,
    Invitation,
    RevokedPeer,
    Trials,
    changing,
    in_words,
    open_database,
    reading,
)
from protocol.errors import RefusedError, UserError
from protocol.identity import PeerId

# Invitations

ID_BYTES = 4
INVITATION_SECRET_BYTES = 16
INVITATION_TOKEN_BYTES = ID_BYTES + INVITATION_SECRET_BYTES


def invitation_id(token: bytes) -> str:
    """The id in a token, which is no secret: 8 hex digits, or "" for what is no token."""
    return token[:ID_BYTES].hex() if len(token) == INVITATION_TOKEN_BYTES else ""


def is_closed(folder: Path) -> bool:
    """Whether joining takes an invitation.

    Raises:
        ResourceError: the database cannot be read: then nobody may be let in without one either.
    """
    with reading(folder) as lists:
        ((closed,),) = lists.execute("SELECT closed FROM run")
        return bool(closed)


def set_closed(folder: Path, closed: bool) -> None:
    """Close the run to who has no invitation, or open it to everybody."""
    with changing(folder) as lists:
        lists.execute("UPDATE run SET closed = ?", (closed,))


def add_invitation(folder: Path, uses: int, seconds: int, now: float, gateway: bool = False) -> bytes:
    """Make an invitation for so many peers, or gateways, and seconds. Return its token, which nothing can show again.

    Raises:
        UserError: it would be for no peer or too many, or for no time.
        ResourceError: the database cannot be read or written.
    """
    if not 1 <= uses <= MOST_USES:
        raise UserError(f"an invitation is for 1 to {MOST_USES} peers, not {uses}")
    if seconds < 1:
        raise UserError("an invitation lasts a second at least")
    with changing(folder) as lists:
        token = secrets.token_bytes(INVITATION_TOKEN_BYTES)
        while _find(lists, invitation_id(token)):
            token = secrets.token_bytes(INVITATION_TOKEN_BYTES)
        id, sha256, issued = invitation_id(token), hashlib.sha256(token).hexdigest(), int(now)
        invitation = Invitation(
            id=id, sha256=sha256, uses=uses, issued=issued, expires=issued + seconds, gateway=gateway
        )
        lists.execute(ADD_INVITATION, invitation.model_dump())
    return token


def redeem(folder: Path, token: bytes, peer: PeerId, now: float, gateway: bool = False) -> str:
    """Let `peer` in, or let it be a gateway, by its token, for good: the use is on disk when this returns the id of
    the token's invitation. A peer that has become a gateway needs no token to come again for a certificate.

    `peer` must be proven to be the caller's. This waits for the disk, so the event loop leaves it to a thread.

    Raises:
        RefusedError: the token lets nobody in, or not this peer any more. No message tells anything of the token.
        ResourceError: the database cannot be read or written; then nobody is let in.
    """
    id = invitation_id(token)
    with changing(folder) as lists:
        is_gateway = "SELECT 1 FROM uses JOIN invitations ON id = invitation WHERE gateway AND NOT revoked AND peer = ?"
        if gateway and lists.execute(is_gateway, (peer,)).fetchone():
            return id
        if not token and not gateway:
            raise RefusedError("this run is closed, and this ticket has no invitation to it; ask its operator for one")
        invitation = _find(lists, id)
        # The whole token is compared, in a time that does not tell how much of it was right.
        expected = invitation.sha256 if invitation else "0" * 64
        if not hmac.compare_digest(hashlib.sha256(token).hexdigest(), expected):
            invitation = None
        if gateway and (invitation is None or not invitation.gateway):
            raise RefusedError(f"only a ticket of hetpeer admin invite --gateway makes a gateway; {ASK}")
        if invitation is None:
            raise RefusedError(f"this node has no invitation like this ticket's; {ASK}")
        if invitation.gateway and not gateway:
            raise RefusedError(f"this ticket's invitation is for a gateway, and for nothing else; {ASK}")
        invitation.require(peer, now)
        lists.execute("INSERT OR IGNORE INTO uses VALUES (?, ?)", (id, peer))
    return id


def withdraw_invitation(folder: Path, id: str) -> None:
    """Let nobody in by this invitation any more, nor again. Certificates that it led to run on until they end.

    Raises:
        UserError: there is no invitation with this id.
        ResourceError: the database cannot be read or written.
    """
    with changing(folder) as lists:
        if not lists.execute("UPDATE invitations SET revoked = 1 WHERE id = ?", (id,)).rowcount:
            known = ", ".join(_ids(lists)) or "none"
            raise UserError(f"there is no invitation {id!r}; there are: {known}")


def read_invitations(folder: Path) -> tuple[Invitation, ...]:
    """All invitations, those that have ended too, the oldest first.

    Raises:
        ResourceError: the database cannot be read.
    """
    with reading(folder) as lists:
        return tuple(found for id in _ids(lists) if (found := _find(lists, id)) is not None)


def _ids(lists: sqlite3.Connection) -> list[str]:
    return [id for (id,) in lists.execute("SELECT id FROM invitations ORDER BY rowid")]


def _find(lists: sqlite3.Connection, id: str) -> Invitation | None:
    """The invitation with this id."""
    row = lists.execute("SELECT * FROM invitations WHERE id = ?", (id,)).fetchone()
    if row is None:
        return None
    uses = lists.execute("SELECT peer FROM uses WHERE invitation = ? ORDER BY rowid", (id,))
    flags = {name: bool(row[name]) for name in ("revoked", "gateway")}
    return Invitation(**{**dict(row), **flags, "used_by": tuple(peer for (peer,) in uses)})


# Revoked peers


def add_revoked(folder: Path, entry: RevokedPeer) -> None:
    """Put a peer on the list. It may be there already: each of the operator's words is kept.

    Raises:
        ResourceError: the list cannot be read or written.
    """
    with changing(folder) as lists:
        lists.execute(ADD_REVOKED, entry.model_dump())


def read_revoked(folder: Path) -> tuple[RevokedPeer, ...]:
    """The list, in the order in which it was written.

    Raises:
        ResourceError: it cannot be read.
    """
    with reading(folder) as lists:
        return tuple(RevokedPeer(**dict(row)) for row in lists.execute("SELECT * FROM revoked ORDER BY rowid"))


@dataclass(slots=True)
class RevokedList:
    """The list as a node that runs looks at it: within microseconds, and with what another process has just written."""

    folder: Path
    _lists: sqlite3.Connection | None = field(default=None, repr=False)
    _file: int = 0
    _turn: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def check(self, peer: PeerId) -> None:
        """Raise unless this peer may have a certificate.

        Raises:
            RefusedError: it is on the list.
            ResourceError: the list cannot be read.
        """
        with self._turn, in_words(self.folder):
            if self._lists is None or os.stat(self.folder / DATABASE).st_ino != self._file:
                self._lists = open_database(self.folder)  # the first time, or where a copy was put in its place
                self._file = os.stat(self.folder / DATABASE).st_ino
            row = self._lists.execute("SELECT 1 FROM revoked WHERE peer = ?", (peer,)).fetchone()
        if row:
            raise RefusedError("the run's operator has revoked this peer: it gets no certificate any more")


# Trials


def read_trials(folder: Path) -> Trials:
    """Read the trials in the operator's database; in a new one nobody is tried.

    Raises:
        ResourceError: it cannot be read: then nobody can be admitted.
    """
    with reading(folder) as lists:
        ((required,),) = lists.execute("SELECT trials FROM run")
        stood = frozenset(PeerId(peer) for (peer,) in lists.execute("SELECT peer FROM stood"))
        return Trials(required=bool(required), stood=stood)


def require_trials(folder: Path, required: bool) -> None:
    """Try newcomers from now on, or no longer."""
    with changing(folder) as lists:
        lists.execute("UPDATE run SET trials = ?", (required,))


def note_stood(folder: Path, peer: PeerId) -> None:
    """Note that a peer's trial is over: its next card lets its contributions count."""
    with changing(folder) as lists:
        lists.execute("INSERT OR IGNORE INTO stood VALUES (?)", (peer,))
