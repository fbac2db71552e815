"""How the seats of a replica group are filled: a leader asks free volunteers, stage by stage."""

import asyncio
import time
from collections.abc import Callable, Mapping

from peer.network.contacts import Contacts
from peer.network.discovery import Discovery
from peer.network.group import Membership, Seat, invite
from peer.swarm.plan import choose_members
from protocol.identity import ReplicaId


async def fill(discovery: Discovery, contacts: Contacts, taken: Mapping[int, Seat], attempt: int) -> dict[int, Seat]:
    """Invite a volunteer to each seat that is not taken; the seats that are filled now, by stage.

    An accepted invitation is a lease: its holder waits for the leader's call, and is free again if none comes.
    """
    me = discovery.record
    chosen = choose_members(discovery.peers(), me, contacts.manifest.replicas.stages, taken, attempt)
    seats = {stage: Seat(peer.peer_id, peer.address) for stage, peer in chosen.items()}
    membership = Membership(ReplicaId(me.peer_id), me.slot)
    accepted = await asyncio.gather(*(invite(stage, seat, membership, contacts) for stage, seat in seats.items()))
    return {stage: seat for (stage, seat), yes in zip(seats.items(), accepted, strict=True) if yes}


def after(seconds: float) -> Callable[[], bool]:
    """Whether so much time has passed since now."""
    until = time.monotonic() + seconds
    return lambda: time.monotonic() >= until
