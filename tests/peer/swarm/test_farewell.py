"""The end of a run, over real sockets: whoever goes first, all hold one state."""

import asyncio
from pathlib import Path

import torch

from peer.swarm.farewell import linger
from protocol.contribution import digest
from protocol.identity import EMBEDDING
from tests.reference.loopback_peers import RUN, LoopbackPeer, Village, village
from tests.reference.small_manifest import small_manifest

MANIFEST = small_manifest(outer={"rounds": 1})


async def shown(author: LoopbackPeer, seed: int, victim: LoopbackPeer) -> None:
    """One of an author's contributions to the last round, which it shows to one peer alone."""
    state = author.outer.followed.parts[EMBEDDING].state
    moved = {name: torch.linspace(0, seed * 1e-7, each.numel()).view_as(each) for name, each in state.grid.items()}
    blob = state.contribute(RUN, 1, author.outer.discovery.record.peer_id, 1, moved)[0]
    entry = author.signer.contribution(EMBEDDING, 1, digest(blob), len(blob))
    author.acceptance.shelf.put(entry, blob)
    await victim.acceptance.take(entry.proof, [], author.outer.discovery.record)


def test_two_contributions_that_an_author_shows_at_the_end_leave_one_state_whoever_goes_first(tmp_path: Path):
    comparing: dict[str, asyncio.Task[None]] = {}

    async def leave(made: Village, peer: LoopbackPeer) -> str:
        await linger(peer.outer)
        comparing.pop(peer.id).cancel()
        state = peer.digests()[EMBEDDING]
        await made.leave(peer)
        return state

    async def scene() -> None:
        async with village(MANIFEST, tmp_path, "a", "b", "c", "liar") as made:
            a, b, c, liar = made.peers
            await shown(liar, 5, a)
            await shown(liar, 6, b)
            await made.leave(liar)
            for peer in (a, b, c):
                await peer.at(1)
            made.introduce()
            assert len({peer.digests()[EMBEDDING] for peer in (a, b, c)}) == 3
            for peer in (a, b, c):
                comparing[peer.id] = asyncio.create_task(peer.outer.reconciler.keep_comparing())
            first = await leave(made, a)
            assert {first} == {*await asyncio.gather(leave(made, b), leave(made, c))}

    asyncio.run(asyncio.wait_for(scene(), 60))
