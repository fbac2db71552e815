"""Channels to other peers, kept open between calls. One that failed is dropped, so the next call starts afresh; so is
one on which this peer still shows its last certificate."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import grpc

from protocol.bandwidth import Bandwidth
from protocol.channels import Credentials, Reachable, channel_to, connect, translated
from protocol.errors import RefusedError, UnreachableError
from protocol.identity import PeerId
from protocol.limits import CALL_SECONDS
from protocol.manifest import Manifest


@dataclass(slots=True)
class Contacts:
    """One channel for each peer and address."""

    manifest: Manifest
    credentials: Credentials
    objection: Callable[[PeerId], str] = lambda peer: ""
    """Why this peer does not talk to another; empty: it does."""
    bandwidth: Bandwidth = field(default_factory=Bandwidth)
    """What goes over these channels, and over those by which others call, takes its turn in this."""
    channels: dict[tuple[PeerId, str], tuple[bytes, grpc.aio.Channel]] = field(default_factory=dict)
    """Each with the certificate that it was opened with."""
    streams: dict[grpc.aio.Channel, PeerId] = field(default_factory=dict)
    """The channels that have one stream each."""
    closing: set[asyncio.Task[None]] = field(default_factory=set)

    @contextlib.asynccontextmanager
    async def to(self, peer: Reachable) -> AsyncIterator[grpc.aio.Channel]:
        """The channel to a peer; gRPC's errors leave it as ours.

        Raises:
            UnreachableError, RefusedError, ManifestError, PeerError: what the calls inside ran into.
        """
        self._require_no_objection(peer)
        key = peer.peer_id, peer.address
        shown, channel = self.channels.get(key, (b"", None))
        if channel is not None and shown != self.credentials.chain:
            self._drop(key, channel)
            channel = None
        if channel is None:
            channel = channel_to(peer, self.manifest, self.credentials, self.bandwidth.window)
            self.channels[key] = self.credentials.chain, channel
        try:
            with translated(peer.address, self.manifest, self.credentials):
                yield channel
        except UnreachableError:
            self._drop(key, channel)
            raise

    @contextlib.asynccontextmanager
    async def alone(self, peer: Reachable) -> AsyncIterator[grpc.aio.Channel]:
        """A channel to a peer for one stream, which ends with it. Raises as `to` does."""
        self._require_no_objection(peer)
        async with connect(peer, self.manifest, self.credentials, self.bandwidth.window) as channel:
            self.streams[channel] = peer.peer_id
            try:
                yield channel
            finally:
                del self.streams[channel]

    def hang_up(self, peer: PeerId) -> None:
        """End the channels to a peer, if there are any; whoever waits for an answer finds it unreachable."""
        for key in [key for key in self.channels if key[0] == peer]:
            self._drop(key, self.channels[key][1], at_once=True)
        for channel in [channel for channel, whose in self.streams.items() if whose == peer]:
            self._close(channel, None)

    def _require_no_objection(self, peer: Reachable) -> None:
        if objection := self.objection(peer.peer_id):
            raise RefusedError(objection)

    def _drop(self, key: tuple[PeerId, str], channel: grpc.aio.Channel, at_once: bool = False) -> None:
        if key in self.channels and self.channels[key][1] is channel:
            del self.channels[key]
            self._close(channel, None if at_once else CALL_SECONDS)  # others' calls on it may still end well

    def _close(self, channel: grpc.aio.Channel, grace: float | None) -> None:
        task = asyncio.create_task(channel.close(grace))
        self.closing.add(task)
        task.add_done_callback(self.closing.discard)

    async def close(self) -> None:
        """Hang up everywhere."""
        for task in self.closing:
            task.cancel()
        channels, self.channels = [channel for _, channel in self.channels.values()], {}
        await asyncio.gather(*(channel.close(None) for channel in channels), *self.closing, return_exceptions=True)
