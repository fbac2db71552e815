"""Whom the operator has shut out: `hetpeer admin revoke` writes the list, the node looks there at every call."""

import os
import sqlite3
import threading
from dataclasses import dataclass, field
from pathlib import Path

from bootstrap.admission.database import ADD_REVOKED, DATABASE, changing, connect, in_words, reading
from bootstrap.admission.lists import RevokedPeer
from protocol.errors import RefusedError
from protocol.identity import PeerId


def add(folder: Path, entry: RevokedPeer) -> None:
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
                self._lists = connect(self.folder)  # the first time, or where a copy was put in its place
                self._file = os.stat(self.folder / DATABASE).st_ino
            found = self._lists.execute("SELECT 1 FROM revoked WHERE peer = ?", (peer,)).fetchone()
        if found:
            raise RefusedError("the run's operator has revoked this peer: it gets no certificate any more")
