"""gRPC in the simulated world: the parts of `grpc.aio` that the product uses, over simulated connections.

Messages are serialised as on the wire. Certificates are the product's own: a connection stands if each side's is of the
root that the other trusts, has not ended, and names who is meant. Errors, codes and the order of things are gRPC's.
"""

import asyncio
import inspect
from collections import deque
from collections.abc import Callable
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import grpc
from cryptography import x509
from cryptography.exceptions import InvalidSignature

from tests.world.loop import HOST
from tests.world.network import CONNECT_SECONDS, Connection, End, Network

WINDOW_BYTES = 1 << 20
"""What may be on its way on a stream before its reader takes it."""

EOF: Any = grpc.aio.EOF  # type: ignore[attr-defined]


# Credentials


@dataclass(frozen=True, slots=True)
class Calling:
    """`grpc.ssl_channel_credentials`."""

    root: bytes | None = None
    key: bytes | None = None
    chain: bytes | None = None


@dataclass(frozen=True, slots=True)
class Shown:
    """`grpc.ssl_server_certificate_configuration`."""

    pairs: Any
    root: bytes | None = None


@dataclass(slots=True)
class Serving:
    """`grpc.ssl_server_credentials` and `grpc.dynamic_ssl_server_credentials`."""

    shown: Shown
    newest: Callable[[], Shown | None] = lambda: None
    wants_certificate: bool = False

    def chain(self) -> bytes:
        self.shown = self.newest() or self.shown
        return bytes(self.shown.pairs[0][1])


def serving(pairs: Any, root: bytes | None = None, require_client_auth: bool = False) -> Serving:
    return Serving(Shown(pairs, root), wants_certificate=require_client_auth)


def dynamic(initial: Shown, newest: Callable[[], Shown | None], require_client_authentication: bool = False) -> Serving:
    return Serving(initial, newest, require_client_authentication)


class Verifier:
    """Checks certificates against roots; what was found once is known."""

    def __init__(self) -> None:
        self.known: dict[tuple[bytes, bytes], tuple[str, float, str]] = {}

    def objection(self, chain: bytes, root: bytes, now: float) -> str:
        """Why a chain is not believed; empty: it is."""
        reason, ends, _ = self._read(chain, root)
        return reason or ("certificate has expired" if ends < now else "")

    def name(self, chain: bytes, root: bytes) -> str:
        """Whom a chain names."""
        return self._read(chain, root)[2]

    def _read(self, chain: bytes, root: bytes) -> tuple[str, float, str]:
        key = (chain, root)
        if key not in self.known:
            shown, trusted = x509.load_pem_x509_certificates(chain), x509.load_pem_x509_certificates(root)
            links = [*shown, trusted[0]] if shown[-1] != trusted[0] else shown
            reason = ""
            try:
                for one, other in pairwise(links):
                    one.verify_directly_issued_by(other)
            except (ValueError, TypeError, InvalidSignature):
                reason = "CERTIFICATE_VERIFY_FAILED"
            ends = min(each.not_valid_after_utc.timestamp() for each in links[:-1] or links)
            names = shown[0].extensions.get_extension_for_class(x509.SubjectAlternativeName).value
            self.known[key] = reason, ends, names.get_values_for_type(x509.DNSName)[0]
        return self.known[key]


# A call, as both sides see it


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


# The side that calls


class Channel(grpc.aio.Channel):
    """A channel to one address, which connects when it is first used, and again after it broke."""

    def __init__(self, grid: "Grid", address: str, credentials: Calling, options: Any) -> None:
        self.grid, self.address, self.credentials = grid, address, credentials
        self.name = dict(options or ()).get("grpc.ssl_target_name_override", "")
        self.loop = asyncio.get_running_loop()
        self.process = HOST.get()
        self.connecting: asyncio.Task[Line] | None = None
        self.open_line: Line | None = None
        self.closed = False
        self.calls: dict[ClientCall, None] = {}

    async def line(self) -> Line:
        """The connection, as soon as it stands.

        Raises:
            AioRpcError: it does not come about.
        """
        if self.open_line is not None and self.open_line.alive:
            return self.open_line
        if self.connecting is None or self.connecting.done():
            self.connecting = self.loop.create_task(self._connect())
            self.connecting.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(self.connecting)

    async def _connect(self) -> Line:
        network, here = self.grid.network, self.process.machine
        machine, server = network.listener(self.address)
        if machine is None or not network.reachable(here, machine):
            await asyncio.sleep(CONNECT_SECONDS)
            raise _unconnected(self.address, "Timeout occurred: FD Shutdown")
        trip = 2 * network.latency(here, machine)
        await asyncio.sleep(trip)
        if server is None or server.process.dead:
            raise _unconnected(self.address, "Connection refused")
        await asyncio.sleep(2 * trip)
        if server.process.dead or machine.listeners.get(int(self.address.rpartition(":")[2])) is not server:
            raise _unconnected(self.address, "Socket closed")
        while server.process.held is not None:  # its machine takes the connection, but it does not shake hands
            await asyncio.sleep(1.0)
        if reason := self._objection(server):
            raise _unconnected(self.address, reason)
        near, far = End(self.process), End(server.process, owner=server)
        connection = Connection(network, near, far)
        port = next(here.ports)
        line = Line(connection, server, self.credentials.chain or b"", f"ipv4:{here.address}:{port}")

        def lost(reason: str) -> None:
            line.alive = False
            for rpc in [*line.calls]:
                rpc.end(grpc.StatusCode.UNAVAILABLE, reason)

        def gone(reason: str) -> None:
            for rpc in [*line.calls]:
                rpc.drop()

        near.broken, far.broken = lost, gone
        network.connections[connection] = None
        self.open_line = line
        return line

    def _objection(self, server: "Server") -> str:
        """Why no handshake comes about; empty: it does."""
        grid, shown = self.grid, server.credentials
        chain, now = shown.chain(), self.grid.wall(self.process)
        if reason := grid.verifier.objection(chain, self.credentials.root or b"", now):
            return f"Ssl handshake failed: {reason}"
        if self.name and grid.verifier.name(chain, self.credentials.root or b"") != self.name:
            return "Hostname Verification Check failed."
        if not shown.wants_certificate:
            return ""
        if not self.credentials.chain or grid.verifier.objection(
            self.credentials.chain, shown.shown.root or b"", grid.wall(server.process)
        ):
            return "Socket closed"
        return ""

    def _make(self, method: str, serializer: Any, deserializer: Any, is_unary_request: bool) -> Any:
        how = How(serializer or bytes, deserializer or bytes)

        def call(request: Any = None, timeout: Any = None, metadata: Any = None, **_: Any) -> ClientCall:
            if self.closed:
                raise grpc.aio.UsageError("Channel is closed.")
            assert (request is not None) == is_unary_request
            return ClientCall(self, method, how, request, metadata, timeout)

        return call

    def unary_unary(
        self, method: str, request_serializer: Any = None, response_deserializer: Any = None, **_: Any
    ) -> Any:
        return self._make(method, request_serializer, response_deserializer, True)

    unary_stream = unary_unary

    def stream_unary(
        self, method: str, request_serializer: Any = None, response_deserializer: Any = None, **_: Any
    ) -> Any:
        return self._make(method, request_serializer, response_deserializer, False)

    stream_stream = stream_unary

    async def __aenter__(self) -> "Channel":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close(None)

    async def close(self, grace: float | None = None) -> None:
        if self.closed:
            return
        self.closed = True
        until = self.loop.time() + (grace or 0.0)
        while self.calls and self.loop.time() < until:
            await asyncio.sleep(min(0.05, until - self.loop.time()))
        for call in [*self.calls]:
            call.cancel()
        if self.connecting is not None:
            self.connecting.cancel()
        if self.open_line is not None and self.open_line.alive:
            self.open_line.alive = False
            self.open_line.connection.close(self.open_line.connection.near, "Socket closed")

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        alive = self.open_line is not None and self.open_line.alive
        return grpc.ChannelConnectivity.READY if alive else grpc.ChannelConnectivity.IDLE

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        raise NotImplementedError

    async def channel_ready(self) -> None:
        await self.line()


def _unconnected(address: str, reason: str) -> grpc.aio.AioRpcError:
    said = f"failed to connect to all addresses; last error: UNKNOWN: ipv4:{address}: {reason}"
    return failure(grpc.StatusCode.UNAVAILABLE, said)


# The side that answers


class ServerContext:
    """What a handler knows of its call."""

    def __init__(self, rpc: Rpc, line: Line, how: How) -> None:
        self.rpc, self.line, self.how = rpc, line, how
        self.ended: tuple[grpc.StatusCode, str] | None = None

    def auth_context(self) -> dict[str, list[bytes]]:
        chain = self.line.caller_chain
        return {"x509_pem_cert": [chain]} if self.line.server.credentials.wants_certificate and chain else {}

    def peer(self) -> str:
        return self.line.caller

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return self.rpc.metadata

    async def read(self) -> Any:
        box = self.rpc.to_server
        while not box.messages:
            if box.ended:
                return EOF
            await box.changed()
        data = box.messages.popleft()
        box.bytes -= len(data)
        box.wake()
        return self.how.deserialize(data)

    async def write(self, message: Any) -> None:
        data, box = self.how.serialize(message), self.rpc.to_client
        while box.bytes > WINDOW_BYTES and not self.rpc.served:
            await box.changed()
        if self.rpc.served or self.ended:
            raise asyncio.InvalidStateError("RPC already finished.")
        self.rpc.pass_on(False, box, data)

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing_metadata: Any = ()) -> None:
        self.ended = code, details
        raise grpc.aio.AbortError("Locally aborted.")

    def cancelled(self) -> bool:
        return self.rpc.served

    def done(self) -> bool:
        return self.rpc.served

    def set_code(self, code: grpc.StatusCode) -> None:
        self.ended = code, ""

    def set_details(self, details: str) -> None:
        self.ended = (self.ended or (grpc.StatusCode.UNKNOWN, ""))[0], details


@dataclass(frozen=True, slots=True)
class Details:
    """`grpc.HandlerCallDetails`."""

    method: str
    invocation_metadata: Any


class Server:
    """`grpc.aio.Server`."""

    def __init__(self, grid: "Grid", interceptors: Any) -> None:
        self.grid, self.interceptors = grid, list(interceptors or ())
        self.process = HOST.get()
        self.context: Context = copy_context()
        self.handlers: dict[str, Any] = {}
        self.credentials: Serving = Serving(Shown(()))
        self.ports: list[int] = []
        self.calls: dict[Rpc, None] = {}
        self.started = self.stopped = False

    def add_generic_rpc_handlers(self, handlers: Any) -> None:
        """What is served, comes by `add_registered_method_handlers`."""

    def add_registered_method_handlers(self, service: str, handlers: Any) -> None:
        for name, handler in handlers.items():
            self.handlers[f"/{service}/{name}"] = handler

    def add_secure_port(self, address: str, credentials: Serving) -> int:
        host, _, port = address.rpartition(":")
        machine = self.process.machine
        if host not in (machine.address, "127.0.0.1", "0.0.0.0"):
            raise RuntimeError(f"Failed to bind to address {address}")
        bound = int(port) or next(machine.ports)
        if bound in machine.listeners:
            raise RuntimeError(f"Failed to bind to address {address}")
        self.credentials = credentials
        self.ports.append(bound)
        machine.listeners[bound] = self
        return bound

    async def start(self) -> None:
        self.started = True

    def begin(self, rpc: Rpc, line: Line) -> None:
        """A call has come."""
        if self.stopped or self.process.dead:
            rpc.connection.send(False, 0, lambda: rpc.end(grpc.StatusCode.UNAVAILABLE, "Cancelling all calls"))
            return
        self.calls[rpc] = None
        loop = self.grid.network.loop
        rpc.handler = loop.create_task(self._serve(rpc, line), context=self.context.copy())

    async def _serve(self, rpc: Rpc, line: Line) -> None:
        context: ServerContext | None = None
        code, details = grpc.StatusCode.OK, ""
        try:
            handler = await self._handler(Details(rpc.method, rpc.metadata))
            if handler is None:
                code, details = grpc.StatusCode.UNIMPLEMENTED, "Method not found!"
            else:
                how = How(handler.response_serializer or bytes, handler.request_deserializer or bytes)
                context = ServerContext(rpc, line, how)
                await _answer(handler, context)
        except grpc.aio.AbortError:
            pass
        except asyncio.CancelledError:
            code, details = grpc.StatusCode.CANCELLED, "Cancelled"
        except Exception as error:  # as gRPC does: the caller hears of it
            self.grid.failed(self.process, error)
            code, details = grpc.StatusCode.UNKNOWN, f"Unexpected {type(error)}: {error}"
        finally:
            rpc.served = True
            self.calls.pop(rpc, None)
            line.calls.pop(rpc, None)
            if context is not None and context.ended is not None:
                code, details = context.ended
            rpc.to_client.wake()
            rpc.connection.send(False, len(details), lambda: rpc.end(code, details))

    async def _handler(self, details: Details) -> Any:
        async def of_server(details: Details) -> Any:
            return self.handlers.get(details.method)

        chain = of_server
        for interceptor in reversed(self.interceptors):
            chain = _before(interceptor, chain)
        return await chain(details)

    async def stop(self, grace: float | None) -> None:
        if self.stopped:
            return
        self.stopped = True
        for port in self.ports:
            if self.process.machine.listeners.get(port) is self:
                del self.process.machine.listeners[port]
        loop = asyncio.get_running_loop()
        until = loop.time() + (grace or 0.0)
        while self.calls and loop.time() < until:
            await asyncio.sleep(min(0.05, until - loop.time()))
        ending = [rpc.handler for rpc in self.calls if rpc.handler is not None]
        for task in ending:
            task.cancel()
        if ending:
            await asyncio.wait(ending)
        for connection in [*self.grid.network.connections]:
            if connection.far.owner is self:
                connection.close(connection.far, "Socket closed")

    async def wait_for_termination(self, timeout: float | None = None) -> bool:
        raise NotImplementedError


def _before(interceptor: Any, chain: Any) -> Any:
    async def intercepted(details: Details) -> Any:
        return await interceptor.intercept_service(chain, details)

    return intercepted


async def _answer(handler: Any, context: ServerContext) -> None:
    """Let a handler answer its call."""
    behaviour = handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
    request = _requests(context) if handler.request_streaming else await context.read()
    if request is EOF:
        request = context.how.deserialize(b"")
    if inspect.isasyncgenfunction(behaviour):
        async for message in behaviour(request, context):
            await context.write(message)
        return
    answer = await behaviour(request, context)
    if not handler.response_streaming and context.ended is None:
        await context.write(answer)


async def _requests(context: ServerContext) -> Any:
    while (message := await context.read()) is not EOF:
        yield message


class Grid:
    """All of gRPC in a world: what the functions of the `grpc` module make there."""

    def __init__(
        self, network: Network, wall: Callable[[Any], float], failed: Callable[[Any, BaseException], None]
    ) -> None:
        self.network, self.wall, self.failed = network, wall, failed
        self.verifier = Verifier()

    def server(self, options: Any = None, interceptors: Any = None, **_: Any) -> Server:
        return Server(self, interceptors)

    def channel(self, target: str, credentials: Calling, options: Any = None, **_: Any) -> Channel:
        return Channel(self, target, credentials, options)


def is_of_grpc(task: Any) -> bool:
    """Whether a task stands for what gRPC does by itself, on threads of its own: it opens a connection for a call that
    has been given up already, say."""
    return task.get_coro().cr_code.co_filename == __file__
