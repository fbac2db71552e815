"""How far away a peer is, over a real channel."""

import asyncio

import grpc

from peer.network.distance import timed
from peer.network.group import GroupService, Seat
from protocol.identity import PeerId
from protocol.net.channels import handshake, listen, options
from protocol.schemas import group_pb2 as pb
from protocol.schemas import group_pb2_grpc
from tests.reference.admitted import contacts as contacts_of
from tests.reference.admitted import credentials, identity
from tests.reference.small_manifest import small_manifest

MANIFEST = small_manifest()


def test_the_first_question_opens_the_channel_and_the_next_ones_measure():
    async def scene() -> None:
        me = identity("member").peer_id
        server = grpc.aio.server(options=options(MANIFEST))
        group_pb2_grpc.add_GroupServicer_to_server(GroupService(MANIFEST, 1, me), server)
        port = listen(server, "127.0.0.1:0", credentials("member").serving())
        await server.start()
        contacts = contacts_of("a", MANIFEST)
        trips: dict[PeerId, float] = {}
        question = pb.Invitation(replica=identity("a").peer_id, stage=7)

        async def ask() -> None:
            async with contacts.to(Seat(me, f"127.0.0.1:{port}")) as channel:
                with timed(channel, me, trips):
                    await group_pb2_grpc.GroupStub(channel).Invite(question, metadata=handshake(MANIFEST))

        try:
            await ask()
            assert trips == {}
            await ask()
            assert 0 < trips[me] < 20
            trips[me] = 1e-9
            await ask()
            assert 1e-9 < trips[me] < 2e-9  # the least that was measured, slowly forgotten
        finally:
            await contacts.close()
            await server.stop(None)

    asyncio.run(asyncio.wait_for(scene(), 20))
