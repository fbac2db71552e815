"""How the seats of a group are filled: its leader asks free volunteers, stage by stage."""

import asyncio
import random
from collections.abc import Callable, Mapping
from types import MappingProxyType

from peer.network.gossip import Reconciler
from peer.network.group import Membership, Seat, invite
from peer.swarm.group.plan import backoff_seconds, choose_members, preferred
from protocol.clock import monotonic
from protocol.identity import ReplicaId
from protocol.net.tasks import Children, Notifier
from protocol.trust.records import PeerRecord

EAGER = 3
"""After so many failures in a row a leader takes its time."""

MEASURED = 4
"""To so many candidates for a seat the distance is measured."""

MEASURE_SECONDS = 1.5
"""Who does not answer twice in so long is too far away, or too busy."""

NOBODY: Mapping[int, PeerRecord] = MappingProxyType({})


async def fill(
    reconciler: Reconciler, taken: Mapping[int, Seat], attempt: int, wished: Mapping[int, PeerRecord] = NOBODY
) -> dict[int, Seat]:
    """Invite a volunteer to each seat that is not taken, of the `wished` nobody else; the seats that are filled now, by
    stage.

    An accepted invitation is a lease: its holder waits for the leader's call, and is free again if none comes.
    """
    discovery, contacts = reconciler.discovery, reconciler.contacts
    me, stages = discovery.record, contacts.manifest.replicas.stages
    await _measure(reconciler, [stage for stage in range(1, stages) if stage not in taken])
    chosen = choose_members(discovery.peers(), me, stages, taken, attempt, discovery.trips)
    chosen |= {stage: peer for stage, peer in wished.items() if stage not in taken}
    seats = {stage: Seat(peer.peer_id, peer.address) for stage, peer in chosen.items()}
    membership = Membership(ReplicaId(me.peer_id), me.slot)
    accepted = await asyncio.gather(*(invite(stage, seat, membership, contacts) for stage, seat in seats.items()))
    return {stage: seat for (stage, seat), yes in zip(seats.items(), accepted, strict=True) if yes}


def after(seconds: float) -> Callable[[], bool]:
    """Whether so much time has passed since now."""
    until = monotonic() + seconds
    return lambda: monotonic() >= until


async def _measure(reconciler: Reconciler, stages: list[int]) -> None:
    """Learn how far away the first candidates for each of the stages are, where there is a choice. Peers that compare
    with each other know it."""
    discovery = reconciler.discovery

    async def ask(peer: PeerRecord) -> None:
        await reconciler.compare(peer)
        if peer.peer_id not in discovery.trips:  # the first comparison opened the channel
            await reconciler.compare(peer)

    orders = [preferred(discovery.peers(), discovery.record, stage) for stage in stages]
    asked = [peer for order in orders if len(order) > 1 for peer in order[:MEASURED]]
    unknown = [peer for peer in asked if peer.peer_id not in discovery.trips]
    if unknown:
        async with Children() as asking:
            await asyncio.wait([asking.spawn(ask(peer)) for peer in unknown], timeout=MEASURE_SECONDS)


async def pause(news: Notifier, failures: int) -> None:
    """Between two attempts at a round, of which so many have failed in a row. After a few, news do not shorten it: each
    attempt makes some."""
    seconds = backoff_seconds(failures, random.uniform(0.5, 1.5))
    await (news.wait(seconds) if failures < EAGER else asyncio.sleep(seconds))
