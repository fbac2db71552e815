"""Nobody speaks for another: what a member of the run may not say is refused in words, and nothing comes of it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from peer.network.group import (
    ATTEMPT_KEY,
    REPLICA_KEY,
    Attempt,
    GroupService,
    Membership,
    PipelineService,
    Seat,
    call,
    invite,
    lead,
    link,
    orders_to,
)
from protocol.identity import PeerId, ReplicaId
from protocol.net.channels import channel_to, handshake, listen, options
from protocol.outer.ledger import Revocation
from protocol.schemas import (
    group_pb2,
    group_pb2_grpc,
    pipeline_pb2,
    pipeline_pb2_grpc,
    reconciliation_pb2_grpc,
    succession_pb2,
    succession_pb2_grpc,
)
from protocol.schemas import reconciliation_pb2 as said
from protocol.trust.bequests import Bequest, Handovers, sign_bequest
from protocol.trust.proofs import revoke
from tests.reference.admitted import There, contacts, credentials, identity, there
from tests.reference.loopback_peers import LoopbackPeer, village
from tests.reference.small_manifest import small_manifest

MANIFEST = small_manifest()
LEADER, MEMBER = identity("leader").peer_id, identity("member").peer_id
REPLICA = ReplicaId(LEADER)
HANDSHAKE = handshake(MANIFEST)


@asynccontextmanager
async def member() -> AsyncIterator[tuple[GroupService, PipelineService, There]]:
    """A volunteer of stage 1."""
    server, group, pipeline = (
        grpc.aio.server(options=options(MANIFEST)),
        GroupService(MANIFEST, 1, MEMBER),
        PipelineService(MANIFEST),
    )
    group.ready = True
    group_pb2_grpc.add_GroupServicer_to_server(group, server)
    pipeline_pb2_grpc.add_PipelineServicer_to_server(pipeline, server)
    address = f"127.0.0.1:{listen(server, '127.0.0.1:0', credentials('member').serving())}"
    await server.start()
    try:
        yield group, pipeline, there("member", address)
    finally:
        await server.stop(None)


def by(name: str, to: There) -> grpc.aio.Channel:
    """A channel of the peer of this name."""
    return channel_to(to, MANIFEST, credentials(name))


def ends_in_words(name: str, whose: str, of: str) -> Any:
    """The one who calls is told that it is not the one who may."""
    words = f"peer {identity(name).peer_id[-8:]} is not peer {identity(whose).peer_id[-8:]}, who alone speaks of {of}"
    return pytest.raises(grpc.aio.AioRpcError, match=words)


def play(scene: Awaitable[None]) -> None:
    asyncio.run(asyncio.wait_for(scene, 60))


def test_nobody_invites_into_anothers_group():
    async def scene() -> None:
        async with member() as (_, _, to):
            async with by("another", to) as channel:
                invitation = group_pb2.Invitation(replica=REPLICA, slot=0, stage=1)
                with ends_in_words("another", "leader", "its own group"):
                    await group_pb2_grpc.GroupStub(channel).Invite(invitation, metadata=HANDSHAKE, timeout=20)
            seat, theirs = Seat(to.peer_id, to.address), Membership(ReplicaId(identity("another").peer_id), 0)
            assert await invite(1, seat, theirs, contacts("another", MANIFEST))  # the false one has bound nobody

    play(scene())


def test_a_member_of_a_group_does_not_order_and_its_leader_goes_on():
    async def scene() -> None:
        async with member() as (group, _, to):
            seat, membership = Seat(to.peer_id, to.address), Membership(REPLICA, 0)
            assert await invite(1, seat, membership, contacts("leader", MANIFEST))
            async with by("another member", to) as channel:
                stream = group_pb2_grpc.GroupStub(channel).Follow(metadata=(*HANDSHAKE, (REPLICA_KEY, REPLICA)))
                with ends_in_words("another member", "leader", "its own group"):
                    await stream.read()
            assert not group.called
            orders = orders_to(1, seat)
            leading = asyncio.create_task(lead(seat, REPLICA, contacts("leader", MANIFEST), orders))
            heard, reports = await group.wait_for_leader()
            assert heard == membership
            orders.send(group_pb2.Order(begin=group_pb2.Begin(attempt=7)))
            assert (await reports.receive()).begin.attempt == 7
            reports.close()
            orders.close()
            await leading

    play(scene())


def test_only_the_stage_before_speaks_in_a_pipeline_and_only_once():
    async def scene() -> None:
        async with member() as (_, pipeline, to):
            attempt, upstream, downstream = (
                Attempt(REPLICA, 1),
                link(MANIFEST, LEADER, "stage 0"),
                link(MANIFEST, to.peer_id, "stage 1"),
            )
            where = (*HANDSHAKE, (REPLICA_KEY, REPLICA), (ATTEMPT_KEY, "1"))
            pipeline.expect(attempt, LEADER, upstream)
            async with by("another member", to) as channel:
                with ends_in_words("another member", "leader", "the stage before this one"):
                    await pipeline_pb2_grpc.PipelineStub(channel).Exchange(metadata=where).read()
            calling = asyncio.create_task(call(to, contacts("leader", MANIFEST), attempt, downstream))
            downstream.send(pipeline_pb2.Frame(forward=pipeline_pb2.Forward(embedding_digest=b"1")))
            assert (await upstream.receive()).forward.embedding_digest == b"1"
            async with by("leader", to) as channel:
                with pytest.raises(grpc.aio.AioRpcError, match="expects no such neighbour"):
                    await pipeline_pb2_grpc.PipelineStub(channel).Exchange(metadata=where).read()
            assert not upstream.ended
            upstream.close()
            downstream.close()
            await calling

    play(scene())


@pytest.mark.parametrize("number", ["0", "2", "", "-1", "1.0", "9" * 5000, "one"])
def test_no_stream_of_another_attempt_gets_into_a_pipeline(number: str):
    async def scene() -> None:
        async with member() as (_, pipeline, to):
            pipeline.expect(Attempt(REPLICA, 1), LEADER, link(MANIFEST, LEADER, "stage 0"))
            where = (*HANDSHAKE, (REPLICA_KEY, REPLICA), (ATTEMPT_KEY, number))
            async with by("leader", to) as channel:
                with pytest.raises(grpc.aio.AioRpcError, match="expects no such neighbour"):
                    await pipeline_pb2_grpc.PipelineStub(channel).Exchange(metadata=where).read()

    play(scene())


# What is signed is said by its signer, or passed on as the signer's


def among(folder: Path, scene: Callable[[LoopbackPeer, LoopbackPeer, LoopbackPeer], Awaitable[None]]) -> None:
    """Three volunteers of stage 1: two honest ones, and one that calls as itself and speaks as another."""

    async def run() -> None:
        async with village(MANIFEST, folder) as made:
            ann, bob, eve = [await made.join(name, 1) for name in ("ann", "bob", "eve")]
            await scene(ann, bob, eve)

    play(run())


def to(peer: LoopbackPeer) -> Any:
    return peer.outer.discovery.record


def test_a_statement_is_heard_from_its_author_alone(tmp_path: Path):
    async def scene(ann: LoopbackPeer, bob: LoopbackPeer, eve: LoopbackPeer) -> None:
        ann.outer.discovery.tell(round=3)
        stolen = ann.outer.reconciler.statement()
        before = bob.outer.discovery.records[PeerId(ann.id)]
        words = f"peer {eve.id[-8:]} speaks for {ann.id[-8:]}"
        async with eve.outer.reconciler.contacts.to(to(bob)) as channel:
            stub = reconciliation_pb2_grpc.ReconciliationStub(channel)
            for ask, message in (
                (stub.Compare, said.Comparison(statement=stolen)),
                (stub.Tell, said.News(statement=stolen)),
            ):
                with pytest.raises(grpc.aio.AioRpcError, match=words):
                    await ask(message, metadata=HANDSHAKE, timeout=20)
        assert PeerId(ann.id) not in bob.outer.reconciler.others_claims
        assert bob.outer.discovery.records[PeerId(ann.id)] == before
        async with ann.outer.reconciler.contacts.to(to(bob)) as channel:  # and from her it is
            stub = reconciliation_pb2_grpc.ReconciliationStub(channel)
            await stub.Compare(said.Comparison(statement=stolen), metadata=HANDSHAKE, timeout=20)
        assert bob.outer.discovery.records[PeerId(ann.id)].round == 3

    among(tmp_path, scene)


def test_a_bequest_is_taken_from_its_giver_alone(tmp_path: Path):
    async def scene(ann: LoopbackPeer, bob: LoopbackPeer, eve: LoopbackPeer) -> None:
        bob.handover.handovers, bob.handover.open = Handovers(), True
        bequest = Bequest(PeerId(ann.id), PeerId(bob.id), 1, 1, "ab" * 32, 100)
        message = succession_pb2.Bequest(proof=sign_bequest(ann.signer, bequest))
        async with eve.outer.reconciler.contacts.to(to(bob)) as channel:
            stub = succession_pb2_grpc.SuccessionStub(channel)
            words = f"peer {eve.id[-8:]} is not peer {ann.id[-8:]}, who alone speaks of its own bequests"
            with pytest.raises(grpc.aio.AioRpcError, match=words):
                await stub.Bequeath(message, metadata=HANDSHAKE, timeout=20)
        assert bob.handover.next() is None

    among(tmp_path, scene)


def test_a_revocation_is_the_operators_whoever_passes_it_on(tmp_path: Path):
    async def scene(ann: LoopbackPeer, bob: LoopbackPeer, eve: LoopbackPeer) -> None:
        false = revoke(eve.signer.identity, eve.signer.authority, Revocation(PeerId(ann.id), 1, 1))
        async with eve.outer.reconciler.contacts.to(to(bob)) as channel:
            stub = reconciliation_pb2_grpc.ReconciliationStub(channel)
            with pytest.raises(grpc.aio.AioRpcError, match="operator"):
                await stub.Revoke(said.Revocations(revocations=[false]), metadata=HANDSHAKE, timeout=20)
        assert not bob.intake.revocations

    among(tmp_path, scene)
