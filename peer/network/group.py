"""The messages between the members of a group: invitations, a control stream from the leader to each member, and the
links that carry frames between neighbouring stages, where the earlier stage calls the later one; and the lease of a
volunteer to one group, a state machine without I/O."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

from peer.network.contacts import Contacts
from peer.network.duplex import Duplex
from protocol.clock import monotonic
from protocol.codec.frames import MOST_IN_FLIGHT, FrameRules
from protocol.errors import HetpeerError, LostMemberError
from protocol.identity import PeerId, ReplicaId
from protocol.limits import LEASE_SECONDS
from protocol.manifest import Manifest
from protocol.net.bandwidth import Bandwidth
from protocol.net.channels import Reachable, handshake, refuse, require_manifest, speaks
from protocol.schemas import group_pb2, group_pb2_grpc, pipeline_pb2, pipeline_pb2_grpc

INVITE_SECONDS = 3.0
"""The time within which a volunteer has to answer an invitation: a slower one is no use to a group."""

MOST_ORDERS_PENDING = 8
"""The orders or reports that may wait to be read; they alternate."""

REPLICA_KEY = "hetpeer-replica"
ATTEMPT_KEY = "hetpeer-attempt"
ATTEMPT_DIGITS = 18


# The leader and its members

Orders = Duplex[group_pb2.Order, group_pb2.Report]
"""The leader's side of a control stream."""

Reports = Duplex[group_pb2.Report, group_pb2.Order]
"""The member's side."""


@dataclass(frozen=True, slots=True)
class Seat:
    """A seat in a group: the peer that serves a stage, and its address."""

    peer_id: PeerId
    address: str


@dataclass(frozen=True, slots=True)
class Membership:
    """The group that a volunteer has been called into."""

    replica: ReplicaId
    slot: int


class LeaseState(Enum):
    """The state of a volunteer's lease to one group.

    FREE ──invited──▶ LEASED ──leader calls──▶ MEMBER ──leader's stream ends──▶ FREE
                      LEASED ──the lease runs out──▶ FREE
    """

    FREE = "free"
    LEASED = "leased"
    MEMBER = "member"


class LeaseEvent(Enum):
    """An act of a leader, which may change the lease of a volunteer."""

    INVITED = "invited"
    CALLED = "called"
    LEFT = "left"


TRANSITIONS = {
    (LeaseState.FREE, LeaseEvent.INVITED): LeaseState.LEASED,
    (LeaseState.LEASED, LeaseEvent.INVITED): LeaseState.LEASED,  # by the same leader: the lease begins anew
    (LeaseState.LEASED, LeaseEvent.CALLED): LeaseState.MEMBER,
    (LeaseState.MEMBER, LeaseEvent.LEFT): LeaseState.FREE,
}


@dataclass(slots=True)
class Lease:
    """A volunteer's engagement. Times are seconds on any monotonic clock."""

    state: LeaseState = LeaseState.FREE
    leader: ReplicaId | None = None
    until: float = 0.0

    def take(self, event: LeaseEvent, leader: ReplicaId, now: float) -> bool:
        """Apply what `leader` did; False if it may not do that now, and then nothing changes."""
        if self.state is LeaseState.LEASED and now >= self.until:
            self.state, self.leader = LeaseState.FREE, None
        if self.leader not in (None, leader):
            return False
        following = TRANSITIONS.get((self.state, event))
        if following is None:
            return False
        self.state = following
        self.leader = None if following is LeaseState.FREE else leader
        self.until = now + LEASE_SECONDS
        return True


class GroupService(group_pb2_grpc.GroupServicer):
    """The service of a volunteer of stage 1 or later, which leaders call."""

    def __init__(self, manifest: Manifest, stage: int, peer_id: PeerId) -> None:
        self.manifest = manifest
        self.stage = stage
        self.peer_id = peer_id
        self.lease = Lease()
        self.ready = False
        """Whether this volunteer has caught up with the run, and takes invitations."""
        self._invitation: Membership | None = None
        self._called: asyncio.Queue[tuple[Membership, Reports]] = asyncio.Queue()

    async def wait_for_leader(self) -> tuple[Membership, Reports]:
        """Wait until a leader calls this volunteer. Returns its group, and the control stream."""
        return await self._called.get()

    @property
    def called(self) -> bool:
        """Whether a leader waits for this volunteer."""
        return not self._called.empty()

    def close(self) -> None:
        """Take no more invitations and calls. A leader that has called, and waits for this volunteer, is hung up on: it
        looks for another."""
        self.ready = False
        while self.called:
            _, reports = self._called.get_nowait()
            reports.close()

    async def Invite(self, request: group_pb2.Invitation, context: Any) -> group_pb2.InvitationReply:
        await require_manifest(context, self.manifest)
        replica = ReplicaId(request.replica)
        await speaks(context, PeerId(replica), "its own group")
        if request.stage != self.stage:
            return group_pb2.InvitationReply(code=group_pb2.InvitationReply.WRONG_STAGE)
        if not self.ready or not self.lease.take(LeaseEvent.INVITED, replica, monotonic()):
            return group_pb2.InvitationReply(code=group_pb2.InvitationReply.ENGAGED)
        self._invitation = Membership(replica, request.slot)
        return group_pb2.InvitationReply(code=group_pb2.InvitationReply.ACCEPTED)

    async def Follow(self, request_iterator: AsyncIterator[group_pb2.Order], context: Any) -> None:
        await require_manifest(context, self.manifest)
        replica = ReplicaId(dict(context.invocation_metadata()).get(REPLICA_KEY, ""))
        await speaks(context, PeerId(replica), "its own group")
        if not self.ready:
            await refuse(context, "this peer takes no part in groups now")
            return
        if self._invitation is None or not self.lease.take(LeaseEvent.CALLED, replica, monotonic()):
            await refuse(context, f"this peer is {self.lease.state.value}, and not in your group")
            return
        reports: Reports = Duplex(
            PeerId(replica), f"the group's leader ({replica[-8:]})", MOST_ORDERS_PENDING, group_pb2.Report()
        )
        self._called.put_nowait((self._invitation, reports))
        try:
            await reports.carry(context)
        finally:
            self.lease.take(LeaseEvent.LEFT, replica, monotonic())


async def invite(stage: int, seat: Seat, membership: Membership, contacts: Contacts) -> bool:
    """Ask one peer to take its seat. Returns whether it accepted; a peer that does not answer has not."""
    request = group_pb2.Invitation(replica=membership.replica, slot=membership.slot, stage=stage)
    try:
        async with contacts.to(seat) as channel:
            stub = group_pb2_grpc.GroupStub(channel)
            reply = await stub.Invite(request, metadata=handshake(contacts.manifest), timeout=INVITE_SECONDS)
    except HetpeerError:
        return False
    return bool(reply.code == group_pb2.InvitationReply.ACCEPTED)


def orders_to(stage: int, seat: Seat) -> Orders:
    """Make the control stream to a member, not yet open."""
    with_whom = f"stage {stage} of this group ({seat.peer_id[-8:]})"
    return Duplex(seat.peer_id, with_whom, MOST_ORDERS_PENDING, group_pb2.Order())


async def lead(seat: Seat, replica: ReplicaId, contacts: Contacts, orders: Orders) -> None:
    """Open the control stream to one member and carry it until it ends."""
    try:
        async with contacts.alone(seat) as channel:
            metadata = (*handshake(contacts.manifest), (REPLICA_KEY, replica))
            await orders.carry(group_pb2_grpc.GroupStub(channel).Follow(metadata=metadata))
    except HetpeerError as error:
        orders.abort(str(error))


async def report(stream: Orders, kind: str) -> group_pb2.Report:
    """The next report of a member, which must be of a kind.

    Raises:
        LostMemberError: it is gone, or misses a neighbour.
        BreachError: it reported something else.
    """
    said = await stream.receive()
    if said.WhichOneof("kind") == "broken":
        raise LostMemberError(f"{stream.with_whom} misses a neighbour: {said.broken.reason[:200]}")
    if said.WhichOneof("kind") != kind:
        raise stream.breach(f"reported {said.WhichOneof('kind')} where {kind} was due")
    return said


# Neighbouring stages

Link = Duplex[pipeline_pb2.Frame, pipeline_pb2.Frame]


@dataclass(frozen=True, slots=True)
class Attempt:
    """An attempt of a group, which opens its links anew whenever a member has changed; `number` counts these
    attempts."""

    replica: ReplicaId
    number: int


def link(manifest: Manifest, neighbour: PeerId, with_whom: str, bandwidth: Bandwidth | None = None) -> Link:
    """Make a link to a neighbour, not yet connected, which has no more microbatches in flight than the schedule lets
    it. Its frames take their turn in `bandwidth`."""
    rules = FrameRules.of(manifest)
    messages = max(rules.activations.messages, rules.gradients.messages)
    most_pending = (MOST_IN_FLIGHT * manifest.replicas.stages + 2) * messages  # one of them for what a step ends with
    return Duplex(neighbour, with_whom, most_pending, bandwidth=bandwidth)


class PipelineService(pipeline_pb2_grpc.PipelineServicer):
    """The service that takes the call of the stage before ours, if it is of the attempt that this peer is a
    member of."""

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest
        self._expected: dict[Attempt, tuple[PeerId, Link]] = {}

    def expect(self, attempt: Attempt, neighbour: PeerId, upstream: Link) -> None:
        """Welcome one stream of this attempt, from this neighbour, from now on, and none of an earlier attempt."""
        self._expected = {attempt: (neighbour, upstream)}

    async def Exchange(self, request_iterator: AsyncIterator[pipeline_pb2.Frame], context: Any) -> None:
        await require_manifest(context, self.manifest)
        metadata = dict(context.invocation_metadata())
        number = str(metadata.get(ATTEMPT_KEY, ""))
        known = number.isdecimal() and len(number) <= ATTEMPT_DIGITS
        attempt = Attempt(ReplicaId(metadata.get(REPLICA_KEY, "")), int(number) if known else 0)
        neighbour, upstream = self._expected.get(attempt, (None, None))
        if neighbour is None or upstream is None:
            await refuse(context, "this stage expects no such neighbour")
        await speaks(context, neighbour, "the stage before this one")
        del self._expected[attempt]
        await upstream.carry(context)


async def call(neighbour: Reachable, contacts: Contacts, attempt: Attempt, downstream: Link) -> None:
    """Call the stage behind ours and carry frames until the link ends."""
    try:
        async with contacts.alone(neighbour) as channel:
            where = ((REPLICA_KEY, attempt.replica), (ATTEMPT_KEY, str(attempt.number)))
            stub = pipeline_pb2_grpc.PipelineStub(channel)
            await downstream.carry(stub.Exchange(metadata=(*handshake(contacts.manifest), *where)))
    except HetpeerError as error:
        downstream.abort(str(error))
