"""Channels to other peers, kept open between calls. A channel that failed is dropped, so that the next call starts
afresh; so is one on which this peer still shows its last certificate."""

import asyncio
import contextlib
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator, MutableMapping
from dataclasses import dataclass, field
from math import inf

import grpc

from peer.network.reach.routes import Routes
from protocol.clock import monotonic
from protocol.errors import RefusedError, UnreachableError
from protocol.identity import Endpoint, PeerId
from protocol.limits import CHANNELS_KEPT
from protocol.manifest import Manifest
from protocol.net.bandwidth import Bandwidth
from protocol.net.blobs import Patience, fetch
from protocol.net.channels import Credentials, Reachable, channel_to, translated
from protocol.net.tasks import Children
from protocol.patience import CALL_SECONDS

FORGOTTEN = 1.1
"""The factor by which a measured distance may exceed the one before. The least that was measured is a peer's distance,
since answers only ever come later than the link lets them; but a peer may move."""


@dataclass(slots=True)
class Contacts:
    """The channels of this peer, one for each peer and address."""

    manifest: Manifest
    credentials: Credentials
    objection: Callable[[PeerId], str] = lambda peer: ""
    """A function that tells why this peer does not talk to another; empty: it does."""
    bandwidth: Bandwidth = field(default_factory=Bandwidth)
    """The limits in which everything takes its turn that goes over these channels, and over those by which others call.
    """
    routes: Routes | None = None
    """The routes to peers that cannot be dialled; None: to none."""
    channels: OrderedDict[tuple[PeerId, str], tuple[bytes, grpc.aio.Channel]] = field(default_factory=OrderedDict)
    """The channels, each with the certificate that it was opened with. The first has not been used for the longest."""
    in_use: Counter[grpc.aio.Channel] = field(default_factory=Counter)
    """The number of blocks that use each channel now."""
    streams: dict[grpc.aio.Channel, PeerId] = field(default_factory=dict)
    """The channels that have one stream each."""
    closing: Children = field(default_factory=Children)

    @contextlib.asynccontextmanager
    async def to(self, peer: Reachable) -> AsyncIterator[grpc.aio.Channel]:
        """Use the channel to a peer in the block; gRPC's errors leave it as ours.

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
            at = await self._dialled(peer)
            if key not in self.channels:  # else another call was quicker
                self.channels[key] = self.credentials.chain, self._channel_to(at)
            channel = self.channels[key][1]
        self.channels.move_to_end(key)
        self.in_use[channel] += 1
        self._drop_idle()
        try:
            with self._translated(peer):
                yield channel
        except UnreachableError:
            self._drop(key, channel)
            raise
        finally:
            self.in_use[channel] -= 1
            if not self.in_use[channel]:
                del self.in_use[channel]

    @contextlib.asynccontextmanager
    async def alone(self, peer: Reachable) -> AsyncIterator[grpc.aio.Channel]:
        """Open a channel to a peer for one stream, which ends with the block. Raises as `to` does."""
        self._require_no_objection(peer)
        async with self._channel_to(await self._dialled(peer)) as channel:
            self.streams[channel] = peer.peer_id
            try:
                with self._translated(peer):
                    yield channel
            finally:
                del self.streams[channel]

    async def fetch(self, peer: Reachable, sha256: str, size: int, patience: Patience | None = None) -> bytes:
        """Fetch from a peer the bytes with this SHA-256, `size` of them.

        Raises:
            HetpeerError: what `to` and `protocol.net.blobs.fetch` raise.
        """
        async with self.to(peer) as channel:
            return await fetch(channel, self.manifest, sha256, size, self.bandwidth, patience)

    def _channel_to(self, at: Reachable) -> grpc.aio.Channel:
        return channel_to(at, self.manifest, self.credentials, self.bandwidth.window)

    async def _dialled(self, peer: Reachable) -> Reachable:
        """The endpoint that a channel to a peer dials."""
        return peer if self.routes is None else Endpoint(peer.peer_id, await self.routes.address(peer))

    @contextlib.contextmanager
    def _translated(self, peer: Reachable) -> Iterator[None]:
        """Raise gRPC's errors in the block as ours, which say on which way they came."""
        try:
            with translated(peer.address, self.manifest, self.credentials):
                yield
        except UnreachableError as error:
            if self.routes is None or not (trouble := self.routes.failed(peer)):
                raise
            raise UnreachableError(f"{error}; {trouble}") from None

    def hang_up(self, peer: PeerId) -> None:
        """End the channels to a peer, if there are any; whoever waits for an answer finds it unreachable."""
        for key in [key for key in self.channels if key[0] == peer]:
            self._drop(key, self.channels[key][1], at_once=True)
        for channel in [channel for channel, whose in self.streams.items() if whose == peer]:
            self._close(channel, None)

    def hang_up_all(self) -> None:
        """End all channels: an address of this machine is gone, and what was sent from it is never answered."""
        for key, (_, channel) in [*self.channels.items()]:
            self._drop(key, channel, at_once=True)
        for channel in [*self.streams]:
            self._close(channel, None)

    def _require_no_objection(self, peer: Reachable) -> None:
        if objection := self.objection(peer.peer_id):
            raise RefusedError(objection)

    def _drop_idle(self) -> None:
        """Drop the channel that has not been used for the longest where there are more than `CHANNELS_KEPT`."""
        idle = (key for key, (_, channel) in self.channels.items() if channel not in self.in_use)
        if len(self.channels) > CHANNELS_KEPT and (key := next(idle, None)) is not None:
            self._drop(key, self.channels[key][1])

    def _drop(self, key: tuple[PeerId, str], channel: grpc.aio.Channel, at_once: bool = False) -> None:
        if key in self.channels and self.channels[key][1] is channel:
            del self.channels[key]
            self._close(channel, None if at_once else CALL_SECONDS)  # others' calls on it may still end well

    def _close(self, channel: grpc.aio.Channel, grace: float | None) -> None:
        self.closing.spawn(channel.close(grace))

    async def close(self) -> None:
        """Hang up everywhere."""
        if self.routes is not None:
            await self.routes.close()
        self.closing.cancel()
        channels, self.channels = [channel for _, channel in self.channels.values()], OrderedDict()
        await asyncio.gather(*(channel.close(None) for channel in channels), self.closing.end(), return_exceptions=True)


@contextlib.contextmanager
def timed(channel: grpc.aio.Channel, peer: PeerId, trips: MutableMapping[PeerId, float]) -> Iterator[None]:
    """Note in `trips`, in seconds, the time of the question that is asked in this block. The first question on a
    channel is no measure: opening it takes three round trips more."""
    opened, begun = channel.get_state() is grpc.ChannelConnectivity.READY, monotonic()
    yield
    if opened:
        trips[peer] = min(monotonic() - begun, FORGOTTEN * trips.get(peer, inf))
