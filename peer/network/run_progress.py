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
from protocol.manifest import Manifest
from protocol.monitor import NodeWord
from protocol.outer.progress import RunProgress
from protocol.outer.whereabouts import common_round
from protocol.trust.membership_card import Authority
from protocol.trust.newest_holders import NewestHolders, read_holders
from protocol.trust.records import RECORD, PeerRecord, holds_newest, may_author
from protocol.trust.rewinds import REWIND_FILE, read_rewind
from protocol.trust.signed import read_signed


@dataclass(slots=True)
class KnownProgress(RunProgress):
    """A run's progress, with the rewind in the peer's `folder`."""

    manifest: Manifest = field(kw_only=True)
    authority: Authority = field(kw_only=True)
    folder: Path = field(kw_only=True)
    signed_rewind: bytes = b""
    confirmed: bool = False
    """Whether the operator's node, or a peer that holds the newest state, has said to this process how far the run is:
    what a folder says may be older than the run."""
    proofs: NewestHolders = field(init=False)
    """One holder more of each stage than may lie (`outer.liars`)."""

    def __post_init__(self) -> None:
        """Load the rewind that the folder keeps. A damaged one counts as absent: it will be told again."""
        self.proofs = NewestHolders(self.manifest.outer.liars + 1)
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
        holders = read_holders(word.holders, self.authority)
        self.confirmed = True
        self._raise(min(word.run, max((record.round for record, _ in holders), default=0)), holders, me)
        with suppress(FormatError):
            return self.learn_rewind(word.rewind)
        return False

    def learn_from_peer(self, peer: PeerRecord, signed_records: Sequence[bytes], me: PeerId) -> None:
        """Note how far the run is by the answer of a peer: by the signed records of holders that it passes on. The run
        has finished the round that one holder more than may lie (`outer.liars`) has; fewer holders prove nothing.

        Raises:
            FormatError: one of these is no record, or not signed.
        """
        for signed in signed_records:
            read_signed(signed, RECORD)
        valid = read_holders(signed_records, self.authority)
        holders = [(record, signed) for record, signed in valid if may_author(record) and holds_newest(record)]
        if len(holders) > self.manifest.outer.liars:
            rounds = (record.round for record, _ in holders)
            self._raise(common_round(rounds, self.manifest.outer.liars), holders, me)
        self.confirmed |= holds_newest(peer)

    def see(self, records: Iterable[PeerRecord], signed_records: Mapping[str, object]) -> None:
        """Keep the newest records of holders, for peers that come back while the node is away: see `NewestHolders`."""
        self.proofs.see(records, signed_records, self.run)

    def proofs_beyond(self, round: int) -> tuple[bytes, ...]:
        """The signed records of the newest holders, if the run has finished a later round than `round`."""
        return self.proofs.named() if self.run > round else ()

    def _raise(self, run: int, holders: Sequence[tuple[PeerRecord, bytes]], me: PeerId) -> None:
        """Note that the run has finished a round, and that these holders, but for `me`, have held states: its folder
        says what this peer holds. Keep them as proofs."""
        run = min(run, self.manifest.outer.rounds)
        others = [record for record, _ in holders if record.peer_id != me]
        for part in model_layout(self.manifest):
            rounds = [
                min(record.round, run + 1)
                for record in others
                if follows(record.role, record.stage, part, self.manifest)
            ]
            self.raise_to(run, {part: max(rounds, default=0)})
        self.see([record for record, _ in holders], {record.peer_id: signed for record, signed in holders})
