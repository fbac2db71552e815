"""Where peers tell: a service on the node's port for peers."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

import grpc

from bootstrap.monitor.watch import Monitor
from protocol.errors import FormatError, RefusedError
from protocol.identity import PeerId
from protocol.manifest import Manifest
from protocol.net.channels import EOF, caller, refuse, require_manifest
from protocol.net.lenient import NO_MESSAGE
from protocol.net.tasks import Children, first_of
from protocol.schemas import monitor_pb2 as pb
from protocol.schemas import monitor_pb2_grpc
from protocol.trust.certificates import Caller

STREAMS_OF_PEER = 4
"""A peer has one, and a new one before the node has noticed that the old one is broken."""


class MonitorService(monitor_pb2_grpc.MonitorServicer):
    """Hears peers on one stream each. `objection`: why a peer is not heard any longer, as when it is revoked."""

    def __init__(self, manifest: Manifest, monitor: Monitor, objection: Callable[[PeerId], str]) -> None:
        self.manifest, self.monitor, self.objection = manifest, monitor, objection
        self.streams: dict[PeerId, int] = {}
        self._stopping = asyncio.Event()

    def hang_up(self) -> None:
        """The node stops: end all streams, which would go on for as long as their peers."""
        self._stopping.set()

    async def Tell(self, request_iterator: AsyncIterator[pb.Batch], context: Any) -> None:
        await require_manifest(context, self.manifest)
        who = caller(context)
        peer = who.peer
        if self.streams.get(peer, 0) >= STREAMS_OF_PEER:
            await refuse(context, f"a peer tells on {STREAMS_OF_PEER} streams at most")
        self.streams[peer] = self.streams.get(peer, 0) + 1
        self.monitor.begin(peer)
        try:
            async with Children() as children:
                reading = children.spawn(self._hear(who, context))
                await first_of(asyncio.wait((reading,)), self._stopping.wait())
            if not reading.cancelled() and (reason := reading.result()):
                await refuse(context, reason)
        finally:
            self.monitor.end(peer)
            self.streams[peer] -= 1
            if not self.streams[peer]:
                del self.streams[peer]

    async def _hear(self, who: Caller, context: Any) -> str:
        """All that comes, until the stream ends or breaks; why no more is heard, or empty."""
        reason = ""
        with suppress(grpc.aio.BaseError, grpc.aio.AioRpcError):
            while not reason and (message := await context.read()) is not EOF:
                reason = self.objection(who.peer) or self.objection(who.issuer) or self._take(who.peer, message)
        return reason

    def _take(self, peer: PeerId, message: Any) -> str:
        """Hear a message; why it is refused, or empty."""
        if message is NO_MESSAGE:
            return "bytes that are no message"
        try:
            self.monitor.hear(peer, message.batch_json)
        except (FormatError, RefusedError) as error:
            return str(error)
        return ""
