"""How a run ends: nobody goes before all have finished it, and hold the same."""

import asyncio
from contextlib import suppress

from peer.swarm.outer_round import OuterLoop
from peer.swarm.recovery import compare_with_all
from peer.swarm.view import all_at

FAREWELL_SECONDS = 60.0
"""After the last round a peer serves its contributions until all are done: so long at most, or a round's time."""

LOST_SECONDS = 15.0
"""So long it waits for those that do not answer, and for those that go on to hold something else."""


async def linger(outer: OuterLoop) -> None:
    """Serve until every peer has finished the last round and all hold the same: what one has heard last, the others
    hear from it. Who does not answer, and has not said goodbye, may be cut off: it is waited for as well, for a while.
    """
    clock, rounds = asyncio.get_running_loop().time, outer.manifest.outer.rounds
    farewell = clock() + max(FAREWELL_SECONDS, outer.pace.usual)  # who is slow may be in its last step for so long
    patience, ended = clock() + LOST_SECONDS, 0.0

    def waits_for_nobody() -> bool:
        return not outer.discovery.missed() or clock() >= patience

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


async def _have_all(outer: OuterLoop) -> bool:
    """Take what the others have; whether they have all that is here."""
    same = await compare_with_all(outer)
    with suppress(TimeoutError):
        async with asyncio.timeout(LOST_SECONDS):
            await outer.reconciler.learnt()
    return same
