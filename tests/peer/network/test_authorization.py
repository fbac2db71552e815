"""Nobody speaks for another: what a member of the run may not say is refused in words, and nothing comes of it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest

from peer.network.group import REPLICA_KEY, Link, PipelineService, call, make_link
from peer.swarm.group.seats import GroupSeats
from protocol.codec.seating import pack_start, unpack_start
from protocol.errors import LostMemberError
from protocol.identity import PeerId, ReplicaId
from protocol.net.channels import handshake
from protocol.outer.ledger import Revocation
from protocol.schemas import pipeline_pb2_grpc, reconciliation_pb2_grpc, succession_pb2, succession_pb2_grpc
from protocol.schemas import reconciliation_pb2 as said
from protocol.trust.handovers import HandoverOffer, Handovers, sign_handover
from protocol.trust.proofs import sign_revocation
from tests.reference.loopback_peers import LoopbackPeer, village
from tests.reference.small_manifest import small_manifest
from tests.reference.waiting import until

MANIFEST = small_manifest()
HANDSHAKE = handshake(MANIFEST)


def play(scene: Awaitable[None]) -> None:
    asyncio.run(asyncio.wait_for(scene, 60))


# Who gets into a group


@dataclass
class Callers:
    """A volunteer of stage 1, and others of the run that call it."""

    seats: GroupSeats
    member: LoopbackPeer
    first: LoopbackPeer
    another_first: LoopbackPeer
    beside: LoopbackPeer
    """Of its own stage."""

    async def refused(self, caller: LoopbackPeer, replica: str) -> str:
        """What a caller that says it calls for this replica is told; nothing comes of its call."""
        waits, where = self.seats.called, (*HANDSHAKE, (REPLICA_KEY, replica))
        async with caller.outer.reconciler.contacts.alone(to(self.member)) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await pipeline_pb2_grpc.PipelineStub(channel).Exchange(metadata=where).read()
        assert error.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert self.seats.called is waits
        return error.value.details() or ""

    @asynccontextmanager
    async def calling(self, caller: LoopbackPeer, replica: str) -> AsyncIterator[Link]:
        """The link of a caller that has been welcomed, to speak over."""
        downstream = make_link(MANIFEST, PeerId(self.member.id), "stage 1")
        carrying = asyncio.create_task(
            call(to(self.member), caller.outer.reconciler.contacts, ReplicaId(replica), downstream)
        )
        await until(lambda: self.seats.is_called or downstream.ended)
        yield downstream
        downstream.abort("enough")
        await carrying


def called(folder: Path, scene: Callable[[Callers], Awaitable[None]]) -> None:
    async def run() -> None:
        services: dict[PeerId, PipelineService] = {}

        def serve(server: grpc.aio.Server, peer: PeerId) -> None:
            services[peer] = PipelineService(MANIFEST)
            pipeline_pb2_grpc.add_PipelineServicer_to_server(services[peer], server)

        async with village(MANIFEST, folder) as made, asyncio.TaskGroup() as tasks:
            made.more_services = serve
            member, beside = await made.join("member", 1), await made.join("beside", 1)
            first, another = await made.join("first", 0), await made.join("another first", 0)
            seats = GroupSeats(member.outer.reconciler, services[PeerId(member.id)], tasks, open=True)
            await scene(Callers(seats, member, first, another, beside))

    play(run())


def test_only_the_stage_before_is_heard_and_the_others_are_told_so(tmp_path: Path):
    async def scene(made: Callers) -> None:
        words = "this peer serves stage 1, and you not the one before it"
        for replica in (made.first.id, made.beside.id, made.member.id):
            assert await made.refused(made.beside, replica) == words
        async with made.calling(made.first, made.first.id) as downstream:  # the false ones have bound nobody
            downstream.send(pack_start(3, ""))
            made.seats.sit_down()
            assert made.seats.upstream is not None
            assert unpack_start(await made.seats.upstream.receive(), 0, 3) == (3, "")
            assert made.seats.replica == made.first.id

    called(tmp_path, scene)


@pytest.mark.parametrize("seated", [False, True], ids=["it has only been called", "it has taken its seat"])
def test_who_has_a_stage_before_it_hears_no_other_and_that_one_goes_on(tmp_path: Path, seated: bool):
    async def scene(made: Callers) -> None:
        async with made.calling(made.first, made.first.id) as downstream:
            upstream = made.seats.called
            if seated:
                made.seats.sit_down()
            for caller in (made.another_first, made.first):
                assert await made.refused(caller, caller.id) == "this peer is in another group"
            assert upstream is not None
            downstream.send(pack_start(3, ""))
            assert unpack_start(await upstream.receive(), 0, 3) == (3, "")
        await until(lambda: upstream.ended)
        assert not made.seats.is_called
        async with made.calling(made.another_first, made.another_first.id):
            assert made.seats.is_called

    called(tmp_path, scene)


@pytest.mark.parametrize("replica", ["", "another", "its own", "9" * 5000, "-1"])
def test_nobody_calls_for_the_group_of_another_first_stage(tmp_path: Path, replica: str):
    async def scene(made: Callers) -> None:
        told = {"another": made.another_first.id, "its own": made.member.id}.get(replica, replica)
        assert await made.refused(made.first, told) == "a group is named for its first stage"
        async with made.calling(made.first, made.first.id):
            assert made.seats.calls_for == made.first.id

    called(tmp_path, scene)


def test_who_takes_no_part_any_more_hangs_up_on_who_has_called_and_hears_nobody(tmp_path: Path):
    async def scene(made: Callers) -> None:
        async with made.calling(made.first, made.first.id) as downstream:
            made.seats.close()
            with pytest.raises(LostMemberError, match="has hung up"):
                await asyncio.wait_for(downstream.receive(), 10)
        assert await made.refused(made.first, made.first.id) == "this peer takes no part in groups now"

    called(tmp_path, scene)


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
        ann.outer.discovery.update_record(round=3)
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


def test_a_handover_is_taken_from_its_giver_alone(tmp_path: Path):
    async def scene(ann: LoopbackPeer, bob: LoopbackPeer, eve: LoopbackPeer) -> None:
        bob.handover.handovers, bob.handover.open = Handovers(), True
        handover = HandoverOffer(PeerId(ann.id), PeerId(bob.id), 1, 1, "ab" * 32, 100)
        message = succession_pb2.Bequest(proof=sign_handover(ann.signer, handover))
        async with eve.outer.reconciler.contacts.to(to(bob)) as channel:
            stub = succession_pb2_grpc.SuccessionStub(channel)
            words = f"peer {eve.id[-8:]} is not peer {ann.id[-8:]}, who alone speaks of its own bequests"
            with pytest.raises(grpc.aio.AioRpcError, match=words):
                await stub.Bequeath(message, metadata=HANDSHAKE, timeout=20)
        assert bob.handover.next() is None

    among(tmp_path, scene)


def test_a_revocation_is_the_operators_whoever_passes_it_on(tmp_path: Path):
    async def scene(ann: LoopbackPeer, bob: LoopbackPeer, eve: LoopbackPeer) -> None:
        false = sign_revocation(eve.signer.identity, eve.signer.authority, Revocation(PeerId(ann.id), 1, 1))
        async with eve.outer.reconciler.contacts.to(to(bob)) as channel:
            stub = reconciliation_pb2_grpc.ReconciliationStub(channel)
            with pytest.raises(grpc.aio.AioRpcError, match="operator"):
                await stub.Revoke(said.Revocations(revocations=[false]), metadata=HANDSHAKE, timeout=20)
        assert not bob.intake.revocations

    among(tmp_path, scene)
