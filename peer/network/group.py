"""The links of a replica group: one stream between two neighbouring stages, which the earlier stage opens, and which
lasts for as long as they are neighbours. All that the stages of a group tell each other goes over it."""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

from peer.network.contacts import Contacts
from peer.network.duplex import Duplex
from protocol.codec.frames import MOST_IN_FLIGHT, FrameRules
from protocol.errors import HetpeerError, RefusedError
from protocol.identity import PeerId, ReplicaId
from protocol.manifest import Manifest
from protocol.net.bandwidth import Bandwidth
from protocol.net.channels import Reachable, caller, handshake, refuse, require_manifest
from protocol.schemas import pipeline_pb2, pipeline_pb2_grpc

REPLICA_KEY = "hetpeer-replica"

BETWEEN_STEPS = 8
"""The messages beside frames that may wait to be read: seats, a round's offer, answer and start, a step's end."""

Link = Duplex[pipeline_pb2.Frame, pipeline_pb2.Frame]


@dataclass(frozen=True, slots=True)
class Attempt:
    """An attempt of a group: `number` counts how often the first stage of this replica has formed one."""

    replica: ReplicaId
    number: int


DoubtHandler = Callable[[PeerId, pipeline_pb2.Place], None]
"""A function that is given who has sent, or passed on, a doubt, and the microbatch that is doubted."""


def ignore_doubt(neighbour: PeerId, doubt: pipeline_pb2.Place) -> None:
    """Pass a doubt over."""


def make_link(
    manifest: Manifest,
    neighbour: PeerId,
    with_whom: str,
    bandwidth: Bandwidth | None = None,
    on_doubt: DoubtHandler = ignore_doubt,
    on_end: Callable[[], None] = lambda: None,
) -> Link:
    """Make a link to a neighbour, not yet connected. It holds as many unread messages as the schedule can have in
    flight, at the largest k of the run; a neighbour that sends more is cut off. `with_whom` names it in errors, frames
    take their turn in `bandwidth`, doubts go to `on_doubt`, out of turn, and `on_end` is called at the link's end."""
    rules = FrameRules.of(manifest.at(min(manifest.compressions, default=1)))
    messages = max(rules.activations.messages, rules.gradients.messages)
    most_pending = MOST_IN_FLIGHT * manifest.replicas.stages * messages + BETWEEN_STEPS

    def take_doubt(message: pipeline_pb2.Frame) -> bool:
        if message.HasField("doubt"):
            on_doubt(neighbour, message.doubt)
        return message.HasField("doubt")

    return Duplex(neighbour, with_whom, most_pending, pipeline_pb2.Frame(), bandwidth, take_doubt, on_end)


CallHandler = Callable[[PeerId, ReplicaId], Link]
"""A function that is given who calls, as its certificate says, and the replica that it calls for. Returns the link to
carry, or raises RefusedError."""


def welcome_nobody(neighbour: PeerId, replica: ReplicaId) -> Link:
    """Refuse every call.

    Raises:
        RefusedError: always.
    """
    raise RefusedError("this peer takes no part in groups now")


class PipelineService(pipeline_pb2_grpc.PipelineServicer):
    """The service that takes the call of the stage before ours."""

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest
        self.carried: dict[PeerId, Link] = {}
        """The link that each caller has here."""
        self._welcome: CallHandler = welcome_nobody

    def answer_calls(self, welcome: CallHandler) -> None:
        """Answer calls by `welcome` from now on; until then none is taken."""
        self._welcome = welcome

    def hang_up(self, caller: PeerId, reason: str) -> None:
        """End the link of a caller, if it has one."""
        if caller in self.carried:
            self.carried[caller].abort(reason)

    async def Exchange(self, request_iterator: AsyncIterator[pipeline_pb2.Frame], context: Any) -> None:
        await require_manifest(context, self.manifest)
        replica = ReplicaId(str(dict(context.invocation_metadata()).get(REPLICA_KEY, "")))
        neighbour = caller(context).peer
        try:
            upstream = self.carried[neighbour] = self._welcome(neighbour, replica)
        except RefusedError as error:
            await refuse(context, str(error))
        try:
            await upstream.carry(context)
        finally:
            if self.carried.get(neighbour) is upstream:
                del self.carried[neighbour]


async def call(neighbour: Reachable, contacts: Contacts, replica: ReplicaId, downstream: Link) -> None:
    """Call the stage behind ours for a group, and carry frames until the link ends."""
    try:
        async with contacts.alone(neighbour) as channel:
            metadata = (*handshake(contacts.manifest), (REPLICA_KEY, replica))
            await downstream.carry(pipeline_pb2_grpc.PipelineStub(channel).Exchange(metadata=metadata))
    except HetpeerError as error:
        downstream.abort(str(error))
