"""Virtual time, messages and faults."""

from __future__ import annotations

from heapq import heappop, heappush
from random import Random
from typing import TYPE_CHECKING

from protocol.identity import ContributionName, PeerId
from protocol.outer.ledger import Entry, Revocation
from protocol.outer.window import SKEW
from tests.simulation.arithmetic import Vector
from tests.simulation.liars import Liar, Stranger
from tests.simulation.peer import Peer
from tests.simulation.schedule import JOINER, LIAR, LIES, STRANGER, Event, Schedule

if TYPE_CHECKING:
    from collections.abc import Callable

FORGOTTEN = 1.0
"""After so many rounds of silence a peer is no longer in the directory."""
QUIET = 6
"""Rounds beyond the window in which nothing goes wrong any more, and what went wrong before is folded."""
MOST_STEPS = 40_000


class World:
    """One schedule, run."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule, self.random = schedule, Random(schedule.seed)
        self.now, self.steps = 0.0, 0
        self.queue: list[tuple[float, int, Callable[..., None], tuple[object, ...]]] = []
        self.calm = schedule.calm
        self.loss = schedule.loss
        self.sides: dict[int, frozenset[PeerId]] = {}
        self.made: dict[ContributionName, dict[str, Vector]] = {}
        self.seen: dict[ContributionName, dict[str, set[PeerId]]] = {}
        """Which versions have been accepted by whom."""
        self.held: dict[PeerId, list[tuple[int, PeerId, Entry, Vector | None]]] = {}
        self.over = False
        self.wiped: set[PeerId] = set()
        self.mute: set[PeerId] = set()
        """Who died over something it alone had accepted, and came back when messages must long have been there."""
        self.last_round = 10**9
        self.directory: dict[PeerId, list[PeerId]] = {}
        self.peers: dict[PeerId, Peer] = {}
        crashing = {event.who for event in schedule.events if event.kind in ("crash", "torn", "gasp", "wipe")}
        for me, role in schedule.roles.items():
            kind = {LIAR: Liar, STRANGER: Stranger}.get(role, Peer)
            peer = self.peers[me] = kind(self, me, schedule.may_author(me), role == JOINER)
            peer.disk.needed = me in crashing
        for peer in self.peers.values():
            if not peer.newcomer:
                self.enlist(peer.me, True)
        for peer in self.peers.values():
            if not peer.newcomer:
                self.at(self.random.uniform(0, 0.2), peer.start)
        for event in schedule.events:
            self.at(event.time, self.happen, event)

    # Time

    def at(self, time: float, action: Callable[..., None], *args: object) -> None:
        self.steps += 1
        heappush(self.queue, (time, self.steps, action, args))

    def timer(self, delay: float, peer: Peer, action: str, *args: object) -> None:
        self.at(self.now + delay, self.ring, peer, peer.life, action, args)

    def ring(self, peer: Peer, life: int, action: str, args: tuple[object, ...]) -> None:
        if peer.life == life:
            self.give(peer, action, args)

    def give(self, peer: Peer, action: str, args: tuple[object, ...]) -> None:
        if peer.paused_until > self.now:
            peer.inbox.append((action, args))
        else:
            getattr(peer, action)(*args)

    def run(self) -> None:
        """Until all have reached the last round, and have nothing more to tell each other."""
        end = self.schedule.rounds + 0.2
        self.at(end, self.end_of_faults)
        self.drain()
        self.over = True
        for peer in self.peers.values():
            self.release(peer, self.last_round + SKEW)
            if peer.up:
                peer.compare_with_others()
        self.drain()
        for peer in self.peers.values():
            peer.settle()

    def drain(self) -> None:
        """Until nothing is under way."""
        while self.queue:
            self.now, _, action, args = heappop(self.queue)
            action(*args)
            if self.steps > MOST_STEPS:
                raise RuntimeError("the schedule does not come to an end")

    def end_of_faults(self) -> None:
        """From here on messages flow, everybody wakes up, and liars lie no more by word, only by what they said."""
        self.calm, self.loss, self.sides = True, 0.0, {}
        for peer in self.peers.values():
            if peer.paused_until > self.now:
                peer.paused_until = self.now
                self.wake(peer)
        clock = max(peer.ledger.clock for peer in self.peers.values())
        somebody_was_late = not self.schedule.calm or any(peer.late for peer in self.peers.values())
        self.last_round = clock + (self.schedule.window.width + QUIET if somebody_was_late else SKEW)

    # Messages

    def others(self, me: PeerId) -> list[PeerId]:
        """Whom the directory knows but oneself."""
        if me not in self.directory:
            return [each for each in self.directory if each != me]
        return self.directory[me]

    def enlist(self, who: PeerId, there: bool) -> None:
        names = [each for each in self.directory if each != who] + [who] * there
        self.directory = {each: [other for other in names if other != each] for each in names}

    def send(self, source: PeerId, target: PeerId, action: str, *args: object) -> None:
        if self.sides and any((source in side) != (target in side) for side in self.sides.values()):
            return
        random = self.random.random
        if self.calm or (source in self.schedule.united and target in self.schedule.united):
            delay = 0.02 + 0.1 * random()
        else:
            delay = 0.02 + 0.2 * random() if random() < 0.95 else 3 * random()
            if self.loss and random() < self.loss:
                return
        self.at(self.now + delay, self.deliver, target, action, args)
        if self.schedule.repeats and random() < self.schedule.repeats:
            self.at(self.now + delay + 0.1 * random(), self.deliver, target, action, args)

    def spread(self, sender: Peer, target: PeerId, entry: Entry, blob: Vector | None) -> None:
        """An entry with its bytes. To slow peers it takes as long as synchrony allows."""
        if not self.holds(target) or isinstance(sender, Liar):
            return self.send(sender.me, target, "on_told", sender.me, entry, blob)
        due = sender.ledger.clock + SKEW
        self.held.setdefault(target, []).append((due, sender.me, entry, blob))
        self.send(sender.me, target, "on_announced", entry.name)
        return None

    def holds(self, target: PeerId) -> bool:
        """Whether this peer hears nothing sooner than it must."""
        return target in self.schedule.slow and not self.over

    def release(self, peer: Peer, clock: int) -> None:
        """What must have reached a slow peer by this clock."""
        if waiting := self.held.get(peer.me):
            self.held[peer.me] = [each for each in waiting if each[0] > clock]
            for due, sender, entry, blob in waiting:
                if due <= clock:
                    peer.on_told(sender, entry, blob)

    def deliver(self, target: PeerId, action: str, args: tuple[object, ...]) -> None:
        peer = self.peers[target]
        if peer.alive:
            self.give(peer, action, args)

    # What chance decides

    def work(self) -> float:
        return 0.7 + 0.3 * self.random.random()

    def delta(self) -> Vector:
        return self.random.randint(-9, 9), self.random.randint(-9, 9)

    def compose(self, name: ContributionName, sent: Vector) -> Entry:
        """Make a contribution known to the world, which judges at the end."""
        versions = self.made.setdefault(name, {})
        sha256 = f"{name.author}{name.round}.{len(versions)}"
        versions[sha256] = sent
        return Entry(name, sha256, 1)

    def note_accepted(self, peer: Peer, entry: Entry) -> None:
        self.seen.setdefault(entry.name, {}).setdefault(entry.sha256, set()).add(peer.me)

    # Faults

    def happen(self, event: Event) -> None:
        peer = self.peers[event.who]
        if event.kind in LIES:
            peer.lie(event)
        else:
            getattr(self, event.kind)(event, peer)

    def join(self, event: Event, peer: Peer) -> None:
        peer.late = True
        self.enlist(peer.me, True)
        peer.start()

    def leave(self, event: Event, peer: Peer) -> None:
        if peer.alive:
            peer.stop()
            self.enlist(peer.me, False)

    def crash(self, event: Event, peer: Peer) -> None:
        if not peer.alive:
            return
        if event.length > SKEW and self.sole_witness(peer):
            self.mute.add(peer.me)
        peer.stop()
        peer.late = True
        if event.length:
            self.at(self.now + event.length, self.restart, peer)
        if not event.length or event.length > FORGOTTEN:
            self.at(self.now + FORGOTTEN, self.forget, peer)

    def sole_witness(self, peer: Peer) -> bool:
        """Whether of all honest peers alive this one alone has accepted something of another's."""
        others = {each for each in self.schedule.honest() if self.peers[each].alive} - {peer.me}
        return any(
            peer.me in by and not by & others
            for name, versions in self.seen.items()
            for by in versions.values()
            if name.author != peer.me
        )

    def wipe(self, event: Event, peer: Peer) -> None:
        if peer.alive:
            self.crash(event, peer)
            self.wiped.add(peer.me)
            peer.disk = type(peer.disk)(needed=True)
            peer.newcomer = True

    def restart(self, peer: Peer) -> None:
        if not peer.alive:
            peer.torn = None
            self.enlist(peer.me, True)
            peer.start()

    def forget(self, peer: Peer) -> None:
        if not peer.alive:
            self.enlist(peer.me, False)

    def torn(self, event: Event, peer: Peer) -> None:
        """It will die while publishing."""
        peer.torn = event

    def gasp(self, event: Event, peer: Peer) -> None:
        """It will die while passing on."""
        peer.torn = event

    def pause(self, event: Event, peer: Peer) -> None:
        if peer.alive:
            peer.paused_until = max(peer.paused_until, self.now + event.length)
            self.at(peer.paused_until, self.wake, peer)

    def wake(self, peer: Peer) -> None:
        """What has waited at the door comes in, in order; then timers that ran out long ago."""
        if peer.paused_until <= self.now:
            inbox, peer.inbox = peer.inbox, []
            for action, args in inbox:
                if peer.alive:
                    getattr(peer, action)(*args)

    def part(self, event: Event, peer: Peer) -> None:
        self.steps += 1
        key = self.steps
        self.sides[key] = frozenset(event.side)
        self.at(self.now + event.length, self.unite, key)

    def unite(self, side: int) -> None:
        self.sides.pop(side, None)

    def revoke(self, event: Event, peer: Peer) -> None:
        """The operator's node follows the rounds, and tells everybody it knows."""
        issued = max(self.peers[each].ledger.clock for each in self.schedule.honest())
        revocation = Revocation(event.who, max(1, issued - event.number), issued)
        for other in self.directory:
            self.send(PeerId("operator"), other, "on_revocations", PeerId("operator"), {revocation})
