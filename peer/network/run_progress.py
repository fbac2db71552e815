"""The run's progress as one peer knows it: by what the operator's node proves with holders' signed records, by what it
sees itself, and by the operator's newest rewind, which peers pass on."""

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
from protocol.trust.membership_card import Authority
from protocol.trust.records import RECORD, PeerRecord, read_record
from protocol.trust.rewinds import REWIND_FILE, read_rewind
from protocol.trust.signed import read_signed


@dataclass(slots=True)
class KnownProgress(RunProgress):
    """A run's progress, with the rewind in the peer's `folder`."""

    authority: Authority = field(kw_only=True)
    folder: Path = field(kw_only=True)
    signed_rewind: bytes = b""

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

    def learn_from_node(self, word: NodeWord, me: PeerId, manifest: Manifest) -> bool:
        """Note how far the run is by the word of the operator's node, as far as the signed records of holders prove it.
        Returns whether a rewind in it is news. Claims without proof are passed over, and so are records of this peer,
        `me`: its folder says what it holds itself."""
        holders = list[PeerRecord]()
        for data in word.holders:
            with suppress(FormatError):
                signer, _ = read_signed(data, RECORD)
                holders.append(read_record(data, signer, self.authority))
        run = min(word.run, max((holder.round for holder in holders), default=0), manifest.outer.rounds)
        others = [peer for peer in holders if peer.peer_id != me]
        for part in model_layout(manifest):
            rounds = [min(peer.round, run + 1) for peer in others if follows(peer.role, peer.stage, part, manifest)]
            self.raise_to(run, {part: max(rounds, default=0)})
        with suppress(FormatError):
            return self.learn_rewind(word.rewind)
        return False
