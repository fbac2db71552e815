"""A stage tries another volunteer in the place of a neighbour that has become slow, or, where there is none, tells who
is slow and by how much. `peer/swarm/group/slowness.py` decides who is slow."""

from dataclasses import dataclass, field

from peer.network.duplex import HungUpError
from peer.swarm.group.seats import GroupSeats
from peer.swarm.group.slowness import Member, SlowFinding, SlownessWatch, StepKind, StepTimes, is_worth_a_try
from peer.swarm.roles import free_volunteers, looking
from peer.swarm.rounds.outer_round import OuterLoop
from protocol.clock import monotonic
from protocol.codec.seating import OfferFrame
from protocol.errors import HetpeerError, LostMemberError
from protocol.events.group_decisions import NOBODY_FREE, THIS_PEER, MemberRecovered, MemberReplaced, SlowMember
from protocol.identity import PeerId
from protocol.trust.records import Peers


class SlowMemberError(LostMemberError):
    """A neighbour has been slow for too long, and another volunteer of its stage is free."""


@dataclass(slots=True)
class SlowMembers:
    """The slow neighbours of one stage, in one group after another."""

    outer: OuterLoop
    seats: GroupSeats
    watch: SlownessWatch = field(init=False)
    attempt: int | None = None
    """The group's attempt whose steps are compared; None: before its first step, which is not."""
    members: tuple[PeerId, ...] = ()
    """The members of the last group."""
    kind: StepKind = (0, False)
    """The kind of the last step."""
    reported: dict[PeerId, int] = field(default_factory=dict)
    """The neighbours that have been told of as slow, and their stages."""

    def __post_init__(self) -> None:
        """Begin without measurements."""
        inner, model = self.outer.manifest.inner, self.outer.manifest.model
        self.watch = SlownessWatch(inner.microbatches, inner.microbatch * model.context)

    def step_taken(self, offer: OfferFrame, kind: StepKind, step: StepTimes) -> None:
        """Note an inner step of the group that this was offered to."""
        if offer.members != self.members:
            self.members = offer.members
            self.watch.forgive()
        if offer.attempt != self.attempt:  # links open, and the model is loaded and compiled, in the first step
            self.attempt = offer.attempt
            return
        self.kind = kind
        self.watch.note(kind, step, self._before, [Member(peer, self._speed(peer)) for peer in self.seats.members])

    def require_quick(self) -> None:
        """Look, between two inner steps, whether a neighbour is slow. It is told of, if there is nobody to try.

        Raises:
            SlowMemberError: a neighbour is slow, and there is somebody to try.
        """
        me, before, behind = self.outer.discovery.record, self._before, self.seats.behind
        stages = {me.peer_id: me.stage} | dict.fromkeys(behind[:1], me.stage + 1)
        if me.stage == 1 and before is not None:  # the other stages have one before them that looks after theirs
            stages[before] = 0
        for peer, stage in stages.items():
            further = len(behind) - 1 if stage > me.stage else 0
            slow = self.watch.slow(self.kind, peer, further)
            if slow is None:
                self._recovered(peer)
            elif stage != me.stage and self._may_replace(slow, stage):
                self._replace(slow, stage)
            elif peer not in self.reported:
                self.reported[peer] = stage
                why = NOBODY_FREE if stage != me.stage else THIS_PEER
                self.outer.emit(SlowMember(peer, stage, slow.seconds, slow.usual, slow.promised, why, slow.or_further))

    def why_parted(self, error: HetpeerError) -> str:
        """The reason for which this peer's group has ended, in words: where a neighbour has hung up, and this peer has
        become slow, that too, since another may have its seat."""
        me = self.outer.discovery.record.peer_id
        usual, debt = self.watch.usual.get(self.kind), self.watch.debts.get(me)
        if (
            not isinstance(error, HungUpError)
            or usual is None
            or debt is None
            or self.watch.has_recovered(self.kind, me)
        ):
            return str(error)
        slow = f"a step takes {debt.total / debt.steps:.3g} s, and took {usual.seconds:.3g} s"
        return f"{error}; this machine is slower than before ({slow}), so another may be tried in its place"

    def leave_group(self) -> None:
        """Begin anew with the next group: who is slow in it is told again."""
        self.attempt = None
        self.reported.clear()

    @property
    def _before(self) -> PeerId | None:
        return self.seats.upstream.peer if self.seats.upstream is not None else None

    def _speed(self, peer: PeerId) -> float:
        record = self.outer.discovery.records.get(peer, self.outer.discovery.record)
        return record.tokens_per_second if record.peer_id == peer else 0.0

    def _may_replace(self, slow: SlowFinding, stage: int) -> bool:
        """Whether somebody else of its stage is free who may be quicker."""
        now = monotonic()
        return any(
            is_worth_a_try(slow, self.watch.seconds_by(peer.tokens_per_second))
            for peer in self._spares(stage)
            if peer.peer_id != slow.peer and not self.seats.replaced.holds(peer.peer_id, now)
        )

    def _spares(self, stage: int) -> Peers:
        """The volunteers of a stage that have no seat."""
        peers = self.outer.discovery.peers()
        return free_volunteers(peers, stage) if stage else looking(peers, 0)

    def _replace(self, slow: SlowFinding, stage: int) -> None:
        """Let a slow neighbour go.

        Raises:
            SlowMemberError: always.
        """
        self.seats.replace(slow.peer)
        event = MemberReplaced(slow.peer, stage, slow.seconds, slow.usual, slow.promised)
        self.outer.emit(event)
        raise SlowMemberError(event.reason)

    def _recovered(self, peer: PeerId) -> None:
        if peer in self.reported and self.watch.has_recovered(self.kind, peer):
            self.outer.emit(MemberRecovered(peer, self.reported.pop(peer)))
