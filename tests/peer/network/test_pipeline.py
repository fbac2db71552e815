"""A link between two stages, over a real gRPC stream on loopback."""

import asyncio

import grpc
import pytest

from peer.network.pipeline import Attempt, Link, PipelineService, call, link
from protocol.errors import LostMemberError
from protocol.identity import ReplicaId
from protocol.net.channels import listen
from protocol.schemas import pipeline_pb2 as pb
from protocol.schemas import pipeline_pb2_grpc
from tests.reference.admitted import contacts, credentials, identity, there
from tests.reference.small_manifest import small_manifest

MANIFEST = small_manifest()
ATTEMPT = Attempt(ReplicaId("r"), 1)
SECONDS = 10.0


def _link(neighbour: str) -> Link:
    return link(MANIFEST, identity(neighbour).peer_id, neighbour)


@pytest.mark.parametrize("first", ["the stage that called", "the stage that was called", "both at once"])
def test_when_one_side_closes_a_link_what_it_had_sent_arrives_and_the_stream_is_over_on_both(first: str):
    async def scene() -> None:
        server, service = grpc.aio.server(), PipelineService(MANIFEST)
        pipeline_pb2_grpc.add_PipelineServicer_to_server(service, server)
        address = f"127.0.0.1:{listen(server, '127.0.0.1:0', credentials('stage 1').serving())}"
        await server.start()
        upstream, downstream = _link("stage 0"), _link("stage 1")
        service.expect(ATTEMPT, identity("stage 0").peer_id, upstream)
        calling = asyncio.create_task(
            call(there("stage 1", address), contacts("stage 0", MANIFEST), ATTEMPT, downstream)
        )
        downstream.send(pb.Frame(forward=pb.Forward(embedding_digest=b"1")))
        assert (await asyncio.wait_for(upstream.receive(), SECONDS)).forward.embedding_digest == b"1"
        upstream.send(pb.Frame(backward=pb.Backward(gradients=pb.Tensor(data=b"2"))))
        if first != "the stage that called":
            upstream.close()
        if first != "the stage that was called":
            downstream.close()
        assert (await asyncio.wait_for(downstream.receive(), SECONDS)).backward.gradients.data == b"2"
        await asyncio.wait_for(calling, SECONDS)
        for each in (upstream, downstream):
            with pytest.raises(LostMemberError):
                await asyncio.wait_for(each.receive(), SECONDS)
        await server.stop(None)

    asyncio.run(scene())
