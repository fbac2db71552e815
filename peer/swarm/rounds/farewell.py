"""How a run ends: nobody goes before all have finished it, and hold the same; and whoever has missed that is told."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from peer.swarm.roles import all_at
from peer.swarm.rounds.catch_up import catch_up, compare_with_all
from peer.swarm.rounds.outer_round import OuterLoop
from peer.telemetry.events import Progress
from protocol.errors import HetpeerError

AskFinished = Callable[[], Coroutine[Any, Any, int]]
"""The run's last round, if the operator's node says that the run is over; else 0."""


FIRST_ASK_SECONDS = 5.0
"""At its start a peer does not wait longer for the operator's node to say whether the run is over."""

LOOK_SECONDS = 1.0
SLEPT_SECONDS = 5.0
"""Whose clock has gone on by so much more than it waited, has slept: the run may have ended meanwhile."""

ASK_SECONDS = 5.0
"""So often the node is asked while nobody else trains here."""

LAST_STATE_SECONDS = 5.0
"""So long a peer that has missed the run's end, or comes back to it, looks for others who hold its last state."""

FAREWELL_SECONDS = 60.0
"""After the last round a peer serves its contributions until all are done: so long at most, or a round's time."""

LOST_SECONDS = 15.0
"""So long it waits for those that do not answer, and for those that go on to hold something else."""


async def nobody_says() -> int:
    """Where nobody is asked."""
    return 0


async def linger(outer: OuterLoop) -> None:
    """Serve until every peer has finished the last round and all hold the same: what one has heard last, the others
    hear from it. Who does not answer, and has not said goodbye, may be cut off: it is waited for as well, for a while.
    Who was killed at the end and is back has met nobody yet, and looks for others first: they may hold more.
    """
    clock, rounds = asyncio.get_running_loop().time, outer.manifest.outer.rounds
    farewell = clock() + max(FAREWELL_SECONDS, outer.pace.usual)  # who is slow may be in its last step for so long
    patience, ended = clock() + LOST_SECONDS, 0.0
    met = clock() + (LAST_STATE_SECONDS if outer.ended_before else 0.0)

    def waits_for_nobody() -> bool:
        return clock() >= met and (not outer.discovery.missed() or clock() >= patience)

    while clock() < farewell:
        if all_at(outer.discovery.peers(), rounds) and waits_for_nobody():
            ended = ended or clock()
            same = await _have_all(outer) or clock() >= ended + LOST_SECONDS
            if same and waits_for_nobody():  # some may only have seemed to be there, by their records
                break
        await outer.discovery.news.wait(1.0)
    else:
        await _have_all(outer)
    await outer.settle()


async def ask_whether_over(outer: OuterLoop, ask: AskFinished) -> None:
    """Ask the operator's node whether the run has ended without this peer, and end if so. Who does not answer says
    nothing."""
    with suppress(HetpeerError, TimeoutError):
        async with asyncio.timeout(FIRST_ASK_SECONDS):
            if await ask() == outer.manifest.outer.rounds and not outer.finished:
                outer.told_over = True
                outer.discovery.news.ring()
                outer.emit(Progress(f"{over(outer)}: this peer trains no more, and looks for the last state"))


async def keep_asking_whether_over(outer: OuterLoop, ask: AskFinished, clock: Callable[[], float] = time.time) -> None:
    """Do so for as long as this peer trains: when it has slept, and while nobody else trains here. Who has others to
    train with sees by them how far the run is, and needs nobody's word."""
    asked = looked = clock()
    while not outer.over:
        await asyncio.sleep(LOOK_SECONDS)
        now = clock()
        slept, looked = now - looked > LOOK_SECONDS + SLEPT_SECONDS, now
        alone = all(peer.role == "observer" for peer in outer.discovery.others())
        if slept or (alone and now - asked >= ASK_SECONDS):
            await ask_whether_over(outer, ask)
            asked = now


async def take_last_state(outer: OuterLoop) -> None:
    """The run has ended without this peer: take the last state from whoever holds it, and wait for nobody."""
    ends = time.monotonic() + LAST_STATE_SECONDS
    while not outer.finished and time.monotonic() < ends:
        await outer.discovery.read()
        await catch_up(outer)
        if not outer.finished:
            await outer.discovery.news.wait(1.0)
    if not outer.finished:
        outer.emit(Progress(f"{over(outer)}, and nobody who is there holds the last state; {_here(outer)}"))


def over(outer: OuterLoop) -> str:
    """That the run is."""
    return f"the run is over: its {outer.manifest.outer.rounds} rounds are finished"


def _here(outer: OuterLoop) -> str:
    return f"{outer.folder} has the one after round {outer.clock - 1}"


async def _have_all(outer: OuterLoop) -> bool:
    """Take what the others have; whether they have all that is here."""
    same = await compare_with_all(outer)
    with suppress(TimeoutError):
        async with asyncio.timeout(LOST_SECONDS):
            await outer.reconciler.learnt()
    return same
