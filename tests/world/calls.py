"""A call of gRPC in the simulated world, as both sides see it, and as its caller does."""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import grpc

from tests.world.network import Connection

if TYPE_CHECKING:
    from tests.world.rpc import Channel, Server

WINDOW_BYTES = 1 << 20
"""What may be on its way on a stream before its reader takes it."""

EOF: Any = grpc.aio.EOF  # type: ignore[attr-defined]


def failure(code: grpc.StatusCode, details: str) -> grpc.aio.AioRpcError:
    """gRPC's error."""
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details)


class Mailbox:
    """What comes to one side of a call, in order, and how much of it was not taken yet."""

    def __init__(self) -> None:
        self.messages: deque[bytes] = deque()
        self.bytes = 0
        self.ended = False
        self.waiting: list[asyncio.Future[None]] = []

    def wake(self) -> None:
        waiting, self.waiting = self.waiting, []
        for each in waiting:
            if not each.done():
                each.set_result(None)

    async def changed(self) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self.waiting.append(waiter)
        await waiter


@dataclass(eq=False, slots=True)
class Rpc:
    """A call on its way: two mailboxes, and how it ended. Whoever waits at a mailbox is woken when it ends."""

    connection: Connection
    method: str
    metadata: tuple[tuple[str, str], ...]
    to_server: Mailbox = field(default_factory=Mailbox)
    to_client: Mailbox = field(default_factory=Mailbox)
    status: tuple[grpc.StatusCode, str] | None = None
    """As the client knows it."""
    cancelled: bool = False
    """By the client's own side."""
    handler: "asyncio.Task[None] | None" = None
    served: bool = False
    """The handler has ended, or the server has heard that nobody waits for it."""
    on_end: list[Callable[[], None]] = field(default_factory=list)

    def end(self, code: grpc.StatusCode, details: str) -> None:
        """The client hears how the call has ended."""
        if self.status is None:
            self.status = code, details
            self.to_client.ended = True
            self.to_client.wake()
            self.to_server.wake()
            for each in self.on_end:
                each()
            self.on_end.clear()

    def drop(self) -> None:
        """The server hears that nobody waits for this call."""
        self.to_server.ended = True
        self.to_server.wake()
        self.to_client.wake()
        if self.handler is not None and not self.served:
            self.served = True
            self.handler.cancel()

    def pass_on(self, from_near: bool, box: Mailbox, data: bytes) -> None:
        """Send a message; it counts against the reader's window from now on."""
        box.bytes += len(data)

        def arrive() -> None:
            box.messages.append(data)
            box.wake()

        self.connection.send(from_near, len(data), arrive)


class ClientCall(grpc.aio.StreamStreamCall, grpc.aio.UnaryStreamCall, grpc.aio.UnaryUnaryCall):  # type: ignore[type-arg, misc]
    """The caller's side of a call, whichever kind it is."""

    def __init__(self, channel: "Channel", method: str, how: "How", request: Any, metadata: Any, timeout: Any) -> None:
        self.how, self.channel = how, channel
        self.rpc: Rpc | None = None
        self.outcome: tuple[grpc.StatusCode, str] | None = None
        self._cancelled = False
        self.opened: asyncio.Future[None] = channel.loop.create_future()
        self.wrote_last = request is not None
        pairs = tuple((str(key), str(value)) for key, value in metadata or ())
        self.opening = channel.loop.create_task(self._open(method, pairs, request))
        self.opening.add_done_callback(lambda done: done.cancelled() or done.exception())
        self.timer = timeout and channel.loop.call_later(timeout, self._finish, *DEADLINE)
        channel.calls[self] = None

    async def _open(self, method: str, metadata: tuple[tuple[str, str], ...], request: Any) -> None:
        try:
            line = await self.channel.line()
        except grpc.aio.AioRpcError as error:
            self._finish(error.code(), error.details() or "")
            return
        if self.outcome is not None:
            return
        rpc = self.rpc = Rpc(line.connection, method, metadata)
        rpc.on_end.append(lambda: self._finish(*(rpc.status or DEADLINE)))
        line.calls[rpc] = None
        line.connection.send(True, 100, lambda: line.server.begin(rpc, line))
        if request is not None:
            rpc.pass_on(True, rpc.to_server, self.how.serialize(request))
            self._end_requests(rpc)
        self._set_open()

    def _end_requests(self, rpc: Rpc) -> None:
        def arrive() -> None:
            rpc.to_server.ended = True
            rpc.to_server.wake()

        rpc.connection.send(True, 0, arrive)

    def _set_open(self) -> None:
        if not self.opened.done():
            self.opened.set_result(None)

    def _finish(self, code: grpc.StatusCode, details: str) -> None:
        """How the call has ended, for the caller."""
        if self.outcome is None:
            self.outcome = code, details
            self.channel.calls.pop(self, None)
            if self.timer:
                self.timer.cancel()
            if asyncio.current_task() is not self.opening:
                self.opening.cancel()  # nobody waits for the connection any more
            if self.rpc is not None:
                rpc = self.rpc
                if rpc.status is None:  # the server is told
                    rpc.end(code, details)
                    rpc.connection.send(True, 0, rpc.drop)
                rpc.to_client.wake()
            self._set_open()

    def _raise(self) -> None:
        """Raise as gRPC does where the call has ended otherwise than well."""
        if self._cancelled:
            raise asyncio.CancelledError
        code, details = self.outcome or DEADLINE
        if code is not grpc.StatusCode.OK:
            raise failure(code, details)

    async def read(self) -> Any:
        try:
            await self.opened
            while True:
                box = self.rpc.to_client if self.rpc is not None else Mailbox()
                if box.messages and not self._cancelled:
                    data = box.messages.popleft()
                    box.bytes -= len(data)
                    box.wake()
                    return self.how.deserialize(data)
                if self.outcome is not None:
                    self._raise()
                    return EOF
                await box.changed()
        except asyncio.CancelledError:
            self.cancel()
            raise

    def __await__(self) -> Any:
        return self._answer().__await__()

    async def _answer(self) -> Any:
        answer = await self.read()
        if answer is EOF:
            return self.how.deserialize(b"")
        box = self.rpc.to_client  # type: ignore[union-attr]
        try:
            while self.outcome is None:
                await box.changed()
        except asyncio.CancelledError:
            self.cancel()
            raise
        self._raise()
        return answer

    async def write(self, message: Any) -> None:
        data = self.how.serialize(message)
        try:
            await self.opened
            while self.outcome is None and self.rpc is not None and self.rpc.to_server.bytes > WINDOW_BYTES:
                await self.rpc.to_server.changed()
        except asyncio.CancelledError:
            self.cancel()
            raise
        if self.outcome is not None or self.rpc is None:
            self._raise()
            raise asyncio.InvalidStateError("RPC already finished.")
        self.rpc.pass_on(True, self.rpc.to_server, data)

    async def done_writing(self) -> None:
        await self.opened
        if self.rpc is not None and self.outcome is None and not self.wrote_last:
            self.wrote_last = True
            self._end_requests(self.rpc)

    def cancel(self) -> bool:
        if self.outcome is not None:
            return False
        self._cancelled = True
        self._finish(grpc.StatusCode.CANCELLED, "Locally cancelled by application!")
        return True

    def cancelled(self) -> bool:
        return self._cancelled

    def done(self) -> bool:
        return self.outcome is not None

    async def code(self) -> grpc.StatusCode:
        while self.outcome is None:
            await (self.rpc.to_client.changed() if self.rpc is not None else self.opened)
        return self.outcome[0]

    async def details(self) -> str:
        await self.code()
        return (self.outcome or DEADLINE)[1]

    async def wait_for_connection(self) -> None:
        await self.opened
        if self.rpc is None:
            self._raise()

    async def initial_metadata(self) -> Any:
        return grpc.aio.Metadata()

    async def trailing_metadata(self) -> Any:
        return grpc.aio.Metadata()

    def time_remaining(self) -> float | None:
        return None

    def add_done_callback(self, callback: Any) -> None:
        raise NotImplementedError

    def __aiter__(self) -> Any:
        async def each() -> Any:
            while (message := await self.read()) is not EOF:
                yield message

        return each()


DEADLINE = (grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")


@dataclass(frozen=True, slots=True)
class How:
    """How the messages of a method become bytes."""

    serialize: Callable[[Any], bytes]
    deserialize: Callable[[bytes], Any]


@dataclass(eq=False, slots=True)
class Line:
    """An open connection of a channel to a server, and the calls on it."""

    connection: Connection
    server: "Server"
    caller_chain: bytes
    caller: str
    """As gRPC names it."""
    calls: dict[Rpc, None] = field(default_factory=dict)
    alive: bool = True
