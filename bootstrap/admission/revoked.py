"""Whom the operator has shut out: `hetpeer admin revoke` writes the list, the node reads it at every registration."""

from dataclasses import dataclass, field
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from bootstrap.admission.invitations import END_OF_TIME
from protocol.errors import RefusedError, ResourceError
from protocol.files import exclusive, write_atomically
from protocol.identity import PeerId

REVOKED = "revoked.jsonl"


class RevokedPeer(BaseModel):
    """A peer that gets no new certificate."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, ser_json_bytes="base64", val_json_bytes="base64"
    )

    peer: PeerId
    start: int = Field(ge=0, description="the first round without its contributions; 0: none was named")
    at: float = Field(ge=0, lt=END_OF_TIME, description="Unix seconds")
    signed: bytes = Field(b"", description="the operator's signed revocation, where one was made")


def add(folder: Path, entry: RevokedPeer) -> None:
    """Put a peer on the list. It may be there already: each of the operator's words is kept.

    Raises:
        ResourceError: the list cannot be read or written.
    """
    path = folder / REVOKED
    with exclusive(path):
        entries = (*read_revoked(folder), entry)
        lines = (each.model_dump_json() + "\n" for each in entries)
        write_atomically(path, "".join(lines).encode(), 0o600)


def read_revoked(folder: Path) -> tuple[RevokedPeer, ...]:
    """The list, in the order in which it was written.

    Raises:
        ResourceError: it cannot be read; then nobody may get a certificate.
    """
    path = folder / REVOKED
    try:
        return tuple(RevokedPeer.model_validate_json(line) for line in path.read_bytes().splitlines())
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise ResourceError(f"cannot read {path}: {error.strerror}") from None
    except ValidationError:
        raise ResourceError(f"{path} is damaged: put it back from a copy") from None


@dataclass(slots=True)
class RevokedList:
    """The list as the node knows it, read again only when it has changed."""

    folder: Path
    entries: tuple[RevokedPeer, ...] = ()
    peers: frozenset[PeerId] = frozenset()
    _version: tuple[int, int, int] | None = field(default=None, repr=False)

    def check(self, peer: PeerId) -> None:
        """Raise unless this peer may have a certificate.

        Raises:
            RefusedError: it is on the list.
            ResourceError: the list cannot be read.
        """
        self.refresh()
        if peer in self.peers:
            raise RefusedError("the run's operator has revoked this peer: it gets no certificate any more")

    def refresh(self) -> bool:
        """Look whether the list has changed, and read it then; whether it had. Every change makes it longer."""
        try:
            found = (self.folder / REVOKED).stat()
            version = (found.st_mtime_ns, found.st_size, found.st_ino)
        except FileNotFoundError:
            version = None
        except OSError as error:
            raise ResourceError(f"cannot read {self.folder / REVOKED}: {error.strerror}") from None
        if version == self._version:
            return False
        self.entries = read_revoked(self.folder)
        self.peers = frozenset(each.peer for each in self.entries)
        self._version = version  # of before the reading: what came in between is read again
        return True
