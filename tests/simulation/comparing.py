"""What peers tell each other about themselves: what they hold, where they are, and what they make of that."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from mypy_extensions import trait

from protocol.identity import PeerId
from protocol.outer.history import Claim, outvoted
from protocol.outer.ledger import Revocation
from protocol.outer.set_difference import Summary, different, entries, lacking_keys, summary
from protocol.outer.whereabouts import borne_out, common_round
from protocol.outer.window import SKEW
from tests.simulation.disk import copied

if TYPE_CHECKING:
    from tests.simulation.peer import Peer

SILENCE = 2.0
"""Who has said nothing for so many rounds is not waited for."""


@trait
class Comparing:
    """The part of a peer that asks others what it lacks, and listens where they are."""

    def compare_with_others(self: Peer) -> None:
        others = self.world.others(self.me)
        if not self.world.calm and self.me not in self.world.schedule.united and len(others) > 2:
            others = self.world.random.sample(others, 2)
        mine = self.summary()
        for other in others:
            self.world.send(self.me, other, "on_compare", self.me, mine, self.claimed(), self.ledger.revocations)

    def summary(self: Peer) -> Summary:
        return summary(self.ledger)

    def claimed(self: Peer) -> dict[int, Claim]:
        return self.claims

    def on_compare(
        self: Peer, source: PeerId, theirs: Summary, claims: dict[int, Claim], revocations: set[Revocation]
    ) -> None:
        if not self.up:
            return
        self.on_revocations(self.me, revocations)
        self.see(source, theirs.clock, claims)
        if self.up and (keys := different(self.ledger, theirs)) and not self.world.holds(source):
            self.world.send(self.me, source, "on_keys", self.me, keys)

    def on_keys(self: Peer, source: PeerId, keys: list[bytes]) -> None:
        if self.up and (wanted := lacking_keys(self.ledger, keys)):
            self.world.send(self.me, source, "on_asked", self.me, wanted)

    def on_asked(self: Peer, source: PeerId, keys: list[bytes]) -> None:
        for entry in entries(self.ledger, keys):
            self.world.send(self.me, source, "on_told", self.me, copied(entry), self.blobs.get(entry.sha256))

    def on_revocations(self: Peer, _source: PeerId, revocations: set[Revocation]) -> None:
        for each in revocations - self.ledger.revocations if revocations != self.ledger.revocations else ():
            right = self.ledger.revoke(each)
            if each.author == self.me:
                self.author = False
            self.stale |= set(self.ledger.open_rounds())
            if not right and self.up:
                self.resync()

    def see(self: Peer, source: PeerId, clock: int, claims: dict[int, Claim]) -> None:
        """Where another peer says it is. Nobody is left behind, and no single liar pushes a clock."""
        self.clocks[source], self.heard_at[source] = clock, self.world.now
        self.heard[source] = claims
        target = self.credible_clock(self.clocks)
        if target > self.ledger.clock + SKEW:
            self.fall_behind()
        elif target > self.ledger.clock + 1:
            self.advance(target)
        elif any(round in self.claims and self.claims[round].digest != each.digest for round, each in claims.items()):
            self.doubt()

    def credible_clock(self: Peer, clocks: Mapping[PeerId, int]) -> int:
        """Where the others are who say to be at these rounds, by the product's own rule. A peer that is at a round has
        finished the one before."""
        gone = {each.author for each in self.ledger.revocations}  # nobody talks to them any more
        there = [other for other in self.world.others(self.me) if other not in gone]
        others = [other for other in there if self.world.schedule.may_author(other)]
        said = {other: clocks.get(other, 0) - 1 for other in others}
        shown = {other: self.newest(other) for other in others}
        silent = sum(not round for round in shown.values())
        return common_round(borne_out(said, shown, silent, self.window.liars), self.window.liars) + 1

    def newest(self: Peer, author: PeerId) -> int:
        """The last round of which this peer has seen something that the author signed."""
        return max(self.shown.get(author, 0), self.ledger.newest(author))

    def doubt(self: Peer) -> None:
        """Whether the state after some closed round is not the one that stands among the others."""
        mine = self.claims
        others = self.abreast(self.ledger.clock)
        for round in sorted(mine, reverse=True):
            said = [claims[round] for other in others if round in (claims := self.heard.get(other, {}))]
            if not self.catching and outvoted(mine[round], said, self.window.liars, len(said) == len(others)):
                self.resync()
                return

    def abreast(self: Peer, clock: int) -> list[PeerId]:
        """The others, but for those far behind, who will adopt what stands."""
        return [other for other in self.world.others(self.me) if self.clocks.get(other, clock) >= clock - SKEW]

    def runs_ahead(self: Peer) -> bool:
        """Whether everybody that has been heard of lately is rounds behind: then this peer waits, or its window would
        close before theirs for ever."""
        since = self.world.now - SILENCE
        lately = [self.clocks[other] for other, time in self.heard_at.items() if time > since]
        return bool(lately) and self.ledger.clock > max(lately)
