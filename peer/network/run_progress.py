"""The run's progress as one peer knows it: by what it sees itself, by holders' signed records, and by the operator's
newest rewind. The operator's node has both for who comes, and so have peers while the node is away."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from protocol.errors import FormatError, ResourceError
from protocol.files import write_atomically
from protocol.identity import PeerId
from protocol.layout import follows, model_layout
from protocol.limits import HOLDERS_NAMED
from protocol.manifest import Manifest
from protocol.monitor import NodeWord
from protocol.outer.progress import RunProgress
from protocol.outer.whereabouts import common_round
from protocol.trust.membership_card import Authority
from protocol.trust.records import RECORD, PeerRecord, holds_newest, may_author, read_record
from protocol.trust.rewinds import REWIND_FILE, read_rewind
from protocol.trust.signed import read_signed


@dataclass(slots=True)
class KnownProgress(RunProgress):
    """A run's progress, with the rewind in the peer's `folder`."""

    manifest: Manifest = field(kw_only=True)
    authority: Authority = field(kw_only=True)
    folder: Path = field(kw_only=True)
    signed_rewind: bytes = b""
    proofs: dict[int | None, dict[PeerId, tuple[int, bytes]]] = field(default_factory=dict)
    """The newest signed records of holders, with the round in each: of each stage, and of all (None), one more than may
    lie (`outer.liars`)."""

    def __post_init__(self) -> None:
        """Load the rewind that the folder keeps. A damaged one counts as absent: it will be told again."""
        with suppress(OSError, FormatError):
            self.learn_rewind((self.folder / REWIND_FILE).read_bytes())

    @property
    def rewound(self) -> int:
        """The time at which the newest rewind was signed, in milliseconds since 1970; 0: there is none."""
        return self.rewind.issued if self.rewind is not None else 0

    def learn_rewind(self, signed: bytes) -> bool:
        """Go by a signed rewind, if it is newer than the one that is known. Returns whether it is.

        Raises:
            FormatError: it is not the operator's.
        """
        if not signed or signed == self.signed_rewind or not self.heed(read_rewind(signed, self.authority)):
            return False
        self.signed_rewind = signed
        with suppress(ResourceError):  # others keep it, too
            write_atomically(self.folder / REWIND_FILE, signed)
        return True

    def learn_from_node(self, word: NodeWord, me: PeerId) -> bool:
        """Note how far the run is by the word of the operator's node, as far as the signed records of holders prove it.
        Returns whether a rewind in it is news. Claims without proof are passed over, and so are records of this peer,
        `me`: its folder says what it holds itself."""
        signed_by = self._signers(word.holders)
        records = self._valid(signed_by)
        self._raise(min(word.run, max((record.round for record in records), default=0)), records, me)
        self.keep_proofs(records, signed_by)
        with suppress(FormatError):
            return self.learn_rewind(word.rewind)
        return False

    def learn_from_peer(self, holders: Iterable[bytes], me: PeerId) -> None:
        """Note how far the run is by the signed records of holders that a peer passes on. The run has finished the
        round that one holder more than may lie (`outer.liars`) has; fewer holders prove nothing."""
        signed_by = self._signers(holders)
        records = [record for record in self._valid(signed_by) if may_author(record) and holds_newest(record)]
        if len(records) > self.manifest.outer.liars:
            self._raise(common_round((record.round for record in records), self.manifest.outer.liars), records, me)
            self.keep_proofs(records, signed_by)

    def keep_proofs(self, records: Iterable[PeerRecord], signed_by: Mapping[str, object]) -> None:
        """Keep the newest records of holders, for peers that come back while the node is away. `signed_by` has their
        signed bytes, by peer id. A record that claims to be two rounds beyond the run, or more, is ignored."""
        for record in records:
            signed = signed_by.get(record.peer_id)
            if not (isinstance(signed, bytes) and 0 < record.round <= self.run + 1):
                continue
            if may_author(record) and holds_newest(record):
                key = record.stage if record.role == "volunteer" else None
                proofs = self.proofs.setdefault(key, {})
                proofs[record.peer_id] = max(proofs.get(record.peer_id, (0, b"")), (record.round, signed))
                if len(proofs) > self.manifest.outer.liars + 1:
                    del proofs[min(proofs, key=lambda peer: proofs[peer][0])]

    def proofs_beyond(self, round: int) -> list[bytes]:
        """The signed records of the newest holders, if the run has finished a later round than `round`."""
        if self.run <= round:
            return []
        newest = sorted((proof for proofs in self.proofs.values() for proof in proofs.values()), reverse=True)
        return [signed for _, signed in newest[:HOLDERS_NAMED]]

    def _signers(self, signed_records: Iterable[bytes]) -> dict[str, bytes]:
        """Signed records by the peer that each names as its signer; what is none is left out."""
        signed_by = dict[str, bytes]()
        for data in signed_records:
            with suppress(FormatError):
                signer, _ = read_signed(data, RECORD)
                signed_by[signer] = data
        return signed_by

    def _valid(self, signed_by: Mapping[str, bytes]) -> list[PeerRecord]:
        """The records among these that their signers have signed, with the operator's certificate."""
        records = []
        for signer, data in signed_by.items():
            with suppress(FormatError):
                records.append(read_record(data, signer, self.authority))
        return records

    def _raise(self, run: int, records: Sequence[PeerRecord], me: PeerId) -> None:
        """Note that the run has finished a round, and that these peers, but for `me`, have held states: its folder says
        what this one holds."""
        run = min(run, self.manifest.outer.rounds)
        others = [record for record in records if record.peer_id != me]
        for part in model_layout(self.manifest):
            rounds = [
                min(record.round, run + 1)
                for record in others
                if follows(record.role, record.stage, part, self.manifest)
            ]
            self.raise_to(run, {part: max(rounds, default=0)})
