"""Channels to other peers, kept open between calls. One that failed is dropped, so the next call starts afresh."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import grpc

from protocol.channels import options, translated
from protocol.errors import UnreachableError
from protocol.limits import CALL_SECONDS
from protocol.manifest import Manifest


@dataclass(slots=True)
class Contacts:
    """One channel for each address."""

    manifest: Manifest
    channels: dict[str, grpc.aio.Channel] = field(default_factory=dict)
    closing: set[asyncio.Task[None]] = field(default_factory=set)

    @contextlib.asynccontextmanager
    async def to(self, address: str) -> AsyncIterator[grpc.aio.Channel]:
        """The channel to `host:port`; gRPC's errors leave it as ours.

        Raises:
            UnreachableError, RefusedError, ManifestError, PeerError: what the calls inside ran into.
        """
        channel = self.channels.get(address)
        if channel is None:
            channel = self.channels[address] = grpc.aio.insecure_channel(address, options=options(self.manifest))
        try:
            with translated(address, self.manifest):
                yield channel
        except UnreachableError:
            if self.channels.get(address) is channel:
                del self.channels[address]
                task = asyncio.create_task(channel.close(CALL_SECONDS))  # others' calls on it may still end well
                self.closing.add(task)
                task.add_done_callback(self.closing.discard)
            raise

    async def close(self) -> None:
        """Hang up everywhere."""
        for task in self.closing:
            task.cancel()
        channels, self.channels = list(self.channels.values()), {}
        await asyncio.gather(*(channel.close(None) for channel in channels), *self.closing, return_exceptions=True)
