"""The streams to the neighbouring stages. The earlier stage calls the later one."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from peer.network.contacts import Contacts
from peer.network.duplex import Duplex
from protocol.codec.frames import MOST_IN_FLIGHT, FrameRules
from protocol.errors import HetpeerError
from protocol.identity import PeerId, ReplicaId
from protocol.manifest import Manifest
from protocol.net.bandwidth import Bandwidth
from protocol.net.channels import Reachable, handshake, refuse, require_manifest, speaks
from protocol.schemas import pipeline_pb2 as pb
from protocol.schemas import pipeline_pb2_grpc

REPLICA_KEY = "hetpeer-replica"
ATTEMPT_KEY = "hetpeer-attempt"
ATTEMPT_DIGITS = 18

Link = Duplex[pb.Frame, pb.Frame]


@dataclass(frozen=True, slots=True)
class Attempt:
    """An attempt of a group, which opens its links anew whenever a member has changed; `number` counts these
    attempts."""

    replica: ReplicaId
    number: int


def link(manifest: Manifest, neighbour: PeerId, with_whom: str, bandwidth: Bandwidth | None = None) -> Link:
    """Make a link to a neighbour, not yet connected, which has no more microbatches in flight than the schedule lets
    it. Its frames take their turn in `bandwidth`."""
    rules = FrameRules.of(manifest)
    messages = max(rules.activations.messages, rules.gradients.messages)
    most_pending = (MOST_IN_FLIGHT * manifest.replicas.stages + 1) * messages
    return Duplex(neighbour, with_whom, most_pending, bandwidth=bandwidth)


class PipelineService(pipeline_pb2_grpc.PipelineServicer):
    """The service that takes the call of the stage before ours, if it is of the attempt that this peer is a
    member of."""

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest
        self._expected: dict[Attempt, tuple[PeerId, Link]] = {}

    def expect(self, attempt: Attempt, neighbour: PeerId, upstream: Link) -> None:
        """Welcome one stream of this attempt, from this neighbour, from now on, and none of an earlier attempt."""
        self._expected = {attempt: (neighbour, upstream)}

    async def Exchange(self, request_iterator: AsyncIterator[pb.Frame], context: Any) -> None:
        await require_manifest(context, self.manifest)
        metadata = dict(context.invocation_metadata())
        number = str(metadata.get(ATTEMPT_KEY, ""))
        known = number.isdecimal() and len(number) <= ATTEMPT_DIGITS
        attempt = Attempt(ReplicaId(metadata.get(REPLICA_KEY, "")), int(number) if known else 0)
        neighbour, upstream = self._expected.get(attempt, (None, None))
        if neighbour is None or upstream is None:
            await refuse(context, "this stage expects no such neighbour")
        await speaks(context, neighbour, "the stage before this one")
        del self._expected[attempt]
        await upstream.carry(context)


async def call(neighbour: Reachable, contacts: Contacts, attempt: Attempt, downstream: Link) -> None:
    """Call the stage behind ours and carry frames until the link ends."""
    try:
        async with contacts.alone(neighbour) as channel:
            where = ((REPLICA_KEY, attempt.replica), (ATTEMPT_KEY, str(attempt.number)))
            stub = pipeline_pb2_grpc.PipelineStub(channel)
            await downstream.carry(stub.Exchange(metadata=(*handshake(contacts.manifest), *where)))
    except HetpeerError as error:
        downstream.abort(str(error))
