"""What a peer keeps of the parts it follows: as much as can matter, however long it lives."""

import asyncio
from pathlib import Path

from protocol.identity import EMBEDDING
from protocol.reconciliation import KEPT_ROUNDS
from tests.reference.loopback_peers import village
from tests.reference.small_manifest import small_manifest

MANIFEST = small_manifest(
    model={"layers": 1},
    replicas={"groups": 0, "datacenters": 1, "stages": 1},
    outer={"grace": 2, "liars": 0, "rounds": 200, "chunk_side": 8, "top_k": 2},
)
WIDTH = 4


def test_after_many_rounds_a_peer_holds_no_more_than_after_some(tmp_path: Path):
    async def scene() -> None:
        async with village(MANIFEST, tmp_path, "a") as made:
            (peer,) = made.peers
            held = {}
            for round in range(1, KEPT_ROUNDS + 3 * WIDTH):
                await made.round(round, made.peers)
                held[round] = len(list((tmp_path / "a/contributions" / EMBEDDING).iterdir()))
            followed = peer.outer.followed.parts[EMBEDDING]
            assert held[KEPT_ROUNDS + 2 * WIDTH] == held[KEPT_ROUNDS + 3 * WIDTH - 1] <= KEPT_ROUNDS + 1
            assert len(followed.own) == held[round]
            assert followed.authored.sent.keys() <= followed.own.keys()
            assert len(peer.acceptance.shelf.slices) == held[round] * len(peer.acceptance.ledgers)
            again = await made.start("a")  # and it starts again from that
            assert again.outer.followed.parts[EMBEDDING].own == followed.own
            await again.at(round)
            assert again.digests() == peer.digests()

    asyncio.run(scene())
