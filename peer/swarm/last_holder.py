"""A peer that alone holds the newest state of a part: its owner is told, and when it is to leave, it waits for another
to take that state: a spare that catches up, or the operator's node."""

import asyncio
from contextlib import suppress

from peer.swarm import waits
from peer.swarm.node import Node
from peer.swarm.rounds.outer_round import OuterLoop
from protocol.clock import monotonic
from protocol.errors import HetpeerError
from protocol.events.activity import Notice
from protocol.events.decisions import OnlyHolder
from protocol.identity import Part
from protocol.outer.window import SKEW
from protocol.patience import NO_TAKER_SECONDS, NODE_TIMEOUT_SECONDS, STEADY_SECONDS, TAKER_SECONDS
from protocol.trust.records import holds_newest
from protocol.wording import lasting, parts_named

ALONE_POLL_SECONDS = 5.0
"""The interval at which a peer looks whether others hold its parts."""


def held_alone(outer: OuterLoop) -> list[Part]:
    """The parts whose newest state this peer holds and no other peer here does. None before the first contribution:
    the state before round 1 is in the run's files."""
    if outer.clock == 1 and not outer.contributed:
        return []
    least = outer.clock - 1 - SKEW
    return [part for part in outer.followed.parts if not any(holder.round >= least for holder in outer.holders(part))]


async def keep_telling(outer: OuterLoop) -> None:
    """Emit an event when this peer becomes the only holder of a part, or stops to be, and that has lasted
    `STEADY_SECONDS`. Runs until it is cancelled."""
    emitted, unchanged_until = "", monotonic()
    while True:
        await asyncio.sleep(ALONE_POLL_SECONDS)
        is_holder = not outer.over and holds_newest(outer.discovery.record)
        alone = parts_named(held_alone(outer)) if is_holder else ""
        if alone == emitted:
            unchanged_until = monotonic()
        elif monotonic() - unchanged_until >= STEADY_SECONDS:
            emitted, unchanged_until = alone, monotonic()
            outer.emit(OnlyHolder(emitted))


async def hand_over_state(node: Node, outer: OuterLoop) -> None:
    """Wait, before this peer leaves, until another holds each state that only this peer holds: for `TAKER_SECONDS` if
    somebody can take them, for `NO_TAKER_SECONDS` if not, and no longer once its owner insists (Ctrl-C again)."""
    if outer.over or not holds_newest(outer.discovery.record) or not held_alone(outer):
        return
    most_seconds = TAKER_SECONDS if await _has_taker(node, outer) else NO_TAKER_SECONDS
    ends = monotonic() + most_seconds
    node.handing_over.set()
    outer.emit(Notice(f"leaving takes up to {lasting(most_seconds)} more: nobody else holds this peer's state yet"))
    await outer.discovery.publish(last_holder=True)
    while (alone := held_alone(outer)) and monotonic() < ends and not node.insisted.is_set():
        outer.emit(waits.for_another_holder(alone, outer.clock - 1, most_seconds))
        await outer.discovery.news.wait(1.0)
    without = f"nobody has taken the state of {parts_named(alone)}: the run stands still until this peer is back"
    outer.emit(Notice(without if alone else "another holds this peer's state now"))


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
