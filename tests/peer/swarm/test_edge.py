"""At the window's edge: what colluders sign for each other, and show as late as it can be accepted at all."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from protocol.codec.contribution import contribution_digest
from protocol.identity import EMBEDDING
from protocol.outer.ledger import Entry
from protocol.trust.proofs import sign_contribution, sign_receipt
from tests.reference.loopback_peers import RUN, LoopbackPeer, Village, moved, village
from tests.reference.small_manifest import small_manifest

MANIFEST = small_manifest(outer={"grace": 2, "liars": 1, "rounds": 50, "chunk_side": 4, "top_k": 2, "values": "bf16"})
"""A contribution to round 1 needs one receipt at the clocks 4 and 5, two at 6 and 7, and is late at 8."""


def play(folder: Path, names: str, scene: Callable[[Village], Awaitable[None]]) -> None:
    async def run() -> None:
        async with village(MANIFEST, folder, *names) as made:
            await asyncio.wait_for(scene(made), 120)

    asyncio.run(run())


async def version(author: LoopbackPeer, seed: int) -> Entry:
    """A contribution to round 1 of which its author has told nobody."""
    state, me = author.outer.followed.parts[EMBEDDING].state, author.outer.followed.me
    blob, _ = state.contribute(RUN, 1, me, 1, moved(MANIFEST, seed)[EMBEDDING], author.outer.discovery.record.slot)
    entry = sign_contribution(author.signer, EMBEDDING, 1, contribution_digest(blob), len(blob))
    author.intake.contribution_store.put(entry, blob)
    return entry


async def show(victim: LoopbackPeer, author: LoopbackPeer, entry: Entry, *colluders: LoopbackPeer) -> None:
    receipts = [sign_receipt(each.signer, entry) for each in colluders]
    told = await victim.intake.take(entry.proof, receipts, author.outer.discovery.record)
    victim.outer.reconciler._spread(told)


async def rounds(made: Village, honest: list[LoopbackPeer], clock: int) -> None:
    """Until the honest work on this round."""
    first = honest[0].outer.clock
    for round in range(first, clock):
        await made.round(round, honest)


def counts(peer: LoopbackPeer, author: LoopbackPeer) -> bool:
    return author.id in peer.intake.ledgers[EMBEDDING].chosen(1)


def counted(peer: LoopbackPeer, author: LoopbackPeer) -> bool:
    """Now that the round is closed."""
    return peer.intake.ledgers[EMBEDDING].history.has(author.outer.followed.me, 1)


def test_what_one_colluder_signs_for_another_counts_for_all_or_for_none(tmp_path: Path):
    """Three follow honestly; the author has the receipt of its friend, and one may lie."""

    async def scene(made: Village) -> None:
        *honest, author, friend = made.peers
        entry = await version(author, 7)
        made.peers = honest
        await rounds(made, honest, 5)
        await show(honest[0], author, entry)  # too late without a receipt,
        await show(honest[0], author, entry, author)  # and its own is none
        assert not counts(honest[0], author)
        await show(honest[0], author, entry, friend)  # the last moment at which one does
        assert counts(honest[0], author)
        await rounds(made, honest, 6)  # the others hear of it: two do now, their friend's and the first victim's
        assert all(counts(peer, author) for peer in honest)
        await rounds(made, honest, 9)
        assert len({peer.outer.followed.parts[EMBEDDING].claims[-1].digest for peer in honest}) == 1
        assert all(counted(peer, author) for peer in honest)

    play(tmp_path, "abcxy", scene)


def test_shown_a_round_later_it_counts_for_nobody(tmp_path: Path):
    async def scene(made: Village) -> None:
        *honest, author, friend = made.peers
        entry = await version(author, 7)
        made.peers = honest
        await rounds(made, honest, 6)
        await show(honest[0], author, entry, friend)
        await show(honest[0], author, entry, friend, author)
        await rounds(made, honest, 9)
        assert not any(counted(peer, author) for peer in honest)
        assert len({peer.outer.followed.parts[EMBEDDING].claims[-1].digest for peer in honest}) == 1

    play(tmp_path, "abcxy", scene)


def test_two_versions_of_which_one_is_shown_at_the_last_moment_are_void_everywhere(tmp_path: Path):
    async def scene(made: Village) -> None:
        *honest, author, friend = made.peers
        first, second = await version(author, 7), await version(author, 8)
        for peer in honest:
            await show(peer, author, first)
        made.peers = honest
        await rounds(made, honest, 5)
        assert all(counts(peer, author) for peer in honest)
        await show(honest[0], author, second, friend)
        assert not counts(honest[0], author)
        await rounds(made, honest, 9)
        assert not any(counted(peer, author) for peer in honest)
        assert len({peer.outer.followed.parts[EMBEDDING].claims[-1].digest for peer in honest}) == 1

    play(tmp_path, "abcxy", scene)
