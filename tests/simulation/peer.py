"""One honest peer of one part, as the daemon drives the real ledger: without sockets, told when things happen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocol.identity import ContributionName, Part, PeerId
from protocol.outer.history import Claim, History
from protocol.outer.ledger import Entry, Ledger, Standing
from protocol.outer.set_difference import Authored
from tests.simulation.arithmetic import ZERO, State, Vector, add, digest, subtract, term
from tests.simulation.catching_up import Answer, CatchingUp
from tests.simulation.comparing import SILENCE, Comparing
from tests.simulation.disk import Disk, copied

if TYPE_CHECKING:
    from tests.simulation.schedule import Event
    from tests.simulation.world import World

PART = Part("stage-0")
PATIENCE = 1.5
"""Rounds of work after which nobody waits for anybody."""
CLAIMS_KEPT = 4
BEGINNING = digest(ZERO, History())


class Peer(CatchingUp, Comparing):
    """`alive`: its process runs. `up`: it has caught up, and takes part."""

    ledger: Ledger
    state: State
    disk: Disk
    claims: dict[int, Claim]
    answers: dict[PeerId, Answer]
    attempts: int
    resyncs: int

    def __init__(self, world: World, me: PeerId, author: bool, newcomer: bool) -> None:
        self.world, self.me, self.author, self.newcomer = world, me, author, newcomer
        self.window = world.schedule.window
        self.disk = Disk()
        self.alive = self.up = False
        self.paused_until = 0.0
        self.inbox: list[tuple[str, tuple[object, ...]]] = []
        self.late = newcomer
        self.torn: Event | None = None
        self.resyncs = 0
        self.life = 0
        self.forget()

    def forget(self) -> None:
        """Everything that is in memory alone."""
        self.ledger = Ledger(PART, self.me, self.window)
        self.authored = Authored()
        self.state = State()
        self.blobs: dict[str, Vector] = {}
        self.claims = {0: Claim(0, BEGINNING, 0, self.author)}
        self.clocks: dict[PeerId, int] = {}
        self.heard_at: dict[PeerId, float] = {}
        self.shown: dict[PeerId, int] = {}
        self.heard: dict[PeerId, dict[int, Claim]] = {}
        self.stale: set[int] = set()
        self.awaited: set[PeerId] = set()
        self.contributed = False
        self.answers: dict[PeerId, Answer] = {}
        self.attempts = 0
        self.catching = False

    # Life

    def start(self) -> None:
        """Begin, or begin again with what is on disk."""
        self.alive = True
        self.life += 1
        self.forget()
        self.disk.restore(self)
        if self.ledger.clock == 1 and not self.newcomer and not self.late:
            self.go()
        else:
            self.keep_promises()
            self.fall_behind()

    def keep_promises(self) -> None:
        """Pass on what this peer may have died over: its own, and what it gave receipts for."""
        for promised, blob in self.disk.promised():
            if entry := self.ledger.versions(promised.name).get(promised.sha256):
                self.tell(entry, blob, self.world.others(self.me), "")

    def lie(self, _event: Event) -> None:
        """An honest peer does not."""

    def stop(self) -> None:
        self.alive = self.up = False
        self.life += 1
        self.inbox.clear()

    def go(self) -> None:
        self.up = True
        self.keep_promises()
        if self.late:
            self.compare_with_others()
        self.begin_round()
        if self.newcomer:
            self.newcomer, self.contributed = False, True

    # Rounds

    def begin_round(self) -> None:
        """Start the inner loop of the round on the clock, or what is left of it."""
        clock = self.ledger.clock
        if clock >= self.world.last_round:
            return
        recent = self.ledger.accepted.get(clock - 1, {}).keys() | self.ledger.accepted.get(clock - 2, {}).keys()
        self.awaited = set(recent) - self.ledger.accepted.get(clock, {}).keys() - {self.me}
        self.contributed = not self.author or clock in self.disk.sent
        if clock == 1:
            self.awaited = set(self.world.schedule.of("author")) - {self.me}
        if not self.contributed:
            self.world.timer(self.world.work(), self, "finish_work", clock)
        self.world.timer(PATIENCE, self, "lose_patience", clock)

    def finish_work(self, clock: int) -> None:
        if self.up and clock == self.ledger.clock and not self.contributed:
            self.contribute()
            self.end_round_if_all_are_here()

    def lose_patience(self, clock: int) -> None:
        if self.up and clock == self.ledger.clock:
            if not self.contributed:
                self.contribute()
            if self.alive and not self.runs_ahead():
                self.advance(clock + 1)
            else:
                self.world.timer(SILENCE / 4, self, "lose_patience", clock)

    def end_round_if_all_are_here(self) -> None:
        if not self.awaited and self.contributed and self.up and not self.runs_ahead():
            self.advance(self.ledger.clock + 1)

    def contribute(self) -> None:
        """Publish a part of the error feedback under the round on the clock. On disk before anybody hears of it."""
        name = ContributionName(PART, self.ledger.clock, self.me)
        delta = self.world.delta()
        self.contributed = True
        self.state.computed = add(self.state.computed, delta)
        everything = add(self.state.residual, delta)
        sent = (everything[0], 0) if self.world.random.random() < 0.5 else (0, everything[1])
        self.state.residual = subtract(everything, sent)
        entry = self.world.compose(name, sent)
        self.blobs[entry.sha256] = sent
        self.authored.send(name)
        self.persist_sent(name.round, entry, sent)
        self.hear(entry, sent, self.me)
        self.publish(entry, sent)

    def persist_sent(self, round: int, entry: Entry, sent: Vector) -> None:
        self.disk.keep_sent(round, entry, sent, self.state)

    def publish(self, entry: Entry, blob: Vector) -> None:
        self.tell(entry, blob, self.world.others(self.me), "torn")

    def tell(self, entry: Entry, blob: Vector | None, others: list[PeerId], last_words: str) -> None:
        """Spread an entry. A schedule may have it that this peer dies over it, and one alone hears."""
        dying = self.torn if self.torn and self.torn.kind == last_words else None
        said = copied(entry)
        for other in [dying.other] if dying else others:
            self.world.spread(self, other, said, blob)
        if dying:
            self.world.crash(dying, self)

    def advance(self, clock: int) -> None:
        """A boundary: the clock goes on, old rounds are folded, open ones brought up to date, others asked."""
        self.world.release(self, clock - 1)
        if clock <= self.ledger.clock or not self.up:
            return
        self.fold(self.ledger.advance(clock))
        self.settle()
        self.disk.checkpoint(self)
        self.compare_with_others()
        self.begin_round()
        self.world.release(self, clock)

    def fold(self, rounds: list[int]) -> None:
        """Close rounds for ever."""
        for round in rounds:
            self.refresh(round)
            self.state.fold(round, self.ledger.fold(round))
            self.stale.discard(round)
            self.note_claim()
        if rounds:
            self.account()

    def note_claim(self) -> None:
        round = self.ledger.folded
        claims = {old: claim for old, claim in self.claims.items() if round - CLAIMS_KEPT < old < round}
        said = digest(self.state.folded, self.ledger.history)
        claims[round] = Claim(round, said, self.ledger.history.total(), self.author)
        self.claims = claims

    def account(self) -> None:
        """Closed rounds decide what the error feedback has been charged for."""
        back, again = self.authored.adopt(self.ledger)
        for name in back:
            self.state.residual = add(self.state.residual, self.disk.value(name.round))
        for name in again:
            self.state.residual = subtract(self.state.residual, self.disk.value(name.round))

    def refresh(self, round: int) -> None:
        """Subtract a round's old F(S) and add the new, if anything changed."""
        if round in self.stale:
            self.stale.discard(round)
            self.state.settle(round, term([self.blobs[sha256] for sha256 in self.ledger.chosen(round).values()]))

    def settle(self) -> None:
        for round in sorted(self.stale):
            self.refresh(round)

    # Contributions

    def hear(self, entry: Entry, blob: Vector | None, source: PeerId, vouched: bool = False) -> Standing:
        """An entry, perhaps with its bytes. Whatever is accepted gets this peer's receipt, and is passed on."""
        name, round = entry.name, entry.name.round
        self.shown[name.author] = max(round, self.shown.get(name.author, 0))
        if blob is None:
            blob = self.blobs.get(entry.sha256)
        before = len(self.ledger.versions(name))
        hear = self.ledger.offer if blob is None else self.ledger.take
        standing = hear(entry, vouched)
        if standing is Standing.WANTED and source != self.me:
            self.world.send(self.me, source, "on_fetch", self.me, entry)
        if standing is Standing.ACCEPTED and blob is not None:
            self.blobs[entry.sha256] = blob
        if standing is Standing.ACCEPTED and len(self.ledger.versions(name)) > before:
            for accepted in self.ledger.versions(name).values():
                self.vouch(accepted, vouched)
            self.stale.add(round)
            if round == self.ledger.clock:
                self.awaited.discard(name.author)
                if name.author != self.me:
                    self.end_round_if_all_are_here()
        return standing

    def vouch(self, entry: Entry, known_to_all: bool) -> None:
        """Sign, and pass on at once what is late; what is not will be found when comparing."""
        name = entry.name
        self.world.note_accepted(self, entry)
        if self.ledger.wants_receipt(name, entry.sha256):
            self.persist_accepted(entry)
            self.ledger.sign(name, entry.sha256, b"")
        if (self.ledger.clock > name.round or self.world.schedule.slow) and name.author != self.me and not known_to_all:
            others = [each for each in self.world.others(self.me) if each not in {name.author, *entry.receipts}]
            self.tell(entry, self.blobs.get(entry.sha256), others, "gasp")

    def persist_accepted(self, entry: Entry) -> None:
        self.disk.keep_accepted(entry, self.blobs.get(entry.sha256))

    def on_told(self, source: PeerId, entry: Entry, blob: Vector | None) -> None:
        """All who are told share one `entry`: what is known here already need not be copied."""
        if self.up:
            known = entry.sha256 in self.ledger.versions(entry.name)
            self.hear(entry if known else copied(entry), blob, source)

    def on_announced(self, name: ContributionName) -> None:
        """Somebody has published: no need to wait for it any longer, though its bytes are still under way."""
        if self.up and name.round == self.ledger.clock:
            self.awaited.discard(name.author)
            self.end_round_if_all_are_here()

    def on_fetch(self, source: PeerId, entry: Entry) -> None:
        blob = self.blobs.get(entry.sha256)
        if blob is not None:
            self.world.send(self.me, source, "on_told", self.me, copied(entry), blob)
