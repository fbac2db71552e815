"""The newest holders of a run's states, by their own signed records. These prove how far the run is, whether the peers
that signed them are still here or not."""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from protocol.errors import FormatError
from protocol.limits import HOLDERS_NAMED
from protocol.trust.membership_card import Authority
from protocol.trust.records import RECORD, PeerRecord, holds_newest, may_author, read_record
from protocol.trust.signed import read_signed

ALL_PARTS = -1
"""The key of the holders of all parts, beside the stages."""


@dataclass(slots=True)
class NewestHolders:
    """The newest holders of each stage, and of all parts: `most` of each, the newest first, with their signed bytes."""

    most: int = 1
    by_stage: dict[int, list[tuple[PeerRecord, bytes]]] = field(default_factory=dict)

    def see(self, records: Iterable[PeerRecord], signed_records: Mapping[str, object], finished: int) -> bool:
        """Keep the records of holders that are newer than those kept. `signed_records` has their signed bytes, by peer
        id. `finished` is the last round that the run has finished: a record that claims to be two rounds beyond it, or
        more, is ignored. Returns whether anything has changed."""
        changed = False
        for record in records:
            signed = signed_records.get(record.peer_id)
            if record.round <= finished + 1 and isinstance(signed, bytes):
                changed |= self.add(record, signed)
        return changed

    def add(self, record: PeerRecord, signed: bytes) -> bool:
        """Keep a holder's record in the place of its older one, or, where there is no room, of the oldest. Returns
        whether it is kept."""
        if not (record.round and may_author(record) and holds_newest(record)):
            return False
        holders = self.by_stage.setdefault(record.stage if record.role == "volunteer" else ALL_PARTS, [])
        replaced = next((holder for holder in holders if holder[0].peer_id == record.peer_id), None)
        if replaced is None and len(holders) == self.most:
            replaced = holders[-1]
        if replaced is not None:
            if replaced[0].round >= record.round:
                return False
            holders.remove(replaced)
        holders.append((record, signed))
        holders.sort(key=lambda holder: -holder[0].round)
        return True

    def rounds(self) -> dict[int, int]:
        """The round of the newest holder, by stage."""
        return {stage: holders[0][0].round for stage, holders in self.by_stage.items()}

    def records(self) -> list[PeerRecord]:
        """The holders' records, the newest first."""
        return [record for record, _ in self._ordered()]

    def named(self) -> tuple[bytes, ...]:
        """The signed records that a message names, the newest first."""
        return tuple(signed for _, signed in self._ordered()[:HOLDERS_NAMED])

    def _ordered(self) -> list[tuple[PeerRecord, bytes]]:
        everybody = [holder for holders in self.by_stage.values() for holder in holders]
        return sorted(everybody, key=lambda holder: -holder[0].round)


def read_holders(signed_records: Iterable[bytes], authority: Authority) -> list[tuple[PeerRecord, bytes]]:
    """Read signed records, one of each signer; those that `authority` does not let count are left out."""
    holders = dict[str, tuple[PeerRecord, bytes]]()
    for signed in signed_records:
        with suppress(FormatError):
            signer, _ = read_signed(signed, RECORD)
            holders[signer] = read_record(signed, signer, authority), signed
    return [*holders.values()]
