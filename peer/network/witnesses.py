"""Witnesses: where the others are in the run, as far as their contributions show it. Nobody's bare word moves this
peer's time."""

from collections.abc import Callable
from dataclasses import dataclass, field

from peer.network.discovery import Discovery
from peer.network.intake import Intake
from protocol.clock import monotonic
from protocol.identity import PeerId, contributes_to
from protocol.outer.whereabouts import borne_out, common_round
from protocol.outer.window import SKEW
from protocol.patience import DISBELIEF_SECONDS
from protocol.trust.records import PeerRecord, holds_newest, may_author

LATELY = 2
"""The last rounds in which a peer must have contributed to one: else it is in the run by its word alone."""


@dataclass(slots=True)
class Witnesses:
    """The peers that may contribute, and which contributions of theirs are known here.

    A witness has finished the round that its record says, but none beyond the one after its last contribution: it may
    have ended one without. The others are where more than `outer.liars` witnesses are, and for as long as these are.
    """

    discovery: Discovery
    intake: Intake
    target: int = 0
    """While this peer catches up with a round: that one."""
    disbelieved: dict[PeerId, float] = field(default_factory=dict)
    """The peers that signed for rounds that were not to be found anywhere, and the time by `monotonic` until which
    their signatures show nothing."""

    def others_at(self) -> int:
        """The round that the others have finished, as far as what is accepted here bears them out."""
        return self._common_round(self._accepted)

    def shown_at(self) -> int:
        """The round that they have finished, as far as they have signed contributions, of rounds that have not begun
        here too. A reason to look for these, and for nothing more: so here the word of those counts as well who follow
        the run without contributing, as far as somebody else's contributions bear it out."""
        return self._followed_round(self._shown)

    def proved_at(self) -> int:
        """The same as far as what is accepted here bears it out: whoever has caught up with that round was told the
        truth."""
        return self._followed_round(self._accepted)

    def most_shown(self) -> int:
        """The round that at least one of them has finished; 0 if none has shown anything."""
        return max(self._finished(self._shown), default=0)

    def unanswered(self) -> bool:
        """Whether somebody who may author says to have finished a round, and nobody has shown anything yet. A reason
        to ask again, and for nothing more."""
        return not self.most_shown() and any(peer.round and may_author(peer) for peer in self.discovery.others())

    def were_ahead(self, clock: int) -> bool:
        """Whether more authors than may lie, here or not, have signed contributions to rounds further ahead of this
        peer's `clock` than messages take, while those that are here do not show it: the run may be over."""
        ahead = sum(round >= clock + SKEW for round in self.intake.shown.values())
        return ahead > self.discovery.manifest.outer.liars and self.shown_at() < clock + SKEW

    def contributing(self) -> set[PeerId]:
        """The peers of which a contribution of late counts here."""
        return set().union(*(ledger.counted_since(ledger.begun - LATELY) for ledger in self.intake.ledgers.values()))

    def follow(self) -> None:
        """Set the ledgers' clocks by the others, forward and back. A peer that has reason to think that it was away
        signs no receipts until it has caught up: they would say that something was in time by a clock that is not the
        others'."""
        others = self.others_at() + 1
        for ledger in self.intake.ledgers.values():
            ledger.follow(others, self.target + 1 if self.target else 0)
        self.intake.give_receipts(self.shown_at() <= self.discovery.record.round + SKEW)

    def catch_up_with(self, round: int) -> None:
        """Follow the others while this peer catches up with a round; 0: it does so no more."""
        self.target = round
        self.follow()

    def disbelieve(self, round: int) -> bool:
        """Ignore for a while those that signed for a round that was not to be found: only what is accepted here counts
        for them. Returns whether there were any."""
        now = monotonic()
        others = {peer.peer_id for peer in self.discovery.others()} | self.intake.shown.keys()
        vain = [author for author in others if self._accepted(author) < round - 1 <= self._shown(author)]
        self.disbelieved = {author: until for author, until in self.disbelieved.items() if until > now}
        self.disbelieved |= dict.fromkeys(vain, now + DISBELIEF_SECONDS)
        return bool(vain)

    def _accepted(self, author: PeerId) -> int:
        return max(ledger.newest(author) for ledger in self.intake.ledgers.values())

    def _shown(self, author: PeerId) -> int:
        trusted = self.disbelieved.get(author, 0.0) <= monotonic()
        return max(self._accepted(author), self.intake.shown.get(author, 0) if trusted else 0)

    def _common_round(self, newest: Callable[[PeerId], int]) -> int:
        return common_round(self._finished(newest), self.discovery.manifest.outer.liars)

    def _finished(self, newest: Callable[[PeerId], int]) -> list[int]:
        """The rounds that others have finished who contribute. A peer that contributes to other parts than those
        followed here shows nothing here. The last contribution of one that contributes no more says where it was, and
        not where the run is."""
        others = [peer for peer in self.discovery.others() if may_author(peer) and self._contributes(peer)]
        said = {peer.peer_id: peer.round for peer in others}
        shown = {peer: newest(peer) for peer in said}
        silent = sum(not shown[peer.peer_id] and bool(peer.replica) and self._contributes_here(peer) for peer in others)
        return borne_out(said, shown, silent, self.discovery.manifest.outer.liars)

    def _followed_round(self, newest: Callable[[PeerId], int]) -> int:
        """The common round of those who contribute, and of those who hold the newest state and do not contribute here,
        as spares: these are believed up to the last round that anybody has contributed to."""
        others = [peer for peer in self.discovery.others() if may_author(peer) and holds_newest(peer)]
        last = max((ledger.newest_of_all() for ledger in self.intake.ledgers.values()), default=0)
        last = max(last, *map(newest, self.intake.shown), 0)
        followed = [min(peer.round, last) for peer in others if last and self._only_follows(peer)]
        return common_round([*self._finished(newest), *followed], self.discovery.manifest.outer.liars)

    def _contributes(self, peer: PeerRecord) -> bool:
        """Whether a peer holds the run's newest state, and is no further by its own word than it has contributed."""
        signed = self._signed(peer.peer_id)
        return holds_newest(peer) and not (signed and peer.round > signed + LATELY)

    def _only_follows(self, peer: PeerRecord) -> bool:
        awaited = bool(peer.replica) and self._contributes_here(peer)
        return not self._contributes(peer) or not (self._signed(peer.peer_id) or awaited)

    def _signed(self, author: PeerId) -> int:
        """The last round to which an author has signed a contribution, as far as is known here."""
        return max(self._accepted(author), self.intake.shown.get(author, 0))

    def _contributes_here(self, peer: PeerRecord) -> bool:
        return any(contributes_to(peer.role, peer.stage, part) for part in self.intake.ledgers)
