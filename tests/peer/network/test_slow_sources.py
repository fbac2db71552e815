"""Sources that give bytes slowly, or none, over real sockets: they keep no place, and others give what they hold."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

import protocol.net.blobs
from peer.network import wanted as deciding
from protocol.codec.contribution import contribution_digest
from protocol.identity import EMBEDDING, PeerId
from protocol.net.bandwidth import Bandwidth
from protocol.net.channels import listen, options
from protocol.outer.ledger import Entry
from protocol.schemas import blobs_pb2 as pb
from protocol.schemas import blobs_pb2_grpc
from protocol.trust.keys import load_or_create
from protocol.trust.records import PeerRecord
from tests.reference.admitted import certified
from tests.reference.loopback_peers import LoopbackPeer, Village, village
from tests.reference.small_manifest import small_manifest
from tests.reference.waiting import until

MANIFEST = small_manifest()


class Dripping(blobs_pb2_grpc.BlobsServicer):
    """Sends a byte of whatever it is asked for, and then nothing, for ever."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def Fetch(self, request: pb.FetchRequest, context: Any) -> AsyncIterator[pb.Chunk]:
        self.asked.append(request.sha256)
        yield pb.Chunk(data=b"x")
        await asyncio.Event().wait()


@asynccontextmanager
async def slow_sources(made: Village, count: int) -> AsyncIterator[tuple[Sequence[PeerRecord], Dripping]]:
    """So many peers of the run with certificates, all of which drip."""
    async with AsyncExitStack() as stack:
        service, records = Dripping(), []
        for number in range(count):
            who = load_or_create(made.folder / f"slow-{number}")
            server = grpc.aio.server(options=options(MANIFEST))
            port = listen(server, "127.0.0.1:0", certified(who, made.operator).serving())
            blobs_pb2_grpc.add_BlobsServicer_to_server(service, server)
            await server.start()
            stack.push_async_callback(server.stop, None)
            address = f"127.0.0.1:{port}"
            records.append(
                PeerRecord(peer_id=who.peer_id, address=address, role="observer", stage=0, slot=100 + number)
            )
        yield records, service


def play(folder: Path, scene: Callable[[Village, Entry], Awaitable[None]]) -> None:
    """`a` has contributed, `b` holds it too, and `c` has heard nothing."""

    async def run() -> None:
        async with village(MANIFEST, folder, *"abc") as made:
            a, _, c = made.peers
            made.cut(c)
            await a.contribute(1, 1)
            await made.calm()
            made.introduce()
            (entry,) = a.intake.ledgers[EMBEDDING].entries(1)
            await asyncio.wait_for(scene(made, entry), 20)

    asyncio.run(run())


def whole(peer: LoopbackPeer, entry: Entry) -> bool:
    return contribution_digest(peer.intake.contribution_store.read(entry.sha256)) == entry.sha256


def id_of(peer: LoopbackPeer) -> PeerId:
    return peer.outer.discovery.record.peer_id


def withheld(entry: Entry, number: int) -> Entry:
    """Another contribution, of which only slow sources say that they hold it."""
    name = replace(entry.name, round=100 + number)
    return Entry(name, f"{number:064x}", 1000)


@pytest.mark.parametrize("names", [1, deciding.MOST_SOURCES + 8], ids=["one", "more than are remembered"])
def test_beside_who_is_slow_another_is_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: int):
    monkeypatch.setattr(deciding, "LAG_SECONDS", 0.05)

    async def scene(made: Village, entry: Entry) -> None:
        _, b, c = made.peers
        fetcher = c.intake.fetcher
        async with slow_sources(made, names) as (slow, drips):
            if names > 1:
                fetcher.wanted.speeds[id_of(b)] = 1e6  # it has given something before
            for each in slow:
                fetcher.add_source([entry.key], each)
            fetcher.add_source([entry.key], b.outer.discovery.record)
            assert [each.name for each in await c.intake.take(entry.proof, [], slow[0])] == [entry.name]
        assert whole(c, entry)
        assert not fetcher.bringing
        assert not fetcher.wanted.under_way
        assert not fetcher.wanted.busy
        assert names > 1 or (drips.asked == [entry.sha256] and slow[0].peer_id in fetcher.wanted.slow)
        assert c.said == []  # an honest peer on a thin link is not hung up on

    play(tmp_path, scene)


def test_who_alone_has_something_and_is_slow_keeps_no_place_from_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(deciding, "LAG_SECONDS", 0.05)

    async def scene(made: Village, entry: Entry) -> None:
        a, _, c = made.peers
        fetcher = c.intake.fetcher
        async with slow_sources(made, 3) as (slow, _):
            many = [withheld(entry, number) for number in range(3 * deciding.BLOB_FETCHES)]
            holding = [asyncio.create_task(fetcher.bring(each, slow[number % 3])) for number, each in enumerate(many)]
            await until(lambda: any(each.peer_id in fetcher.wanted.slow for each in slow))
            assert await c.intake.take(entry.proof, [], a.outer.discovery.record)
            assert whole(c, entry)
            assert not any(each.done() for each in holding)  # nor is what only they have given up
            late = sum(attempt.late for each in fetcher.bringing.values() for attempt in each.attempts)
            assert late <= deciding.MOST_SLOW_FETCHES
            for each in holding:
                each.cancel()
            await asyncio.gather(*holding, return_exceptions=True)
        await until(lambda: not fetcher.wanted.busy)
        assert not fetcher.bringing
        assert not fetcher.wanted.sources
        assert fetcher.wanted.under_way == 0

    play(tmp_path, scene)


def test_a_fetch_has_an_end_though_bytes_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(protocol.net.blobs, "STALL_SECONDS", 0.3)

    async def scene(made: Village, entry: Entry) -> None:
        _, _, c = made.peers
        async with slow_sources(made, 1) as ((slow,), drips):
            assert await c.intake.take(entry.proof, [], slow) == []
            assert drips.asked == [entry.sha256]
        assert c.intake.fetcher.wanted.sources == {}
        assert c.said == []
        await c.outer.reconciler.compare(made.peers[0].outer.discovery.record)
        assert whole(c, entry)

    play(tmp_path, scene)


def test_this_peers_own_turns_are_not_the_sources_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(protocol.net.blobs, "STALL_SECONDS", 0.5)
    monkeypatch.setattr(deciding, "LAG_SECONDS", 0.2)

    class Busy(Bandwidth):
        async def take(self, count: int) -> None:
            await asyncio.sleep(0.8)

    async def scene(made: Village, entry: Entry) -> None:
        a, _, c = made.peers
        c.outer.reconciler.contacts.bandwidth = Busy()
        assert await c.intake.take(entry.proof, [], a.outer.discovery.record)
        assert whole(c, entry)
        assert id_of(a) not in c.intake.fetcher.wanted.slow

    play(tmp_path, scene)
