"""How a replica group comes to be: a leader finds members, a member waits for its leader."""

import asyncio
import random
from dataclasses import dataclass

from peer.events import Listener, Progress
from peer.network.discovery import Discovery
from peer.network.duplex import Duplex
from peer.network.group import MOST_ORDERS_PENDING, Membership, Orders, Seat, invite, lead, release
from peer.swarm.plan import backoff_seconds, choose_members
from protocol.identity import ReplicaId
from protocol.manifest import Manifest
from protocol.records import PeerRecord


@dataclass(frozen=True, slots=True)
class Led:
    """A group from its leader's side: `orders[i]` is the control stream to the member of stage i + 1."""

    membership: Membership
    orders: tuple[Orders, ...]


async def find_members(discovery: Discovery, manifest: Manifest, emit: Listener) -> Membership:
    """Invite until every stage has accepted.

    If one declines all are released, and the leader tries again after a pause with jitter.
    """
    attempt = 0
    while True:
        peers = await discovery.peers()
        chosen = choose_members(peers, discovery.record, manifest.replicas.stages)
        if chosen is not None:
            membership = _membership(discovery.record, chosen)
            accepted = await asyncio.gather(*(invite(seat, membership, manifest) for seat in membership.seats[1:]))
            if all(accepted):
                return membership
            for seat, yes in zip(membership.seats[1:], accepted, strict=True):
                if yes:
                    await release(seat, membership.replica, manifest)
        emit(Progress("looking for volunteers of the other stages"))
        await asyncio.sleep(backoff_seconds(attempt, random.uniform(0.5, 1.5)))
        attempt += 1


def _membership(me: PeerRecord, chosen: tuple[PeerRecord, ...]) -> Membership:
    seats = tuple(Seat(peer.peer_id, peer.address) for peer in (me, *chosen))
    return Membership(ReplicaId(me.peer_id), me.slot, seats)


def call_members(membership: Membership, manifest: Manifest, tasks: asyncio.TaskGroup) -> Led:
    """Open the control stream to every member."""
    orders: list[Orders] = []
    for stage, seat in enumerate(membership.seats[1:], start=1):
        stream: Orders = Duplex(f"stage {stage} of this group ({seat.peer_id[-8:]})", MOST_ORDERS_PENDING)
        tasks.create_task(lead(seat, membership, manifest, stream))
        orders.append(stream)
    return Led(membership, tuple(orders))
