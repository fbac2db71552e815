"""The rows of an operator's lists (invitations, revoked peers, trials, and the log), and the database that holds them,
in the folder of its node.

The node and `hetpeer admin` are two processes that use it at once. Every change is one transaction, so who is killed in
the middle of one has changed nothing. By SQLite's write-ahead log the node reads while another process writes.
"""

import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, Field

from protocol.clock import monotonic
from protocol.errors import RefusedError, ResourceError
from protocol.files import logged_lines, open_regular
from protocol.identity import PeerId

MOST_USES = 10_000
"""Peers that one invitation can let in."""

END_OF_TIME = 2**37
"""Unix seconds that no calendar here goes beyond: the year 6325."""

ASK = "ask the run's operator for a new ticket"


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
        """The number of peers that the invitation still lets in, unless it has ended."""
        return self.uses - len(self.used_by)

    def state(self, now: float) -> str:
        """The state of the invitation for a peer that brings it for the first time, in words for the operator."""
        if self.revoked:
            return "withdrawn"
        if now >= self.expires:
            return "expired"
        return "open" if self.left else "used up"

    def require(self, peer: PeerId, now: float) -> None:
        """Check that the invitation lets `peer` in. A peer that it has let in may come again for as long as it is not
        withdrawn: `expires` is the end for newcomers, and a volunteer's ticket must not lapse in the middle of a run.

        Raises:
            RefusedError: the invitation lets nobody in, or not this peer any more.
        """
        if self.revoked:
            raise RefusedError(f"this ticket's invitation was withdrawn; {ASK}")
        if peer in self.used_by:
            return
        if now >= self.expires:
            raise RefusedError(f"this ticket's invitation ended on {date(self.expires)}; {ASK}")
        if not self.left:
            number = "the one peer" if self.uses == 1 else f"all {self.uses} peers"
            raise RefusedError(f"this ticket's invitation has been used by {number} that it was for; {ASK}")


class RevokedPeer(BaseModel):
    """A peer that gets no new certificate."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, ser_json_bytes="base64", val_json_bytes="base64"
    )

    peer: PeerId
    start: int = Field(ge=0, lt=2**63, description="the first round without its contributions; 0: none was named")
    at: float = Field(ge=0, lt=END_OF_TIME, description="Unix seconds")
    signed: bytes = Field(b"", description="the operator's signed revocation, where one was made")


class Trials(BaseModel):
    """Whether peers that come after the run has begun are tried (`required`), and those that have stood their trial:
    the contributions of others count only once the operator's audit has seen what one of them would do."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    required: bool = False
    stood: frozenset[PeerId] = frozenset()

    def must_try(self, peer: PeerId) -> bool:
        """Whether a newcomer of a run that has begun has its trial still before it."""
        return self.required and peer not in self.stood


def date(seconds: float) -> str:
    """Unix seconds as a person reads them, the same everywhere."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M} UTC"


# The database

DATABASE = "operator.sqlite3"

TABLES_VERSION = 1
"""The version of the tables, kept in the database as its `user_version`; 0: there are none yet."""

BUSY_SECONDS = 10.0
"""The longest wait of one process for the changes of others, each of which takes milliseconds."""

SQL_TABLES = (
    "CREATE TABLE run (closed INTEGER NOT NULL, trials INTEGER NOT NULL)",
    """CREATE TABLE invitations (id TEXT PRIMARY KEY, sha256 TEXT NOT NULL, uses INTEGER NOT NULL,
       issued INTEGER NOT NULL, expires INTEGER NOT NULL, revoked INTEGER NOT NULL, gateway INTEGER NOT NULL)""",
    "CREATE TABLE uses (invitation TEXT NOT NULL, peer TEXT NOT NULL, UNIQUE (invitation, peer))",
    "CREATE TABLE revoked (peer TEXT NOT NULL, start INTEGER NOT NULL, at REAL NOT NULL, signed BLOB NOT NULL)",
    "CREATE INDEX revoked_peers ON revoked (peer)",
    "CREATE TABLE stood (peer TEXT PRIMARY KEY)",
    "CREATE TABLE log (end INTEGER PRIMARY KEY, entry TEXT NOT NULL)",  # end: bytes of all entries up to this one
)

ADD_INVITATION = "INSERT INTO invitations VALUES (:id, :sha256, :uses, :issued, :expires, :revoked, :gateway)"
ADD_REVOKED = "INSERT INTO revoked VALUES (:peer, :start, :at, :signed)"

INVITATIONS, REVOKED, TRIALS, LOG = "invitations.json", "revoked.jsonl", "trials.json", "log.jsonl"
"""The files that earlier versions kept the lists in."""

Read = TypeVar("Read")


@contextmanager
def changing(folder: Path, synchronous: str = "FULL") -> Iterator[sqlite3.Connection]:
    """The operator's lists in a transaction that no other process's change comes between. It takes effect at the end of
    the block, and then outlives a power cut; with `synchronous` "NORMAL", a power cut may take it back. If the block
    raises, nothing has changed.

    Raises:
        ResourceError: the database cannot be read or written, or is damaged.
    """
    with in_words(folder), closing(open_database(folder)) as lists:
        lists.execute(f"PRAGMA synchronous = {synchronous}")
        lists.execute("BEGIN IMMEDIATE")
        yield lists
        lists.execute("COMMIT")


@contextmanager
def reading(folder: Path) -> Iterator[sqlite3.Connection]:
    """The operator's lists as they are at one moment.

    Raises:
        ResourceError: the database cannot be read, or is damaged.
    """
    with in_words(folder), closing(open_database(folder)) as lists:
        lists.execute("BEGIN")
        yield lists


def open_database(folder: Path) -> sqlite3.Connection:
    """A connection to the database of a folder, which is made where there is none. Any thread may use it.

    Raises:
        ResourceError: the database is of a later version, or a file of an earlier one is damaged.
        sqlite3.Error, OSError: it cannot be opened.
    """
    path = folder / DATABASE
    if not path.exists():
        os.close(open_regular(path, os.O_WRONLY | os.O_CREAT, 0o600))  # SQLite would let others read it
    mode = "" if os.access(folder, os.W_OK) else "?immutable=1"  # it can be read where nothing can be written
    uri = path.absolute().as_uri() + mode
    lists = sqlite3.connect(uri, BUSY_SECONDS, isolation_level=None, check_same_thread=False, uri=True)
    try:
        lists.row_factory = sqlite3.Row
        if _version(lists) == 0:
            _write_ahead(lists)
            lists.execute("BEGIN IMMEDIATE")
            if _version(lists) == 0:  # no other process was first
                _create(lists, folder)
            lists.execute("COMMIT")
        if _version(lists) > TABLES_VERSION:
            raise ResourceError(f"{path} was written by a later version of hetpeer: install that one")
    except BaseException:
        lists.close()
        raise
    return lists


def _write_ahead(lists: sqlite3.Connection) -> None:
    """Have the database keep a write-ahead log. SQLite refuses this statement while another process makes the same
    database, and does not wait as it does in others: so it is repeated here.

    Raises:
        sqlite3.Error: it is refused for longer than `BUSY_SECONDS`, or for another reason.
    """
    ends = monotonic() + BUSY_SECONDS
    while True:
        try:
            lists.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or monotonic() >= ends:
                raise
        time.sleep(0.005)


def _version(lists: sqlite3.Connection) -> int:
    ((version,),) = lists.execute("PRAGMA user_version")
    return int(version)


def _create(lists: sqlite3.Connection, folder: Path) -> None:
    """Make the tables, and read in what an earlier version left in the folder. Its files stay as they are.

    Raises:
        ResourceError: a file cannot be read, or is damaged.
    """
    book = _read(folder / INVITATIONS, _Book.model_validate_json) or _Book()
    trials = _read(folder / TRIALS, Trials.model_validate_json) or Trials()
    revoked = _read(folder / REVOKED, _revoked_peers) or []
    for statement in SQL_TABLES:
        lists.execute(statement)
    lists.execute("INSERT INTO run VALUES (?, ?)", (book.closed, trials.required))
    for invitation in book.invitations:
        lists.execute(ADD_INVITATION, invitation.model_dump())
        lists.executemany("INSERT INTO uses VALUES (?, ?)", [(invitation.id, peer) for peer in invitation.used_by])
    lists.executemany(ADD_REVOKED, [revocation.model_dump() for revocation in revoked])
    lists.executemany("INSERT INTO stood VALUES (?)", [(peer,) for peer in trials.stood])
    end = 0
    for line in logged_lines(folder / LOG):
        end += len(line)
        lists.execute("INSERT OR IGNORE INTO log VALUES (?, ?)", (end, line.decode(errors="replace")))
    lists.execute(f"PRAGMA user_version = {TABLES_VERSION}")


class _Book(BaseModel):
    """`invitations.json` of an earlier version."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    closed: bool = False
    invitations: tuple[Invitation, ...] = ()


def _revoked_peers(data: bytes) -> list[RevokedPeer]:
    return [RevokedPeer.model_validate_json(line) for line in data.splitlines()]


def _read(path: Path, parse: Callable[[bytes], Read]) -> Read | None:
    try:
        return parse(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ResourceError(f"cannot read {path}: {error.strerror}") from None
    except ValueError:  # its message would quote the file
        raise ResourceError(f"{path} is damaged: put it back from a copy, or move it away to go on without") from None


@contextmanager
def in_words(folder: Path) -> Iterator[None]:
    """Turn errors of SQLite and of the disk, and a `ValueError` of a row that cannot be read, into one sentence that
    says nothing of the database's contents.

    Raises:
        ResourceError: the database cannot be used, or is damaged.
    """
    path = folder / DATABASE
    try:
        yield
    except OSError as error:
        raise ResourceError(f"cannot use {path}: {error.strerror}") from None
    except sqlite3.OperationalError as error:
        raise ResourceError(f"cannot use {path}: {error}") from None
    except (sqlite3.Error, ValueError):
        raise ResourceError(f"{path} is damaged: put it back from a copy") from None
