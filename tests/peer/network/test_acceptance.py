"""Acceptance: a receipt is on disk before anybody can see it, and what was accepted is accepted again after a crash."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import torch

from protocol.contribution import digest
from protocol.identity import EMBEDDING
from protocol.ledger import Entry
from tests.reference.loopback_peers import RUN, LoopbackPeer, Village, village
from tests.reference.small_manifest import small_manifest

MANIFEST = small_manifest(outer={"grace": 2, "liars": 1, "rounds": 50, "chunk_side": 4, "top_k": 2})


def play(folder: Path, names: str, scene: Callable[[Village], Awaitable[None]]) -> None:
    async def run() -> None:
        async with village(MANIFEST, folder, *names) as made:
            await asyncio.wait_for(scene(made), 30)

    asyncio.run(run())


async def written(author: LoopbackPeer, seed: int) -> Entry:
    """A contribution to the embedding that its author has on its shelf, and has told nobody of."""
    state = author.outer.followed.parts[EMBEDDING].state
    moved = {name: torch.full_like(tensor, seed * 1e-7, dtype=torch.float32) for name, tensor in state.grid.items()}
    blob, _ = state.contribute(RUN, 1, author.outer.discovery.record.peer_id, 1, moved)
    entry = author.signer.contribution(EMBEDDING, 1, digest(blob), len(blob))
    author.acceptance.shelf.put(entry, blob)
    return entry


def test_a_receipt_is_on_disk_before_anybody_can_see_it_and_in_one_write(tmp_path: Path, monkeypatch):
    async def scene(made: Village) -> None:
        a, b = made.peers
        entry, ledger, shelf, writes = await written(a, 1), b.acceptance.ledgers[EMBEDDING], b.acceptance.shelf, []
        put = type(shelf).put

        def watched(self: object, kept: Entry, blob: bytes = b"") -> None:
            assert b.id in kept.receipts
            assert ledger.entries(1) == []
            put(shelf, kept, blob)
            writes.append(kept.sha256)

        monkeypatch.setattr(type(shelf), "put", watched)
        (accepted,) = await b.acceptance.take(entry.proof, [], a.outer.discovery.record)
        assert writes == [entry.sha256]
        ((proof, receipts, whole),) = shelf.found()
        assert (proof, whole) == (entry.proof, True)
        assert receipts == [accepted.receipts[b.signer.identity.peer_id]]

    play(tmp_path, "ab", scene)


def test_what_is_void_is_void_after_a_crash_though_its_bytes_never_came(tmp_path: Path):
    async def scene(made: Village) -> None:
        a, b = made.peers
        one, other = await written(a, 1), await written(a, 2)
        for entry in (one, other):
            await b.acceptance.take(entry.proof, [], a.outer.discovery.record)
        assert b.acceptance.shelf.lookup(other.sha256) is None
        again = await made.start("b")
        ledger = again.acceptance.ledgers[EMBEDDING]
        assert {entry.sha256 for entry in ledger.entries(1)} == {one.sha256, other.sha256}
        assert all(b.id in entry.receipts for entry in ledger.entries(1))
        assert ledger.chosen(1) == {}

    play(tmp_path, "ab", scene)


def test_who_signs_two_contributions_of_one_name_is_avoided_and_who_passes_them_on_is_not(tmp_path: Path):
    async def scene(made: Village) -> None:
        a, b, c = made.peers
        first, second = await written(a, 1), await written(a, 2)
        for peer in (c, b):  # b may fetch the bytes from c, too
            await peer.acceptance.take(first.proof, [], a.outer.discovery.record)
        assert b.acceptance.fetcher.distrust.objection(a.id) == ""
        await b.acceptance.take(second.proof, [], c.outer.discovery.record)
        assert "signed two contributions" in b.acceptance.fetcher.distrust.objection(a.id)
        assert b.acceptance.fetcher.distrust.objection(c.id) == ""

    play(tmp_path, "abc", scene)


def test_a_contribution_that_is_written_down_twice_at_once_keeps_its_bytes(tmp_path: Path):
    async def scene(made: Village) -> None:
        a, b = made.peers
        entry = await written(a, 1)
        blob = a.acceptance.shelf.read(entry.sha256)
        await asyncio.gather(*(b.acceptance._keep(entry, each) for each in (blob, b"", blob, b"")))
        assert b.acceptance.shelf.read(entry.sha256) == blob

    play(tmp_path, "ab", scene)
