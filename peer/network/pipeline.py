"""The streams to the neighbouring stages. The earlier stage calls the later one."""

from collections.abc import AsyncIterator
from typing import Any

from peer.network.duplex import Duplex
from protocol.channels import connect, handshake, refuse, require_manifest
from protocol.identity import ReplicaId
from protocol.manifest import Manifest
from protocol.schemas import pipeline_pb2 as pb
from protocol.schemas import pipeline_pb2_grpc

REPLICA_KEY = "hetpeer-replica"

Link = Duplex[pb.Frame, pb.Frame]


def link(manifest: Manifest, with_whom: str) -> Link:
    """A link to a neighbour, not yet connected. 1F1B runs at most one microbatch a stage ahead."""
    return Duplex(with_whom, most_pending=manifest.replicas.stages + 1)


class PipelineService(pipeline_pb2_grpc.PipelineServicer):
    """Takes the call of the stage before ours, if it is of the replica we are a member of."""

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest
        self._expected: dict[ReplicaId, Link] = {}

    def expect(self, replica: ReplicaId, upstream: Link) -> None:
        """From now on, one stream of this replica is welcome."""
        self._expected[replica] = upstream

    async def Exchange(self, request_iterator: AsyncIterator[pb.Frame], context: Any) -> None:
        await require_manifest(context, self.manifest)
        replica = ReplicaId(dict(context.invocation_metadata()).get(REPLICA_KEY, ""))
        upstream = self._expected.pop(replica, None)
        if upstream is None:
            await refuse(context, "this stage expects no such neighbour")
        else:
            await upstream.carry(context)


async def call(address: str, manifest: Manifest, replica: ReplicaId, downstream: Link) -> None:
    """Call the stage behind ours and carry frames until the link ends."""
    async with connect(address, manifest) as channel:
        metadata = (*handshake(manifest), (REPLICA_KEY, replica))
        await downstream.carry(pipeline_pb2_grpc.PipelineStub(channel).Exchange(metadata=metadata))
