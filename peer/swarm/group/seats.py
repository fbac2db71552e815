"""The neighbours of a stage in a group: the stage before has called it, and it calls the stage behind.

A group grows from its first stage on. Each stage that has one before it calls a free volunteer of the next, and tells
the one before who is seated from it on, until those are all. So nobody is held by a group that cannot grow, and a stage
answers for those behind it: who finds nobody in time gives way to another of its own.
"""

import asyncio
import random
from dataclasses import dataclass, field

from peer.network.duplex import HungUpError
from peer.network.gossip import Reconciler
from peer.network.group import DoubtHandler, Link, PipelineService, call, ignore_doubt, make_link
from peer.swarm.group.plan import backoff_seconds, preferred
from peer.swarm.group.slowness import Backoffs
from peer.swarm.roles import looking
from protocol.clock import monotonic
from protocol.codec.seating import pack_seats, unpack_seats
from protocol.errors import HetpeerError, LostMemberError, RefusedError
from protocol.identity import PeerId, ReplicaId
from protocol.net.tasks import Children, Notifier
from protocol.patience import (
    CALLED_LAST_SECONDS,
    FILL_SECONDS,
    MEASURE_SECONDS,
    MOST_CALLED_LAST_SECONDS,
    MOST_UNANSWERED_SECONDS,
    REGROUP_SECONDS,
    SEAT_SECONDS,
    UNANSWERED_SECONDS,
)
from protocol.trust.records import PeerRecord

NO_GROUP = ReplicaId("")

EAGER = 3
"""The number of failures in a row after which a peer pauses before the next attempt."""

MEASURED = 4
"""The number of candidates for a seat whose distance is measured."""

SEATING_INTERVAL_SECONDS = 0.1
"""The shortest time between two messages of a neighbour on who is seated behind it, in seconds. A quicker one is cut
off, as each message is passed on to the first stage."""


@dataclass(slots=True)
class GroupSeats:
    """The seats of one stage's group, from this stage on, and the links to those beside it."""

    reconciler: Reconciler
    service: PipelineService
    tasks: asyncio.TaskGroup
    on_doubt: DoubtHandler = ignore_doubt
    """Is given the doubts that neighbours send or pass on."""
    open: bool = False
    """Whether this peer takes calls: it has caught up with the run."""
    called: Link | None = None
    """The call of a stage before this one that nobody has taken yet."""
    calls_for: ReplicaId = NO_GROUP
    upstream: Link | None = None
    downstream: Link | None = None
    replica: ReplicaId = NO_GROUP
    """The group that this stage is in; empty: none."""
    behind: tuple[PeerId, ...] = ()
    """The peers that serve the stages behind this one, as far as they are seated."""
    usual: PeerId | None = None
    """The peer that sat behind this stage in its last group."""
    wished: PeerId | None = None
    """The peer that is to sit there next, for which this stage waits `until`."""
    until: float = 0.0
    silences: Backoffs = field(default_factory=lambda: Backoffs(UNANSWERED_SECONDS, MOST_UNANSWERED_SECONDS))
    """The volunteers that did not answer there in time: they are not called again for the same."""
    replaced: Backoffs = field(default_factory=lambda: Backoffs(CALLED_LAST_SECONDS, MOST_CALLED_LAST_SECONDS))
    """The neighbours that were slow: they are called last."""
    replacing_until: float = 0.0
    """The time, by `monotonic`, until which a first stage that was slow has to wait for another to call."""

    def __post_init__(self) -> None:
        if self._me.stage:
            self.service.answer_calls(self._welcome)

    @property
    def _me(self) -> PeerRecord:
        return self.reconciler.discovery.record

    @property
    def _news(self) -> Notifier:
        return self.reconciler.discovery.news

    @property
    def _to_fill(self) -> int:
        """The stages behind this one."""
        return self.reconciler.contacts.manifest.replicas.stages - 1 - self._me.stage

    @property
    def members(self) -> tuple[PeerId, ...]:
        """The peers that are seated from this stage on."""
        return self._me.peer_id, *self.behind

    @property
    def whole(self) -> bool:
        """Whether every stage behind this one has somebody."""
        return len(self.behind) == self._to_fill

    @property
    def is_called(self) -> bool:
        """Whether a stage before this one waits for it to take its seat."""
        return self.called is not None and not self.called.ended

    @property
    def links(self) -> list[Link]:
        """The links to those beside this stage."""
        return [link for link in (self.upstream, self.downstream) if link is not None]

    @property
    def lost(self) -> Link | None:
        """A link to a neighbour that has ended; None: none has."""
        return next((link for link in self.links if link.ended), None)

    @property
    def before_is_gone(self) -> bool:
        """Whether the stage before this one is no more."""
        return self.upstream is not None and self.upstream.ended

    def require_neighbours(self) -> None:
        """Raise LostMemberError if a neighbour has hung up or is gone."""
        if (lost := self.lost) is not None:
            raise lost.end if isinstance(lost.end, HungUpError) else LostMemberError(f"{lost.with_whom} is gone")

    def require_upstream(self) -> Link:
        """Return the link to the stage before this one.

        Raises:
            LostMemberError: there is none.
        """
        if self.upstream is None:
            raise LostMemberError("this stage has none before it")
        return self.upstream

    # The stage before

    def _welcome(self, neighbour: PeerId, replica: ReplicaId) -> Link:
        """Take the call of the stage before this one.

        Raises:
            RefusedError: this peer has one already, or takes no part in groups now, or not with that one.
        """
        discovery, me = self.reconciler.discovery, self._me
        record = discovery.records.get(neighbour)
        if objection := self.reconciler.bans.objection(neighbour):
            raise RefusedError(objection)
        if record is None:
            raise RefusedError("this peer has not heard of you yet")
        if record.role != "volunteer" or record.stage + 1 != me.stage:
            raise RefusedError(f"this peer serves stage {me.stage}, and you not the one before it")
        if me.stage == 1 and PeerId(replica) != neighbour:
            raise RefusedError("a group is named for its first stage")
        first = discovery.records.get(PeerId(replica))
        if first is None or first.role != "volunteer" or first.stage:  # this peer's record is to say that name
            raise RefusedError("this peer knows no first stage of that name")
        if not self.open or me.phase:
            raise RefusedError("this peer takes no part in groups now" if not me.phase else f"this peer is {me.phase}")
        if self._waits_for_another(neighbour):
            raise RefusedError("your group was slow, and this peer waits for another first stage")
        if self.is_called or (self.upstream is not None and not self.upstream.ended):
            raise RefusedError("this peer is in another group")
        self.called, self.calls_for = self._link_to(neighbour, me.stage - 1), replica
        self._news.ring()
        return self.called

    def _waits_for_another(self, first: PeerId) -> bool:
        """Whether a first stage that was slow is refused, since another is there that looks for members."""
        now = monotonic()
        if now >= self.replacing_until or not self.replaced.holds(first, now):
            return False
        others = looking(self.reconciler.discovery.peers(), 0)
        return any(peer.peer_id != first and not self.replaced.holds(peer.peer_id, now) for peer in others)

    def open_for_calls(self) -> None:
        """Take calls from now on: this peer has caught up with the run."""
        self.open = True

    def lead(self) -> None:
        """Form a group, as its first stage."""
        self.replica = ReplicaId(self._me.peer_id)

    def sit_down(self) -> None:
        """Take the seat behind the stage that has called."""
        self.upstream, self.called, self.replica = self.called, None, self.calls_for
        self._send_seats()

    def _send_seats(self) -> None:
        """Tell the stage before who is seated from this one on."""
        self._news.ring()
        if self.upstream is not None:
            self.upstream.send(pack_seats(self.members))

    # The stage behind

    async def fill(self) -> None:
        """Call peers until every stage behind this one is seated."""
        attempt = 0
        while not self.whole:
            downstream = self.downstream
            if downstream is None:
                candidate = await self._candidate(attempt)
                if candidate is None or not await self._call(candidate):
                    if attempt:  # else another is called at once: who sat here before may be the one that was lost
                        await self._news.wait(backoff_seconds(min(attempt, EAGER), random.uniform(0.5, 1.5)))
                    attempt += 1
                continue
            try:
                await self._receive_seats(downstream, FILL_SECONDS * (self._to_fill - 1))
                if not self.whole:
                    await asyncio.sleep(SEATING_INTERVAL_SECONDS)
            except TimeoutError:
                if await self._candidate(0, downstream.peer) is not None:
                    self._let_go(LostMemberError("it has found nobody for the stage behind it"))
                    attempt += 1
            except HetpeerError as error:
                self._let_go(error)
                attempt += 1

    async def _candidate(self, attempt: int, without: PeerId | None = None) -> PeerRecord | None:
        """Return the peer to call next, after `attempt` vain attempts; None if nobody is free."""
        discovery = self.reconciler.discovery
        volunteers = {peer.peer_id: peer for peer in discovery.peers() if peer.role == "volunteer"}
        if self.wished is not None and monotonic() < self.until:
            return volunteers.get(self.wished)
        await self._measure()
        order = preferred(discovery.peers(), self._me, discovery.trips)
        usual = volunteers.get(self.usual) if self.usual is not None else None
        if usual is not None and usual.stage == self._me.stage + 1 and usual.replica in ("", self.replica):
            order = [usual, *(peer for peer in order if peer.peer_id != usual.peer_id)]
        now = monotonic()
        able = (peer for peer in order if not self.silences.holds(peer.peer_id, now, peer.round))
        order = [peer for peer in able if peer.peer_id != without]
        order.sort(key=lambda peer: self.replaced.holds(peer.peer_id, now))
        return order[attempt % len(order)] if order else None

    async def _call(self, peer: PeerRecord) -> bool:
        """Have a volunteer take the seat behind this one. Returns whether it does."""
        self.downstream = downstream = self._link_to(peer.peer_id, peer.stage)
        self.tasks.create_task(call(peer, self.reconciler.contacts, self.replica, downstream))
        try:
            await self._receive_seats(downstream, SEAT_SECONDS)
        except TimeoutError:
            self._let_go(LostMemberError("it has not taken its seat"))
        except HetpeerError as error:
            self._let_go(error)
        return self.downstream is not None

    async def _receive_seats(self, downstream: Link, seconds: float) -> None:
        """Receive who is seated behind this stage now.

        Raises:
            LostMemberError, BreachError: the one behind it is gone, or says what cannot be.
            TimeoutError: it says nothing new in that time.
        """
        async with asyncio.timeout(seconds):
            frame = await downstream.receive()
        with downstream.blamed():
            self.behind = unpack_seats(frame, downstream.peer, self._to_fill)
        self.usual, self.wished = downstream.peer, None
        self._send_seats()

    def _let_go(self, error: HetpeerError) -> None:
        """Hang up on the one behind this stage, which is avoided if it broke the protocol."""
        if self.downstream is not None:
            self.reconciler.bans.note(self.downstream.peer, error)
            self.downstream.abort(str(error))
        had, self.downstream, self.behind, self.usual = self.behind, None, (), None
        if had:
            self._send_seats()

    async def _measure(self) -> None:
        """Learn how far away the first candidates are, where there is a choice. Peers that compare with each other know
        it."""
        discovery = self.reconciler.discovery

        async def ask(peer: PeerRecord) -> None:
            await self.reconciler.compare(peer)
            if peer.peer_id not in discovery.trips:  # the first comparison opened the channel
                await self.reconciler.compare(peer)

        order = preferred(discovery.peers(), self._me)
        unknown = [peer for peer in order[:MEASURED] if peer.peer_id not in discovery.trips]
        if unknown and len(order) > 1:
            async with Children() as asking:
                await asyncio.wait([asking.spawn(ask(peer)) for peer in unknown], timeout=MEASURE_SECONDS)

    # Both

    def _link_to(self, peer: PeerId, stage: int) -> Link:
        contacts, with_whom = self.reconciler.contacts, f"stage {stage} of this group ({peer[-8:]})"
        return make_link(contacts.manifest, peer, with_whom, contacts.bandwidth, self.on_doubt, self._news.ring)

    def hang_up(self, reason: str) -> None:
        """End both links at once: whoever waits for this peer learns that the group is broken."""
        for link in self.links:
            link.abort(reason)

    def leave(self) -> None:
        """Out of the group, between two inner steps: what has been said still goes out."""
        for link in self.links:
            link.close()
        self.upstream = self.downstream = None
        self.replica, self.behind = NO_GROUP, ()

    def wait_for(self, peer: PeerId | None) -> None:
        """Wait, from the next group on, for a volunteer that another group lets go, to sit behind this stage. One that
        was slow not long ago is not waited for."""
        now = monotonic()
        is_slow = peer is not None and self.replaced.holds(peer, now)
        self.wished, self.until = None if is_slow else peer, now + REGROUP_SECONDS

    def note_silence(self, peer: PeerId) -> None:
        """Call a volunteer that did not answer in time no more, until it has finished another round or some time has
        passed."""
        record = self.reconciler.discovery.records.get(peer)
        self.silences.note(peer, monotonic(), record.round if record is not None else 0)

    def replace(self, peer: PeerId) -> None:
        """Look, from the next group on, for another in the place of a neighbour that was slow."""
        now = monotonic()
        self.replaced.note(peer, now)
        self.replacing_until = now + REGROUP_SECONDS

    def close(self) -> None:
        """Take no more calls, and hang up on who has called: it looks for another."""
        self.open = False
        if self.called is not None:
            self.called.close()
        self.leave()


async def pause_before_regrouping(news: Notifier, failures: int) -> None:
    """Pause between two groups, after `failures` in a row. After a few failures, news do not shorten the pause, as each
    attempt makes some."""
    seconds = backoff_seconds(failures, random.uniform(0.5, 1.5))
    await (news.wait(seconds) if failures <= EAGER else asyncio.sleep(seconds))
