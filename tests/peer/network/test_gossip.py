"""Who tells whom, over real sockets."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import grpc
import pytest

from peer.network.gossip_policy import FANOUT, HEARERS
from protocol.identity import EMBEDDING, Part, PeerId, stage_part
from protocol.manifest import Manifest
from protocol.net.channels import handshake, listen
from protocol.outer.history import Claim
from protocol.outer.ledger import Entry
from protocol.schemas import reconciliation_pb2 as pb
from protocol.schemas import reconciliation_pb2_grpc
from protocol.trust.keys import load_or_create
from protocol.trust.records import PeerRecord, read_statement
from tests.reference.admitted import certified
from tests.reference.loopback_peers import LoopbackPeer, Village, village
from tests.reference.small_manifest import small_manifest


def play(folder: Path, names: str, scene: Callable[[Village], Awaitable[None]], manifest: Manifest) -> None:
    async def run() -> None:
        async with village(manifest, folder, *names) as made:
            await asyncio.wait_for(scene(made), 60)

    asyncio.run(run())


def holds(peer: LoopbackPeer, author: LoopbackPeer, parts: list[Part]) -> bool:
    return all(author.id in peer.intake.ledgers[part].chosen(1) for part in parts)


def test_everybody_hears_of_a_contribution_though_its_author_tells_few_and_nobody_compares(tmp_path: Path):
    names = "abcdefg"
    assert FANOUT < len(names) - 1 <= HEARERS

    async def scene(made: Village) -> None:
        author = made.peers[0]
        await author.contribute(1, 1)
        for peer in made.peers:
            parts = list(peer.intake.ledgers)
            await peer.outer.discovery.news.until(lambda peer=peer, parts=parts: holds(peer, author, parts))

    play(tmp_path, names, scene, small_manifest())


def test_what_was_begun_goes_on_when_who_told_it_hangs_up(tmp_path: Path):
    async def scene(made: Village) -> None:
        a, b = made.peers
        made.cut(b)
        await a.contribute(1, 1)
        made.introduce()
        begun, may_end, check = asyncio.Event(), asyncio.Event(), b.intake.check

        async def slow(blob: bytes, entry: Entry) -> None:
            begun.set()
            await may_end.wait()
            await check(blob, entry)

        b.intake.check = slow
        (entry,) = a.intake.ledgers[EMBEDDING].entries(1)
        news = pb.News(statement=a.outer.reconciler.statement(), entries=[pb.Entry(proof=entry.proof)])
        async with a.outer.reconciler.contacts.to(b.outer.discovery.record) as channel:
            stub = reconciliation_pb2_grpc.ReconciliationStub(channel)
            call = stub.Tell(news, metadata=handshake(made.manifest))
            await begun.wait()
            call.cancel()
        may_end.set()
        await b.outer.discovery.news.until(lambda: holds(b, a, [EMBEDDING]))

    play(tmp_path, "ab", scene, small_manifest())


def test_a_part_is_told_to_those_who_follow_it(tmp_path: Path):
    async def scene(made: Village) -> None:
        (a,) = made.peers
        for stage in (0, 1):
            fields = {"peer_id": PeerId(f"v{stage}"), "address": "h:1", "role": "volunteer", "stage": stage, "slot": 0}
            a.outer.discovery.meet(PeerRecord.model_validate(fields), in_person=True)
        followers = a.outer.reconciler.followers
        assert [peer.peer_id for peer in followers(stage_part(1))] == ["v1"]
        assert [peer.peer_id for peer in followers(EMBEDDING)] == ["v0", "v1"]

    play(tmp_path, "a", scene, small_manifest(replicas={"compression": 2, "stages": 2}))


def test_who_compares_learns_whether_the_other_holds_all_that_is_here(tmp_path: Path):
    async def scene(made: Village) -> None:
        a, b = made.peers
        made.cut(b)
        await a.contribute(1, 1)
        made.introduce()
        assert not await a.outer.reconciler.compare(b.outer.discovery.record, whole=True)  # b has heard of nothing
        assert await b.outer.reconciler.compare(a.outer.discovery.record, whole=True)
        await b.outer.reconciler.learnt()
        assert await a.outer.reconciler.compare(b.outer.discovery.record, whole=True)

    play(tmp_path, "ab", scene, small_manifest())


def test_what_is_on_its_way_is_waited_for_though_comparing_does_not(tmp_path: Path):
    async def scene(made: Village) -> None:
        a, b = made.peers
        may_end, check = asyncio.Event(), b.intake.check

        async def slow(blob: bytes, entry: Entry) -> None:
            await may_end.wait()
            await check(blob, entry)

        b.intake.check = slow
        await a.contribute(1, 1)  # and tells b
        while len(b.outer.reconciler.learning) < len(b.intake.ledgers):
            await b.outer.discovery.news.wait(0.01)
        await b.outer.reconciler.compare(a.outer.discovery.record)
        assert not holds(b, a, [EMBEDDING])
        learnt = asyncio.create_task(b.outer.reconciler.learnt())
        may_end.set()
        await learnt
        assert holds(b, a, list(b.intake.ledgers))

    play(tmp_path, "ab", scene, small_manifest())


def test_who_says_what_is_no_statement_is_told_so_and_avoided(tmp_path: Path):
    async def scene(made: Village) -> None:
        a, b = made.peers
        noted = asyncio.Event()
        b.outer.reconciler.bans.emit = lambda event: noted.set()
        async with a.outer.reconciler.contacts.to(b.outer.discovery.record) as channel:
            stub = reconciliation_pb2_grpc.ReconciliationStub(channel)
            with pytest.raises(grpc.aio.AioRpcError, match="signed"):
                await stub.Tell(pb.News(statement=b"garbage"), metadata=handshake(made.manifest), timeout=10)
        await noted.wait()  # once the answer is out
        assert b.outer.reconciler.bans.objection(a.id)

    play(tmp_path, "ab", scene, small_manifest())


def test_who_answers_with_bytes_that_are_no_message_is_avoided(tmp_path: Path):
    async def scene(made: Village) -> None:
        (ours,) = made.peers
        theirs = load_or_create(tmp_path / "theirs")

        async def answer(request: bytes, context: object) -> bytes:
            return b"\xff" * 50

        handlers = {"Compare": grpc.unary_unary_rpc_method_handler(answer)}
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("hetpeer.v1.Reconciliation", handlers),))
        port = listen(server, "127.0.0.1:0", certified(theirs, made.operator).serving())
        await server.start()
        record = PeerRecord(peer_id=theirs.peer_id, address=f"127.0.0.1:{port}", role="volunteer", stage=0, slot=0)
        try:
            await ours.outer.reconciler.compare(record)
        finally:
            await server.stop(None)
        assert "not a signed statement" in ours.outer.reconciler.bans.objection(theirs.peer_id)

    play(tmp_path, "a", scene, small_manifest())


def test_a_peer_signs_its_statement_anew_only_when_what_it_says_has_changed(tmp_path: Path):
    async def scene(made: Village) -> None:
        reconciler = made.peers[0].outer.reconciler
        said = reconciler.statement()
        assert reconciler.statement() is said
        part = next(iter(reconciler.intake.ledgers))
        reconciler.claims.setdefault(part, []).append(Claim(1, "ab" * 32, 2, True))
        claimed = reconciler.statement()
        reconciler.discovery.record = reconciler.discovery.record.model_copy(update={"sequence": 10**9})
        told = reconciler.statement()
        authority = reconciler.intake.signer.authority
        assert [*read_statement(said, authority).claims.get(part, [])] == []
        assert read_statement(claimed, authority).claims[part][-1].folded == 1
        assert read_statement(told, authority).record.sequence == 10**9
        reconciler.intake.signer.card = b"another card"
        assert reconciler.statement() not in (said, claimed, told)

    play(tmp_path, "ab", scene, small_manifest())
