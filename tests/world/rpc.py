"""gRPC in the simulated world: the parts of `grpc.aio` that the product uses, over simulated connections.

Messages are serialised as on the wire. Errors, codes and the order of things are gRPC's.
"""

import asyncio
import inspect
from collections.abc import Callable
from contextvars import Context, copy_context
from dataclasses import dataclass
from typing import Any

import grpc

from tests.world.calls import EOF, WINDOW_BYTES, ClientCall, How, Line, Rpc, failure
from tests.world.certificates import Calling, Serving, Shown, Verifier
from tests.world.loop import HOST
from tests.world.network import AGAIN_AFTER, CONNECT_SECONDS, Connection, End, Network

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
        began = self.loop.time()
        for after in (*AGAIN_AFTER, CONNECT_SECONDS):
            machine, server = network.listener(self.address)
            if machine is not None and network.reachable(here, machine):
                break
            await asyncio.sleep(began + after - self.loop.time())
        else:
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
