"""One bidirectional gRPC stream as a pair of queues, the same from the side that calls and the side that serves."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Generic, Protocol, TypeVar

import grpc
from google.protobuf.message import Message

from protocol.channels import EOF
from protocol.errors import HetpeerError, LostMemberError, PeerError

BROKEN = (grpc.aio.AioRpcError, grpc.aio.BaseError, asyncio.InvalidStateError)
"""What gRPC raises on a stream that the other side has ended: one of three, as the moment falls."""

BEAT_SECONDS = 1.0
"""How often a stream that is watched gives a sign of life."""

SILENCE_SECONDS = 4.0
"""Without one for so long, the other side is gone: stopped, or cut off."""

Outgoing = TypeVar("Outgoing", bound=Message)
Incoming = TypeVar("Incoming", bound=Message)


class Call(Protocol):
    """What both ends of a gRPC stream can do."""

    def read(self) -> Awaitable[Any]: ...
    def write(self, message: Any) -> Awaitable[None]: ...


class Duplex(Generic[Outgoing, Incoming]):
    """A conversation with one peer.

    Writing never waits for the other side to read: two stages that both write would wait for each other.
    Both queues stay short because the protocol above never runs ahead by more than its schedule; a peer
    that does is cut off, so that it cannot fill our memory.
    """

    def __init__(self, with_whom: str, most_pending: int, beat: Outgoing | None = None) -> None:
        """`with_whom` names the peer in errors; `most_pending` messages may wait to be read. With `beat`, an empty
        message, both sides give signs of life, and silence is the end."""
        self.with_whom = with_whom
        self.most_pending = most_pending
        self.beat = beat
        self.bytes_sent = 0
        self.ended = False
        self.on_message: Callable[[Incoming | HetpeerError], None] = lambda message: None
        """Is told of every message, and of the end, as it arrives, before anybody receives it."""
        self._outgoing: asyncio.Queue[Outgoing | None] = asyncio.Queue()
        self._incoming: asyncio.Queue[Incoming | HetpeerError] = asyncio.Queue()

    def send(self, message: Outgoing) -> None:
        """Queue a message."""
        self.bytes_sent += message.ByteSize()
        self._outgoing.put_nowait(message)

    async def receive(self) -> Incoming:
        """Wait for the next message.

        Raises:
            LostMemberError: the other side has gone.
            PeerError: it ran ahead of the protocol and was cut off.
        """
        message = await self._incoming.get()
        if isinstance(message, HetpeerError):
            self._incoming.put_nowait(message)  # the end stays the end
            raise message
        return message

    def close(self) -> None:
        """Say nothing more; what is queued still goes out."""
        self._outgoing.put_nowait(None)

    def abort(self, reason: str) -> None:
        """End it from our side: who waits for a message is told that the member is gone."""
        self._end(LostMemberError(reason))

    async def carry(self, call: Call) -> None:
        """Move messages between the queues and a gRPC stream until both sides have ended it."""
        reader = asyncio.create_task(self._read(call))
        try:
            while (message := await self._next()) is not None:
                await call.write(message)
            if isinstance(call, grpc.aio.StreamStreamCall):
                await call.done_writing()
                await reader
        except BROKEN:
            await reader
        finally:
            reader.cancel()
            self._end(LostMemberError(f"{self.with_whom} is gone"))

    async def _next(self) -> Outgoing | None:
        """What to write next; a sign of life when there is nothing to say."""
        if self.beat is None:
            return await self._outgoing.get()
        try:
            return await asyncio.wait_for(self._outgoing.get(), BEAT_SECONDS)
        except TimeoutError:
            return self.beat

    async def _read(self, call: Call) -> None:
        end: HetpeerError = LostMemberError(f"{self.with_whom} is gone")
        try:
            while (message := await self._heard(call)) is not EOF:
                if self.beat is not None and not message.ByteSize():
                    continue
                if self._incoming.qsize() >= self.most_pending:
                    end = PeerError(f"{self.with_whom} ran ahead of the protocol by {self.most_pending} messages")
                    break
                self._incoming.put_nowait(message)
                self.on_message(message)
        except BROKEN:
            pass  # however a stream breaks, the member is gone
        except TimeoutError:
            end = LostMemberError(f"{self.with_whom} has been silent for {SILENCE_SECONDS:.0f} s")
        finally:
            self._end(end)

    async def _heard(self, call: Call) -> Any:
        if self.beat is None:
            return await call.read()
        return await asyncio.wait_for(call.read(), SILENCE_SECONDS)

    def _end(self, reason: HetpeerError) -> None:
        if not self.ended:
            self.ended = True
            self._incoming.put_nowait(reason)
            self._outgoing.put_nowait(None)
            self.on_message(reason)
