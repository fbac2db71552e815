"""The operator's log: who came, who was refused, and what the operator did about it. It has no field for a token or a
key. The node and `hetpeer admin` both write it."""

import json
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from bootstrap.admission.database import DATABASE, END_OF_TIME, LOG, changing, reading
from protocol.files import LOG_BYTES

MOST_LOG_BYTES = 2 * LOG_BYTES
"""The most bytes of all entries; the oldest are deleted."""

MOST_FIELD_CHARACTERS = 300
"""The most characters of one field: strangers' own words are cut there."""

What = Literal["admitted", "renewed", "refused", "invited", "withdrawn", "revoked", "rewound", "noted"]


class AuditEntry(BaseModel):
    """An entry of the log. Fields that do not apply are empty. `at` is in Unix seconds.

    `noted`: another peer told of an offence of this one, or an audit found something.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    what: What
    at: float = Field(ge=0, lt=END_OF_TIME)
    peer: str = Field("", description="its id, proven unless it was refused")
    role: str = ""
    stage: int | None = None
    slot: int | None = None
    address: str = Field("", description="where it called from")
    invitation: str = Field("", description="an invitation's id, never its token")
    reason: str = Field("", description="why it was refused or revoked, or what is said of it")

    def line(self) -> str:
        """The entry as JSON in ASCII, as it is kept: 24 KiB at most."""
        known = self.model_dump(exclude_defaults=True)
        cut = {
            name: value[:MOST_FIELD_CHARACTERS] if isinstance(value, str) else value for name, value in known.items()
        }
        return json.dumps(cut)


def append_entry(folder: Path, entry: AuditEntry, most_bytes: int = MOST_LOG_BYTES) -> None:
    """Add an entry, and forget the oldest of more than `most_bytes`. A power cut may take the last entries.

    Raises:
        ResourceError: it cannot be written, as on a full disk.
    """
    line = entry.line()
    with changing(folder, synchronous="NORMAL") as lists:
        ((end,),) = lists.execute("SELECT coalesce(max(end), 0) + ? FROM log", (len(line),))
        lists.execute("INSERT INTO log VALUES (?, ?)", (end, line))
        lists.execute("DELETE FROM log WHERE end <= ?", (end - most_bytes,))


def last(folder: Path, count: int) -> list[AuditEntry]:
    """The last `count` entries, the oldest first. Lines that a power cut left half in the files of earlier versions are
    passed over.

    Raises:
        ResourceError: the log cannot be read.
    """
    entries: list[AuditEntry] = []
    with reading(folder) as lists:
        for (line,) in lists.execute("SELECT entry FROM log ORDER BY end DESC"):
            if len(entries) == count:
                break
            try:
                entries.append(AuditEntry.model_validate_json(line))
            except ValidationError:
                continue
    return entries[::-1]


def audit_log_files(folder: Path) -> list[Path]:
    """The files of a folder that hold an operator's log; none: it is no operator's."""
    return [path for name in (DATABASE, f"{DATABASE}-wal", LOG) if (path := folder / name).exists()]
