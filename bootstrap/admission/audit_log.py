"""The operator's log: who came, who was refused, and what the operator did about it. One line of JSON each.

It has no field for a token or a key, and the node and `hetpeer admin` both write it.
"""

import json
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from bootstrap.admission.invitations import END_OF_TIME
from protocol.files import LOG_BYTES, append_line, logged_lines

LOG = "log.jsonl"

MOST_CHARACTERS = 300
"""Of one field: what strangers call themselves is cut there."""

What = Literal["admitted", "renewed", "refused", "invited", "withdrawn", "revoked", "noted"]


class AuditEntry(BaseModel):
    """Something that happened. What does not apply is left empty. `at` is in Unix seconds.

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

    def line(self) -> bytes:
        """As it lies in the file: 24 KiB at most."""
        known = self.model_dump(exclude_defaults=True)
        cut = {name: each[:MOST_CHARACTERS] if isinstance(each, str) else each for name, each in known.items()}
        return json.dumps(cut).encode() + b"\n"


def append_entry(folder: Path, entry: AuditEntry, most_bytes: int = LOG_BYTES) -> None:
    """Append an entry, in one write. A file of `most_bytes` becomes the old one, and the old one is forgotten.

    Raises:
        ResourceError: it cannot be written, as on a full disk.
    """
    append_line(folder / LOG, entry.line(), most_bytes)


def last(folder: Path, count: int) -> list[AuditEntry]:
    """The last `count` entries, the oldest first. Lines that a power cut left half are passed over.

    Raises:
        ResourceError: the log cannot be read.
    """
    found: list[AuditEntry] = []
    for line in reversed(logged_lines(folder / LOG)):
        if len(found) == count:
            break
        try:
            found.append(AuditEntry.model_validate_json(line))
        except ValidationError:
            continue
    return found[::-1]
