"""The ways by which others reach this peer, set up once it listens."""

from collections.abc import Sequence
from dataclasses import dataclass

from peer.network.bans import Bans
from peer.network.discovery import Discovery
from peer.network.reach.reach import Reach
from peer.network.reach.relayed import Hidden
from peer.telemetry.events import Listener
from protocol.net.bandwidth import Bandwidth
from protocol.net.relay import Relay
from protocol.net.streams import Streams


@dataclass(slots=True)
class Ways:
    """`hidden` is there if others cannot dial this peer, `relay` if it carries streams for those."""

    streams: Streams
    hidden: Hidden | None
    relay: Relay | None

    async def open(self) -> None:
        """Begin to be reached, and to relay; the gRPC server is up."""
        if self.relay is not None:
            await self.relay.open()
        if self.hidden is not None:
            await self.hidden.begin()

    async def keep(self) -> None:
        """Be reached for as long as this peer lives."""
        if self.hidden is not None:
            await self.hidden.keep()


def ways(
    reach: Reach,
    port: int,
    streams: Streams,
    discovery: Discovery,
    bandwidth: Bandwidth,
    bans: Bans,
    first: Sequence[str],
    emit: Listener,
) -> Ways:
    """The ways to a peer that listens at `port`, and knows the operator's nodes at the libp2p addresses `first`."""
    hidden = Hidden(streams, discovery, reach.here, port, first, emit, bans.objection) if reach.hidden else None
    relays = discovery.record.relays

    async def pay(count: int) -> None:
        """What is carried for others comes in and goes out, and gives way like all bulk."""
        await bandwidth.take(count)
        await bandwidth.send(count)

    relay = Relay(streams, discovery.signer.authority, bans.objection, pay) if relays else None
    return Ways(streams, hidden, relay)
