"""A peer that alone holds the newest state of a part: its owner is told, and when it is to leave, it waits for another
to take that state: a spare that catches up, or the operator's node."""

import asyncio
from contextlib import suppress

from peer.swarm import waits
from peer.swarm.node import Node
from peer.swarm.rounds.outer_round import OuterLoop
from peer.telemetry.decisions import OnlyHolder
from protocol.clock import monotonic
from protocol.errors import HetpeerError
from protocol.identity import Part
from protocol.outer.window import SKEW
from protocol.patience import NO_TAKER_SECONDS, NODE_TIMEOUT_SECONDS, STEADY_SECONDS, TAKER_SECONDS
from protocol.wording import parts_named

ALONE_POLL_SECONDS = 5.0
"""The interval at which a peer looks whether others hold its parts."""


def held_alone(outer: OuterLoop) -> list[Part]:
    """The parts whose newest state nobody else here holds; none, while this peer has not learnt anything."""
    if outer.clock == 1 and not outer.contributed:
        return []
    least = outer.clock - 1 - SKEW
    return [part for part in outer.followed.parts if not any(holder.round >= least for holder in outer.holders(part))]


async def keep_telling(outer: OuterLoop) -> None:
    """Tell the owner when this peer becomes, or is no longer, the only holder of a part, for as long as it lives."""
    told, since = "", monotonic()
    while True:
        await asyncio.sleep(ALONE_POLL_SECONDS)
        alone = "" if outer.over or outer.discovery.record.phase else parts_named(held_alone(outer))
        if alone == told:
            since = monotonic()
        elif monotonic() - since >= STEADY_SECONDS:
            told, since = alone, monotonic()
            outer.emit(OnlyHolder(told))


async def hand_over_state(node: Node, outer: OuterLoop) -> None:
    """Wait, before this peer leaves, until somebody else holds what it alone holds here: for a bounded time, or until
    its owner insists."""
    if outer.over or outer.discovery.record.phase or not held_alone(outer):
        return
    most_seconds = TAKER_SECONDS if await _has_taker(node, outer) else NO_TAKER_SECONDS
    ends = monotonic() + most_seconds
    node.handing_over.set()
    await outer.discovery.publish(last_holder=True)
    while (alone := held_alone(outer)) and monotonic() < ends and not node.insisted.is_set():
        outer.emit(waits.for_another_holder(alone, outer.clock - 1, most_seconds))
        await outer.discovery.news.wait(1.0)


async def _has_taker(node: Node, outer: OuterLoop) -> bool:
    """Whether somebody can take over what this peer alone holds: a peer of the same parts that is catching up, or the
    operator's node."""
    alone = held_alone(outer)
    if all(outer.reconciler.followers(part) for part in alone):
        return True
    with suppress(HetpeerError, TimeoutError):
        async with asyncio.timeout(NODE_TIMEOUT_SECONDS):
            return (await node.ask_node()).keeps
    return False
