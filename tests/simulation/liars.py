"""Peers that keep the protocol's letter but for the lies a schedule tells them. They cannot forge signatures."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from protocol.identity import ContributionName, PeerId
from protocol.outer.history import Claim
from protocol.outer.ledger import Entry
from protocol.outer.set_difference import Summary
from tests.simulation.arithmetic import Vector
from tests.simulation.catching_up import Answer
from tests.simulation.disk import copied
from tests.simulation.peer import PART, Peer

if TYPE_CHECKING:
    from tests.simulation.schedule import Event
    from tests.simulation.world import World


class Liar(Peer):
    """`plan`: what to do with its next contribution; `secrets`: what few have heard of."""

    def __init__(self, world: World, me: PeerId, author: bool, newcomer: bool) -> None:
        super().__init__(world, me, author, newcomer)
        self.plan: Event | None = None
        self.secrets: list[tuple[Entry, Vector]] = []
        self.clock_lie = 0
        self.false_claims = self.false_snapshots = False
        self.refused: set[str] = set()

    def lie(self, event: Event) -> None:
        match event.kind:
            case "clock":
                self.clock_lie = (1000, -3, 5)[event.number % 3]
                self.sign_ahead()
            case "claim":
                self.false_claims = True
            case "snapshot":
                self.false_snapshots = True
            case _:
                self.plan = event

    # Contributions

    def sign_ahead(self) -> None:
        """A contribution to the round that it says to be in, as a proof: nobody will ever have its bytes."""
        if self.clock_lie > 0:
            name = ContributionName(PART, self.ledger.clock + self.clock_lie, self.me)
            for other in self.world.others(self.me):
                self.world.send(self.me, other, "on_told", self.me, Entry(name, f"{name.author} ahead", 1), None)

    def contribute(self) -> None:
        """As told, in its own round: withheld for one victim, in two or three versions, without bytes, or plainly."""
        self.contributed = True
        name, plan = ContributionName(PART, self.ledger.clock, self.me), self.plan
        self.plan = None
        versions = [self.world.compose(name, self.world.delta()) for _ in range(3)]
        first, second, third = versions
        blobs = self.world.made[name]
        others = self.world.others(self.me)
        if plan is None:
            self.hear(first, blobs[first.sha256], self.me)
            return self.publish(first, blobs[first.sha256])
        match plan.kind:
            case "withhold":
                self.strike_later(plan, first, blobs[first.sha256])
            case "late":
                for other in others:
                    if other != plan.other:
                        self.strike(other, first, blobs[first.sha256])
                self.strike_later(plan, first, blobs[first.sha256])
            case "equivocate":
                for other in others:
                    self.strike(other, first, blobs[first.sha256])
                self.strike_later(plan, second, blobs[second.sha256])
            case "three":
                self.refused = {second.sha256, third.sha256}
                self.strike(plan.other, second, None)
                self.strike(plan.other, third, None)
                for other in others:
                    self.strike(other, first, blobs[first.sha256])
            case "bytes":
                self.refused = {first.sha256}
                for other in others:
                    self.strike(other, first, blobs[first.sha256] if other == plan.other else None)
        return None

    def strike_later(self, plan: Event, entry: Entry, blob: Vector) -> None:
        """When the victim's clock is `number` rounds ahead of the contribution: early or late in that round."""
        self.secrets.append((entry, blob))
        self.world.timer(0.05, self, "await_victim", plan, entry, blob)

    def await_victim(self, plan: Event, entry: Entry, blob: Vector) -> None:
        victim = self.world.peers[plan.other]
        if victim.ledger.clock >= entry.name.round + plan.number:
            self.world.timer(0.8 * plan.length, self, "strike", plan.other, entry, blob)
        elif self.world.now < self.world.schedule.rounds + self.window.width:
            self.world.timer(0.1, self, "await_victim", plan, entry, blob)

    def strike(self, victim: PeerId, entry: Entry, blob: Vector | None) -> None:
        """With the receipts of all liars, given whenever it pleases them."""
        struck = copied(entry)
        struck.receipts |= dict.fromkeys(self.world.schedule.of("liar"), b"")
        self.world.send(self.me, victim, "on_told", self.me, struck, blob)

    def on_told(self, source: PeerId, entry: Entry, blob: Vector | None) -> None:
        plan = self.world.peers[source].torn
        if plan and plan.other == self.me and plan.side and not self.world.peers[source].alive and blob is not None:
            self.strike_later(replace(plan, other=plan.side[0], length=self.world.random.random()), entry, blob)
        else:
            super().on_told(source, entry, blob)

    def on_fetch(self, source: PeerId, entry: Entry) -> None:
        if entry.sha256 not in self.refused:
            super().on_fetch(source, entry)

    # Words

    def summary(self) -> Summary:
        mine = super().summary()
        return replace(mine, clock=max(1, mine.clock + self.clock_lie)) if self.clock_lie else mine

    def claimed(self) -> dict[int, Claim]:
        if not self.false_claims:
            return self.claims
        return {round: Claim(round, f"0{claim.digest}", 10**6, True) for round, claim in self.claims.items()}

    def answer(self) -> Answer:
        answer = super().answer()
        if not self.world.schedule.secretive:
            answer.entries += [copied(entry) for entry, _ in self.secrets]
            answer.blobs |= {entry.sha256: blob for entry, blob in self.secrets}
        answer.clock = max(1, answer.clock + self.clock_lie)
        if self.false_snapshots:
            answer.theta = answer.theta[0] + 1, answer.theta[1]
            wrong = Claim(answer.folded, answer.digest(), 10**6, True)
            answer.claims = {**answer.claims, answer.folded: wrong}
            answer.entries = answer.entries[1:]
        return answer


class Stranger(Peer):
    """One that was let in to look on, and whose word about its round is no use to anybody."""

    clock_lie = 0

    def lie(self, event: Event) -> None:
        self.clock_lie = (1000, -3, 5)[event.number]

    def summary(self) -> Summary:
        mine = super().summary()
        return replace(mine, clock=max(1, mine.clock + self.clock_lie))

    def answer(self) -> Answer:
        answer = super().answer()
        answer.clock = max(1, answer.clock + self.clock_lie)
        return answer
