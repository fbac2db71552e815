"""A folder brought up to where a swarm is now: as an observer that comes, catches up, and goes."""

import asyncio
from pathlib import Path

from peer.daemon import run_until
from peer.data.batches import Batch
from peer.settings import PeerSettings
from peer.swarm.node import Node
from peer.swarm.presence import in_the_swarm, outer_loop
from peer.swarm.rounds.catch_up import agree, catch_up
from peer.swarm.rounds.outer_round import OuterLoop
from peer.telemetry.events import Event, Failed, Joined, Listener
from peer.telemetry.status import EventStream
from protocol.errors import UnreachableError
from protocol.run.run_files import HELD_OUT, TRAIN
from protocol.trust.ticket import Ticket

TRIES = 30
"""Attempts at catching up, a second or more apart: peers come and go."""

TRIES_ALONE = 5
"""So many where nobody is there at all."""


async def bring_up_to_date(
    ticket: Ticket, folder: Path, threads: int, evaluates: bool, stop: asyncio.Event, emit: Listener
) -> Batch | None:
    """Take over what the swarm agrees on: states that more peers than may lie announce alike, and the contributions
    since, which their authors signed. `evaluates`: also read the held-out text, which is returned then.

    Raises:
        UnreachableError: nobody is in the run, or those who are do not give the state.
        HetpeerError: there is no place for an observer; the message says why.
    """
    without = (TRAIN,) if evaluates else (TRAIN, HELD_OUT)
    settings = PeerSettings(ticket=ticket, role="observer", directory=folder, threads=threads, without=without)

    held_out: Batch | None = None

    async def follow(node: Node) -> None:
        nonlocal held_out
        if evaluates:
            async with node.place.reading(node.emit) as reader:
                held_out = await reader.held_out()
        outer = await outer_loop(node, [])
        async with in_the_swarm(node, outer):
            await _catch_up(outer)
            node.leave()

    def tell(event: Event) -> None:
        if not isinstance(event, Joined | Failed):
            emit(event)

    await run_until(stop, settings, EventStream([tell]), follow)
    return held_out


async def _catch_up(outer: OuterLoop) -> None:
    """Raises UnreachableError if the last round that the others were seen to finish cannot be had. They may go
    meanwhile: what they had has come by then, or has not."""
    met, last, witnesses = False, 0, outer.reconciler.witnesses
    for attempt in range(TRIES):
        met, last = met or bool(outer.discovery.others()), max(last, witnesses.shown_at())
        if met and outer.clock > last and not witnesses.unanswered():
            await agree(outer)
            return
        if not met and attempt == TRIES_ALONE:
            break
        await outer.discovery.news.wait(1.0)
        await outer.discovery.read()
        await catch_up(outer)
    if not met:
        raise UnreachableError(
            "nobody is in the run now: instead of the ticket, give the folder of a peer or of the bootstrap node"
        )
    raise UnreachableError(f"round {last} cannot be had: those who hold it do not answer, or are gone; try again")
