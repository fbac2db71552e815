"""One bidirectional gRPC stream as a pair of queues, the same from the side that calls and the side that serves."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Generic, Protocol, TypeVar

import grpc
from google.protobuf.message import Message

from protocol.errors import FormatError, HetpeerError, LostMemberError, PeerError
from protocol.identity import PeerId
from protocol.net.bandwidth import Bandwidth
from protocol.net.channels import EOF
from protocol.net.lenient import NO_MESSAGE
from protocol.net.tasks import Children
from protocol.patience import PARTING_SECONDS, SILENT_BEATS, STREAM_HEARTBEAT_SECONDS

BROKEN_CALL_ERRORS = (grpc.aio.AioRpcError, grpc.aio.BaseError, asyncio.InvalidStateError)
"""The errors that gRPC raises on a stream that the other side has ended: one of three, as the moment falls."""

Outgoing = TypeVar("Outgoing", bound=Message)
Received = TypeVar("Received", bound=Message)


class BreachError(PeerError):
    """A peer broke the protocol, and it is known which: `peer`."""

    def __init__(self, peer: PeerId, what: str) -> None:
        super().__init__(what)
        self.peer = peer


class HungUpError(LostMemberError):
    """The other side has ended the stream: it does not want it any longer, or leaves. gRPC's server now and then
    reports a caller so that was killed."""


class Call(Protocol):
    """The operations that both ends of a gRPC stream have."""

    def read(self) -> Coroutine[Any, Any, Any]: ...
    def write(self, message: Any) -> Coroutine[Any, Any, None]: ...


class Duplex(Generic[Outgoing, Received]):
    """A conversation with one peer.

    Writing never waits for the other side to read: two stages that both write would wait for each other.
    Both queues stay short because the protocol above never runs ahead by more than its schedule; a peer
    that does is cut off, so that it cannot fill our memory.
    """

    def __init__(
        self,
        peer: PeerId,
        with_whom: str,
        most_pending: int,
        beat: Outgoing | None = None,
        bandwidth: Bandwidth | None = None,
        aside: Callable[[Received], bool] = lambda message: False,
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        """`with_whom` names `peer` in errors; `most_pending` messages may wait to be read. With `beat`, an empty
        message, both sides give signs of life, and silence is the end. With `bandwidth`, messages are frames that take
        their turn in it. `aside` takes messages that are beside the protocol's order, and returns whether one is;
        `on_end` is called when the conversation has ended."""
        self.peer = peer
        self.with_whom = with_whom
        self.most_pending = most_pending
        self.beat = beat
        self.bandwidth = bandwidth
        self.bytes_sent = 0
        self.end: HetpeerError | None = None
        """The reason why the conversation has ended; None: it has not."""
        self._aside = aside
        self._on_end = on_end
        self._outgoing: asyncio.Queue[Outgoing | None] = asyncio.Queue()
        self._incoming: asyncio.Queue[Received | HetpeerError] = asyncio.Queue()
        self._hung_up = asyncio.Event()
        self._is_open = False
        """Whether a message has gone over the stream, either way."""
        self._tasks = Children()

    @property
    def ended(self) -> bool:
        """Whether the conversation has ended."""
        return self.end is not None

    @property
    def unsent(self) -> int:
        """The number of messages that wait to be written."""
        return self._outgoing.qsize()

    def take_bytes_sent(self) -> int:
        """Return the bytes sent since the last call."""
        sent, self.bytes_sent = self.bytes_sent, 0
        return sent

    def breach(self, what: str) -> BreachError:
        """The error of the other side's breach of the protocol: it `what`."""
        return BreachError(self.peer, f"{self.with_whom} {what}")

    @contextlib.contextmanager
    def blamed(self) -> Iterator[None]:
        """Blame the other side for what does not parse in the block.

        Raises:
            BreachError: instead of a FormatError.
        """
        try:
            yield
        except FormatError as error:
            raise self.breach(f"sent what cannot be: {error}") from error

    def send(self, message: Outgoing) -> None:
        """Queue a message."""
        self.bytes_sent += message.ByteSize()
        self._outgoing.put_nowait(message)

    async def receive(self) -> Received:
        """Wait for the next message.

        Raises:
            LostMemberError: the other side has gone.
            BreachError: it ran ahead of the protocol and was cut off.
        """
        message = await self._incoming.get()
        if isinstance(message, HetpeerError):
            self._incoming.put_nowait(message)  # the end stays the end
            raise message
        return message

    def close(self) -> None:
        """Send nothing more; what is queued still goes out."""
        self._outgoing.put_nowait(None)

    def abort(self, reason: str) -> None:
        """End the conversation from our side, at once: whoever waits for a message is told that the member is gone, and
        what is queued is dropped. The stream itself ends in order, so that the other side knows that it was meant."""
        while not self._outgoing.empty():
            self._outgoing.get_nowait()
        self._outgoing.put_nowait(None)
        self._end(LostMemberError(reason))
        self._hung_up.set()

    async def carry(self, call: Call) -> None:
        """Move messages between the queues and a gRPC stream until both sides have ended it, or this one has hung up. A
        side that does not read, or does not end the stream in its turn, keeps nobody."""
        reader, writer = self._tasks.spawn(self._read(call)), self._tasks.spawn(self._write(call))
        hung_up = self._tasks.spawn(self._hung_up.wait())
        try:
            await asyncio.wait((writer, hung_up), return_when=asyncio.FIRST_COMPLETED)
            if isinstance(call, grpc.aio.StreamStreamCall):
                if self._is_open or not self._hung_up.is_set():  # a call cut off in mid-air reads as a lost connection
                    await asyncio.wait((reader, writer), timeout=PARTING_SECONDS)
            elif writer.done() and writer.result():
                await asyncio.wait((reader, hung_up), timeout=PARTING_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._tasks.cancel()
            self._end(LostMemberError(f"{self.with_whom} is gone"))
            await self._tasks.end()

    async def _write(self, call: Call) -> bool:
        """Write what is queued, until there is nothing more to say. Returns whether the stream broke before."""
        try:
            while (message := await self._next()) is not None:
                await self._put(call, message)
                self._is_open = True
            if isinstance(call, grpc.aio.StreamStreamCall):
                await call.done_writing()
        except (*BROKEN_CALL_ERRORS, asyncio.CancelledError):
            return True
        return False

    async def _put(self, call: Call, message: Outgoing) -> None:
        """Write a message when it is its turn."""
        if self.bandwidth is None:
            await call.write(message)
            return
        with self.bandwidth.up.sending():
            await self.bandwidth.send_frame(message.ByteSize())
            await call.write(message)

    async def _next(self) -> Outgoing | None:
        """Wait for the message to write next: a sign of life when there is nothing to say, None at the end."""
        if self.beat is None:
            return await self._outgoing.get()
        try:
            async with asyncio.timeout(STREAM_HEARTBEAT_SECONDS):
                return await self._outgoing.get()
        except TimeoutError:
            return self.beat

    async def _read(self, call: Call) -> None:
        end: HetpeerError = LostMemberError(f"{self.with_whom} is gone")
        try:
            while (message := await self._read_message(call)) is not EOF:
                self._is_open = True
                if message is NO_MESSAGE:
                    end = self.breach("sent bytes that are no message")
                    break
                if self.ended or self._aside(message) or (self.beat is not None and not message.ByteSize()):
                    continue
                if self._incoming.qsize() >= self.most_pending:
                    end = self.breach(f"ran ahead of the protocol by {self.most_pending} messages")
                    break
                self._incoming.put_nowait(message)
                if self.bandwidth is not None:
                    await self.bandwidth.take_frame(message.ByteSize())
            else:
                end = HungUpError(f"{self.with_whom} has hung up")
        except BROKEN_CALL_ERRORS as error:  # however a stream breaks, the member is gone
            if isinstance(error, grpc.aio.AioRpcError) and error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
                end = self.breach("sent a message that is larger than any")
        except TimeoutError:
            end = LostMemberError(
                f"{self.with_whom} has been silent for {SILENT_BEATS * STREAM_HEARTBEAT_SECONDS:.0f} s"
            )
        finally:
            self._end(end)

    async def _read_message(self, call: Call) -> Any:
        if self.beat is None:
            return await call.read()
        reading = self._tasks.spawn(call.read())
        reading.add_done_callback(lambda done: done.cancelled() or done.exception())  # also if nobody waits any longer
        try:
            for _ in range(SILENT_BEATS):
                await asyncio.wait((reading,), timeout=STREAM_HEARTBEAT_SECONDS)
                if reading.done():
                    return reading.result()
            raise TimeoutError
        finally:
            reading.cancel()

    def _end(self, reason: HetpeerError) -> None:
        if self.end is None:
            self.end = reason
            self._incoming.put_nowait(reason)
            self._outgoing.put_nowait(None)
            self._on_end()
