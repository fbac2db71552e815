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
from protocol.trust.newest_holders import NewestHolders, read_holders
from protocol.trust.records import PeerRecord
from protocol.trust.rewinds import REWIND_FILE as REWIND
from protocol.trust.rewinds import read_rewind

KEPT_HOLDERS = "holders"
"""The name of the file, in the node's folder, with the signed records of the holders."""


@dataclass(slots=True)
class Holders:
    """The newest holder of each stage, and of all parts. `folder` keeps them; None: nothing does."""

    authority: Authority
    folder: Path | None = None
    newest: NewestHolders = field(default_factory=NewestHolders)
    signed_rewind: bytes = b""
    """The operator's newest rewind, signed; empty: there is none."""

    def __post_init__(self) -> None:
        """Load what the folder keeps. A damaged file, or record, counts as absent."""
        if self.folder is None:
            return
        self._read_rewind()
        with suppress(OSError, ValueError, msgpack.UnpackException):
            kept = msgpack.unpackb((self.folder / KEPT_HOLDERS).read_bytes(), max_array_len=HOLDERS_NAMED)
            for record, signed in read_holders(kept, self.authority):
                self.newest.add(record, signed)

    def see(self, records: Iterable[PeerRecord], signed_records: Mapping[str, object], finished: int) -> None:
        """Keep the newest records of holders, as `NewestHolders.see` does. Also reads the operator's rewind again,
        which `hetpeer admin rewind` may have written. Blocks on the disk."""
        if self.newest.see(records, signed_records, finished):
            self._write()
        self._read_rewind()

    def _read_rewind(self) -> None:
        if self.folder is not None:
            with suppress(OSError, FormatError):
                signed = (self.folder / REWIND).read_bytes()
                read_rewind(signed, self.authority)
                self.signed_rewind = signed

    def named(self) -> tuple[bytes, ...]:
        """The signed records that a peer is told, the newest first."""
        return self.newest.named()

    def _write(self) -> None:
        """Keep them in the folder. A full disk loses them: peers that come back tell of them again."""
        if self.folder is not None:
            with suppress(ResourceError):
                write_atomically(self.folder / KEPT_HOLDERS, bytes(msgpack.packb(self.named())))
