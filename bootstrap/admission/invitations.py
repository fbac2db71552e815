"""Who may join a closed run, and who may become a gateway of any: the operator's invitations, and who has used them.

An invitation is known by its *join token*, 4 bytes of id and 16 random bytes, which its holders show and this folder
does not keep: the book has its SHA-256. (A secret of 128 bits needs no slow hash.) The node and `hetpeer admin` are
two processes, so every change is made under a lock, on the book as it is on disk.
"""

import hashlib
import hmac
import secrets
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from protocol.errors import RefusedError, ResourceError, UserError
from protocol.files import exclusive, write_atomically
from protocol.identity import PeerId

INVITATIONS = "invitations.json"

ID_BYTES = 4
SECRET_BYTES = 16
TOKEN_BYTES = ID_BYTES + SECRET_BYTES

MOST_USES = 10_000
"""Of one invitation: the book is read and written whole, and 50 bytes for each peer make half a megabyte."""

END_OF_TIME = 2**37
"""Unix seconds that no calendar here goes beyond: the year 6325."""

Kept = TypeVar("Kept", bound=BaseModel)

_ASK = "ask the run's operator for a new ticket"


class Invitation(BaseModel):
    """A promise to let in some peers. `issued` and `expires` are Unix seconds."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    id: str = Field(pattern=r"^[0-9a-f]{8}$")
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$", repr=False, description="of the whole token")
    uses: int = Field(ge=1, le=MOST_USES)
    issued: int = Field(ge=0, lt=END_OF_TIME)
    expires: int = Field(ge=0, lt=END_OF_TIME)
    used_by: tuple[PeerId, ...] = ()
    revoked: bool = False
    gateway: bool = Field(False, description="it makes gateways, and nothing else; others never make one")

    @property
    def left(self) -> int:
        """How many more peers it lets in, unless it has ended."""
        return self.uses - len(self.used_by)

    def state(self, now: float) -> str:
        """What it is to a peer that comes with it for the first time."""
        if self.revoked:
            return "withdrawn"
        if now >= self.expires:
            return "expired"
        return "open" if self.left else "used up"


class Book(BaseModel):
    """Whether the run is closed, and its invitations, the oldest first."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    closed: bool = False
    invitations: tuple[Invitation, ...] = ()

    def redeemed(self, token: bytes, peer: PeerId, now: float) -> "Book":
        """The book after `peer` has come with `token`: this one, if it came with it before.

        Whoever has been let in may come again for as long as the invitation is not withdrawn: `expires` is the end for
        newcomers, and a volunteer's ticket must not lapse in the middle of a run.

        Raises:
            RefusedError: the token lets nobody in, or not this peer any more.
        """
        if not token:
            raise RefusedError("this run is closed, and this ticket has no invitation to it; ask its operator for one")
        invitation = self._of(token)
        if invitation is None:
            raise RefusedError(f"this node has no invitation like this ticket's; {_ASK}")
        if invitation.gateway:
            raise RefusedError(f"this ticket's invitation is for a gateway, and for nothing else; {_ASK}")
        return self._used(invitation, peer, now)

    def made_gateway(self, token: bytes, peer: PeerId, now: float) -> "Book":
        """The book after `peer` has come to certify others: by an invitation that is for that, in an open run too. Who
        has used one before needs to show none: a gateway comes again for each of its certificates.

        Raises:
            RefusedError: the operator has not made this peer a gateway.
        """
        if any(each.gateway and not each.revoked and peer in each.used_by for each in self.invitations):
            return self
        invitation = self._of(token)
        if invitation is None or not invitation.gateway:
            raise RefusedError(f"only a ticket of hetpeer admin invite --gateway makes a gateway; {_ASK}")
        return self._used(invitation, peer, now)

    def _used(self, invitation: Invitation, peer: PeerId, now: float) -> "Book":
        if invitation.revoked:
            raise RefusedError(f"this ticket's invitation was withdrawn; {_ASK}")
        if peer in invitation.used_by:
            return self
        if now >= invitation.expires:
            raise RefusedError(f"this ticket's invitation ended on {date(invitation.expires)}; {_ASK}")
        if not invitation.left:
            number = "the one peer" if invitation.uses == 1 else f"all {invitation.uses} peers"
            raise RefusedError(f"this ticket's invitation has been used by {number} that it was for; {_ASK}")
        return self._with(invitation.model_copy(update={"used_by": (*invitation.used_by, peer)}))

    def _of(self, token: bytes) -> Invitation | None:
        """By the id; then the whole token is compared, in a time that does not tell how much of it was right."""
        found = self.find(invitation_id(token))
        expected = found.sha256 if found else "0" * 64
        return found if hmac.compare_digest(hashlib.sha256(token).hexdigest(), expected) else None

    def find(self, id: str) -> Invitation | None:
        """The invitation with this id."""
        return next((each for each in self.invitations if each.id == id), None)

    def _with(self, changed: Invitation) -> "Book":
        return self.model_copy(
            update={"invitations": tuple(changed if each.id == changed.id else each for each in self.invitations)}
        )

    def withdrawn(self, id: str) -> "Book":
        """The book after an invitation has been withdrawn, once or again.

        Raises:
            UserError: there is none with this id.
        """
        invitation = self.find(id)
        if invitation is None:
            known = ", ".join(each.id for each in self.invitations) or "none"
            raise UserError(f"there is no invitation {id!r}; there are: {known}")
        return self._with(invitation.model_copy(update={"revoked": True}))


def date(seconds: float) -> str:
    """Unix seconds as a person reads them, the same everywhere."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M} UTC"


def invitation_id(token: bytes) -> str:
    """The id in a token, which is no secret: 8 hex digits, or "" for what is no token."""
    return token[:ID_BYTES].hex() if len(token) == TOKEN_BYTES else ""


def is_closed(folder: Path) -> bool:
    """Whether joining takes an invitation.

    Raises:
        ResourceError: the book is damaged: then nobody may be let in without one either.
    """
    return _read(folder).closed


def set_closed(folder: Path, closed: bool) -> None:
    """Close the run to who has no invitation, or open it to everybody."""
    with exclusive(folder / INVITATIONS):
        _write(folder, _read(folder).model_copy(update={"closed": closed}))


def invite(folder: Path, uses: int, seconds: int, now: float, gateway: bool = False) -> bytes:
    """A new invitation for so many peers, or gateways, and seconds; its token, which nothing can show again.

    Raises:
        UserError: for no peer or too many, or for no time.
    """
    if not 1 <= uses <= MOST_USES:
        raise UserError(f"an invitation is for 1 to {MOST_USES} peers, not {uses}")
    if seconds < 1:
        raise UserError("an invitation lasts a second at least")
    with exclusive(folder / INVITATIONS):
        book = _read(folder)
        token = secrets.token_bytes(TOKEN_BYTES)
        while book.find(invitation_id(token)):
            token = secrets.token_bytes(TOKEN_BYTES)
        made = Invitation(
            id=invitation_id(token),
            sha256=hashlib.sha256(token).hexdigest(),
            uses=uses,
            issued=int(now),
            expires=int(now) + seconds,
            gateway=gateway,
        )
        _write(folder, book.model_copy(update={"invitations": (*book.invitations, made)}))
    return token


def redeem(folder: Path, token: bytes, peer: PeerId, now: float, gateway: bool = False) -> str:
    """Let `peer` in, or let it be a gateway, by its token, for good: the use is on disk when this returns the id of
    the token's invitation.

    `peer` must be proven to be the caller's. This waits for the disk, so the event loop leaves it to a thread.

    Raises:
        RefusedError: as `Book.redeemed` says. No message tells anything of the token.
        ResourceError: the book cannot be read or written; then nobody is let in.
    """
    with exclusive(folder / INVITATIONS):
        before = _read(folder)
        after = before.made_gateway(token, peer, now) if gateway else before.redeemed(token, peer, now)
        if after is not before:
            _write(folder, after)
    return invitation_id(token)


def withdraw(folder: Path, id: str) -> None:
    """Let nobody in by this invitation any more, nor again. Certificates that it led to run on until they end.

    Raises:
        UserError: there is none with this id.
    """
    with exclusive(folder / INVITATIONS):
        _write(folder, _read(folder).withdrawn(id))


def listed(folder: Path) -> tuple[Invitation, ...]:
    """All invitations, those that have ended too, the oldest first."""
    return _read(folder).invitations


def _read(folder: Path) -> Book:
    return read_json(folder / INVITATIONS, Book, "move it away and invite anew")


def _write(folder: Path, book: Book) -> None:
    write_atomically(folder / INVITATIONS, book.model_dump_json(indent=1).encode() + b"\n", 0o600)


def read_json(path: Path, model: type[Kept], otherwise: str) -> Kept:
    """What the node keeps as one JSON file, checked, or the default where there is none. `otherwise` says what can
    be done besides putting a damaged one back from a copy.

    Raises:
        ResourceError: it cannot be read, or is damaged; then nobody may be let in.
    """
    try:
        return model.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return model()
    except OSError as error:
        raise ResourceError(f"cannot read {path}: {error.strerror}") from None
    except ValidationError:  # its message would quote the file
        raise ResourceError(f"{path} is damaged: put it back from a copy, or {otherwise}") from None
