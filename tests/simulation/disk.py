"""What of a peer outlives its process: a checkpoint at each boundary, and what was promised to others since."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from protocol.outer.history import Claim
from protocol.outer.ledger import Entry, Ledger
from protocol.outer.set_difference import Authored
from tests.simulation.arithmetic import State, Vector

if TYPE_CHECKING:
    from tests.simulation.peer import Peer


@dataclass(slots=True)
class Checkpoint:
    ledger: Ledger
    authored: Authored
    state: State
    claims: dict[int, Claim]
    blobs: dict[str, Vector]


@dataclass(slots=True)
class Disk:
    """`needed`: the peer crashes in this schedule; else copies are saved, for speed."""

    needed: bool = False
    saved: Checkpoint | None = None
    sent: dict[int, Vector] = field(default_factory=dict)
    own: list[tuple[Entry, Vector, Vector, Vector]] = field(default_factory=list)
    accepted: list[tuple[Entry, Vector | None]] = field(default_factory=list)

    def value(self, round: int) -> Vector:
        """What this author sent in a round."""
        return self.sent[round]

    def keep_sent(self, round: int, entry: Entry, sent: Vector, state: State) -> None:
        """Before it is published: the contribution, and the error feedback without it, in one write."""
        self.sent[round] = sent
        self.own.append((copied(entry), sent, state.residual, state.computed))

    def keep_accepted(self, entry: Entry, blob: Vector | None) -> None:
        """Before the receipt is handed out: or this peer might forget what others rely on."""
        if self.needed:
            self.accepted.append((copied(entry), blob))

    def promised(self) -> list[tuple[Entry, Vector | None]]:
        """What others must hear of even if this peer died over telling them: its own, and what it gave receipts for."""
        own: list[tuple[Entry, Vector | None]] = [(entry, sent) for entry, sent, *_ in self.own]
        return own + self.accepted

    def checkpoint(self, peer: Peer) -> None:
        """At a boundary."""
        self.own.clear()
        if self.needed:
            self.accepted.clear()
            self.saved = _copy(Checkpoint(peer.ledger, peer.authored, peer.state, peer.claims, peer.blobs))

    def restore(self, peer: Peer) -> None:
        """After a crash: the checkpoint, then what was written since."""
        if self.saved:
            copy = _copy(self.saved)
            peer.ledger, peer.authored, peer.state = copy.ledger, copy.authored, copy.state
            peer.claims, peer.blobs = copy.claims, copy.blobs
        for entry, sent, residual, computed in self.own:
            peer.authored.send(entry.name)
            peer.state.residual, peer.state.computed = residual, computed
            peer.blobs[entry.sha256] = sent
        for entry, blob in self.promised():
            hear = peer.ledger.offer
            if blob is not None:
                peer.blobs[entry.sha256] = blob
                hear = peer.ledger.take
            hear(copied(entry), vouched=True)
            if peer.ledger.wants_receipt(entry.name, entry.sha256):
                peer.ledger.sign(entry.name, entry.sha256, b"")
            peer.stale.add(entry.name.round)


def copied(entry: Entry) -> Entry:
    """As the other side of a message has it."""
    return Entry(entry.name, entry.sha256, entry.size, entry.proof, dict(entry.receipts))


def _copy(saved: Checkpoint) -> Checkpoint:
    old = saved.ledger
    accepted = {
        round: {
            author: {sha256: copied(each) for sha256, each in versions.items()} for author, versions in authors.items()
        }
        for round, authors in old.accepted.items()
    }
    ledger = Ledger(old.part, old.me, old.window, old.clock, old.folded, old.history.copy(), accepted)
    ledger.revocations, ledger.checks, ledger.begun = set(old.revocations), dict(old.checks), old.begun
    authored = Authored(dict(saved.authored.sent), dict(saved.authored.returned))
    state = saved.state.copy()
    return Checkpoint(ledger, authored, state, dict(saved.claims), dict(saved.blobs))
