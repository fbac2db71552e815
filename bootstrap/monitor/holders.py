"""The holders of a run's newest states, as the node has seen them: their signed records, kept across restarts.

A peer that comes, or comes back, is told of them, whether they are here or not. By that it knows which round the run
has finished, and trains from no older state.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgpack

from protocol.errors import FormatError, ResourceError
from protocol.files import write_atomically
from protocol.limits import HOLDERS_NAMED
from protocol.trust.membership_card import Authority
from protocol.trust.records import RECORD, PeerRecord, holds_newest, may_author, read_record
from protocol.trust.rewinds import REWIND_FILE as REWIND
from protocol.trust.rewinds import read_rewind
from protocol.trust.signed import read_signed

KEPT_HOLDERS = "holders"
"""The name of the file, in the node's folder, with the signed records of the holders."""

ALL_PARTS = -1
"""The key of the newest holder of all parts, beside the stages."""


@dataclass(slots=True)
class Holders:
    """The newest holder of each stage, and of all parts. `folder` keeps them; None: nothing does."""

    authority: Authority
    folder: Path | None = None
    newest: dict[int, tuple[PeerRecord, bytes]] = field(default_factory=dict)
    signed_rewind: bytes = b""
    """The operator's newest rewind, signed; empty: there is none."""

    def __post_init__(self) -> None:
        """Load what the folder keeps. A damaged file, or record, counts as absent."""
        if self.folder is None:
            return
        self._read_rewind()
        with suppress(OSError, ValueError, msgpack.UnpackException):
            for signed in msgpack.unpackb((self.folder / KEPT_HOLDERS).read_bytes(), max_array_len=HOLDERS_NAMED):
                with suppress(FormatError):
                    owner, _ = read_signed(signed, RECORD)
                    self._note(read_record(signed, owner, self.authority), signed)

    def see(self, records: Iterable[PeerRecord], signed_records: Mapping[str, object], finished: int) -> None:
        """Keep the records of peers that hold the newest states. `signed_records` has their signed bytes, by peer id.
        `finished` is the last round that the run has finished: a record that claims to be two rounds beyond it, or
        more, is ignored. Also reads the operator's rewind again, which `hetpeer admin rewind` may have written. Blocks
        on the disk."""
        changed = False
        for record in records:
            signed = signed_records.get(record.peer_id)
            if record.round <= finished + 1 and isinstance(signed, bytes):
                changed |= self._note(record, signed)
        if changed:
            self._write()
        self._read_rewind()

    def _read_rewind(self) -> None:
        if self.folder is not None:
            with suppress(OSError, FormatError):
                signed = (self.folder / REWIND).read_bytes()
                read_rewind(signed, self.authority)
                self.signed_rewind = signed

    def _note(self, record: PeerRecord, signed: bytes) -> bool:
        if not (record.round and may_author(record) and holds_newest(record)):
            return False
        key = record.stage if record.role == "volunteer" else ALL_PARTS
        known = self.newest.get(key)
        if known is not None and known[0].round >= record.round:
            return False
        self.newest[key] = record, signed
        return True

    def named(self) -> tuple[bytes, ...]:
        """The signed records that a peer is told, the newest first."""
        ordered = sorted(self.newest.values(), key=lambda holder: -holder[0].round)
        return tuple(signed for _, signed in ordered[:HOLDERS_NAMED])

    def _write(self) -> None:
        """Keep them in the folder. A full disk loses them: peers that come back tell of them again."""
        if self.folder is not None:
            with suppress(ResourceError):
                write_atomically(self.folder / KEPT_HOLDERS, bytes(msgpack.packb(self.named())))
