"""Bytes come from whoever holds them, over real sockets."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from protocol.codec.contribution import contribution_digest
from protocol.events.activity import Refused
from protocol.identity import EMBEDDING
from protocol.outer.ledger import Entry
from tests.reference.loopback_peers import LoopbackPeer, Village, village
from tests.reference.small_manifest import small_manifest

MANIFEST = small_manifest()


def play(folder: Path, scene: Callable[[Village, Entry], Awaitable[None]]) -> None:
    """`a` has contributed, `b` holds it too, and `c` has heard nothing."""

    async def run() -> None:
        async with village(MANIFEST, folder, *"abc") as made:
            a, b, c = made.peers
            made.cut(c)
            await a.contribute(1, 1)
            await made.calm()
            made.introduce()
            (entry,) = a.intake.ledgers[EMBEDDING].entries(1)
            c.intake.fetcher.add_source([entry.key], b.outer.discovery.record)
            await asyncio.wait_for(scene(made, entry), 30)

    asyncio.run(run())


def whole(peer: LoopbackPeer, entry: Entry) -> bool:
    return contribution_digest(peer.intake.contribution_store.read(entry.sha256)) == entry.sha256


def test_what_one_cannot_give_comes_from_another_who_said_that_it_has_it(tmp_path: Path):
    async def scene(made: Village, entry: Entry) -> None:
        a, _, c = made.peers
        gone = a.outer.discovery.record.model_copy(update={"address": "127.0.0.1:1"})
        assert [each.name for each in await c.intake.take(entry.proof, [], gone)] == [entry.name]
        assert whole(c, entry)
        assert c.said == []

    play(tmp_path, scene)


def test_who_gives_other_bytes_is_reported_and_passed_over(tmp_path: Path):
    async def scene(made: Village, entry: Entry) -> None:
        liar, _, c = made.peers
        where = liar.intake.contribution_store.slices[entry.sha256]
        where.path.write_bytes(bytes(where.path.stat().st_size))
        assert [each.name for each in await c.intake.take(entry.proof, [], liar.outer.discovery.record)]
        assert whole(c, entry)
        assert [event.peer for event in c.said if isinstance(event, Refused)] == [liar.id]

    play(tmp_path, scene)


def test_what_nobody_gives_can_be_fetched_later(tmp_path: Path):
    async def scene(made: Village, entry: Entry) -> None:
        a, b, c = made.peers
        kept = a.intake.contribution_store.slices.pop(entry.sha256)
        b.intake.contribution_store.slices.pop(entry.sha256)
        assert await c.intake.take(entry.proof, [], a.outer.discovery.record) == []
        assert c.intake.fetcher.wanted.sources == {}
        a.intake.contribution_store.slices[entry.sha256] = kept
        await c.outer.reconciler.compare(a.outer.discovery.record)
        assert whole(c, entry)

    play(tmp_path, scene)
