"""The gate of a public port: connections are counted, by address and in all, before the server behind hears of them.

gRPC and libp2p do not count connections by address, and each connection may hold messages that are half sent. So their
servers listen on this machine alone, and the gate carries bytes between each caller and its server, on the loop of the
process. What may connect, and who makes way, is decided in `protocol.net.connection_limits`.

gRPC listens on a socket in a folder that only this user may enter, and names a caller there by the path that the gate's
end is bound to: so the gate can say which address that is.
"""

import asyncio
import itertools
import os
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast
from urllib.parse import unquote

import grpc

from protocol import descriptors
from protocol.addresses import LOOPBACK, join_address
from protocol.clock import monotonic
from protocol.errors import ResourceError
from protocol.identity import PeerId
from protocol.net.channels import listen
from protocol.net.connection_limits import Connection, ConnectionLimits, ConnectionTable
from protocol.net.ports import listening_socket
from protocol.net.socket_folder import socket_folder
from protocol.net.tasks import Children

FORWARDED_BYTES = 256 * 1024
"""The largest number of bytes that are carried at once."""

HANDSHAKE_BYTES = 4096
"""The bytes that are read of a connection before it is forwarded: enough for the first message of a handshake."""

UNWRITTEN_BYTES = 64 * 1024
"""The bytes that may wait to be written to one end before no more are read from the other."""

BACKLOG = 1024
"""The connections that the system holds before they are accepted."""

EXPIRY_SECONDS = 1.0
"""The interval at which the gate looks for connections whose time is over."""

_piece = memoryview(bytearray(FORWARDED_BYTES))
"""Read into by one connection at a time: what is read is passed on before the loop reads again."""

_numbers = itertools.count()


class _End(asyncio.BufferedProtocol):
    """One end of a connection: what it receives goes to the other end, no faster than that takes it."""

    transport: asyncio.Transport
    other: "_End | None" = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is none, and has all of it
        with suppress(OSError):  # it is no TCP socket, or has gone already
            self.transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.transport.set_write_buffer_limits(high=UNWRITTEN_BYTES)

    def get_buffer(self, sizehint: int) -> memoryview:
        return _piece

    def buffer_updated(self, nbytes: int) -> None:
        if self.other is not None and not self.other.transport.is_closing():
            self.other.transport.write(bytes(_piece[:nbytes]))

    def pause_writing(self) -> None:
        if self.other is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None and not self.other.transport.is_closing():
            self.other.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.other is not None:
            self.other.transport.close()  # what was written to it before still goes


class _Inside(_End):
    """The end at the server behind, which knows it by `path`; an empty one where the server is at a port."""

    def __init__(self, caller: "_Caller", path: str) -> None:
        self.caller, self.other, self.path = caller, caller, path

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if self.caller.transport.is_closing():
            self.transport.abort()
            return
        self.caller.other = self
        self.transport.write(bytes(self.caller.first))
        self.caller.first.clear()
        self.caller.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.caller.gate.callers.pop(self.path, None)


class _Caller(_End):
    """The end at the caller. Until it is forwarded, its first bytes wait here."""

    def __init__(self, gate: "Gate") -> None:
        self.gate = gate
        self.first = bytearray()
        self.connection = Connection("")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        host, port = (transport.get_extra_info("peername") or ("", 0))[:2]  # without one, it has gone already
        self.connection, self.name = Connection(host), caller_at(host, port)
        if self.gate.closed or descriptors.is_reserved(transport.get_extra_info("socket").fileno()):
            self.transport.abort()
        else:
            self.gate.arrive(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return _piece if self.other is not None else _piece[:HANDSHAKE_BYTES]

    def buffer_updated(self, nbytes: int) -> None:
        if self.other is not None:
            super().buffer_updated(nbytes)
            return
        self.first += _piece[:nbytes]
        self.transport.pause_reading()
        self.gate.speak(self)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.gate.leave(self)


@dataclass(slots=True)
class Gate:
    """The gate of one public port, on one host or several. It is bound, and takes connections from `serve` or
    `forward_to` on."""

    listening: list[socket.socket]
    table: ConnectionTable
    clock: Callable[[], float] = monotonic
    target: Path | int = 0
    """The path, or the port on loopback, at which the server behind listens."""
    ends: dict[Connection, _Caller] = field(default_factory=dict)
    callers: dict[str, _Caller] = field(default_factory=dict)
    """The callers of forwarded connections, by the path that the gate's end is bound to."""
    tasks: Children = field(default_factory=Children)
    server: grpc.aio.Server | None = None
    acceptors: list[asyncio.Server] = field(default_factory=list)
    closed: bool = False
    """Whether the gate is closed: a connection that the loop tells of only then is closed at once."""
    address: tuple[str, int] = field(init=False)
    """The IP address and the port to which the gate is bound first."""

    def __post_init__(self) -> None:
        self.address = self.listening[0].getsockname()[:2]

    @property
    def port(self) -> int:
        """The public port."""
        return self.address[1]

    async def add(self, host: str) -> None:
        """Listen at one more host, at the same port; from `forward_to` on.

        Raises:
            ResourceError: the port is taken there, or the address is not this machine's.
        """
        self.listening.append(await _bound(host, self.port))

    async def move(self, hosts: Sequence[str]) -> None:
        """Close all connections, and listen at these hosts alone from now on, at the same port if it is free there. A
        gate that cannot listens nowhere, until it is moved again.

        Raises:
            ResourceError: a host is no address of this machine.
        """
        for acceptor in self.acceptors:
            acceptor.close()
        for listening in self.listening:
            listening.close()
        self.acceptors, self.listening = [], []
        self._close([*self.ends])
        first, *more = hosts
        try:
            self.listening.append(await _bound(first, self.port))
        except ResourceError:
            self.listening.append(await _bound(first, 0))
        self.address = self.listening[0].getsockname()[:2]
        for host in more:
            await self.add(host)
        await self.forward_to(self.target)

    async def serve(self, server: grpc.aio.Server, credentials: grpc.ServerCredentials) -> None:
        """Start a server, which has all its services, and let callers through to it.

        Raises:
            ResourceError: no socket can be made.
        """
        self.server, path = server, socket_folder() / f"s{next(_numbers)}"
        listen(server, f"unix:{path}", credentials)
        await server.start()
        await self.forward_to(path)

    async def forward_to(self, target: Path | int) -> None:
        """Let callers through to a server that listens at `target`, from now on."""
        self.target = target
        loop = asyncio.get_running_loop()
        for listening in self.listening[len(self.acceptors) :]:
            self.acceptors.append(await loop.create_server(lambda: _Caller(self), sock=listening))
        if not len(self.tasks):
            self.tasks.spawn(self._expire())

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a connection to the server from this process itself.

        Raises:
            OSError: the server is not up.
        """
        return await asyncio.open_unix_connection(str(self.target))

    def caller(self, name: str) -> str:
        """The name of a caller, as gRPC gives it for one that connects directly, where it has this `name` here."""
        end = self.callers.get(unquote(name).removeprefix("unix:"))
        return end.name if end is not None else name

    def authenticate(self, name: str, peer: PeerId) -> None:
        """Establish the connection of a caller, which gRPC knows by `name`: it is a peer of the run."""
        end = self.callers.get(unquote(name).removeprefix("unix:"))
        if end is not None:
            self._close(self.table.authenticate(end.connection, peer, self.clock()))
            self._admit()

    def arrive(self, end: _Caller) -> None:
        """Take in a new connection, or close it."""
        self.ends[end.connection] = end
        self._close(self.table.arrive(end.connection, self.clock()))

    def speak(self, end: _Caller) -> None:
        """Forward a connection whose first bytes have come, as soon as there is room for it."""
        self.table.speak(end.connection, self.clock())
        self._admit()

    def leave(self, end: _Caller) -> None:
        """Forget a connection that is closed."""
        self.ends.pop(end.connection, None)
        self.table.remove(end.connection)
        self._admit()

    async def close(self, grace: float) -> None:
        """Take no more connections; end those that are there, once their calls have had `grace` seconds to end."""
        self.closed = True
        for acceptor in self.acceptors:
            acceptor.close()
        for listening in self.listening:
            listening.close()
        if self.server is not None:
            await self.server.stop(grace)
        await self.tasks.end()
        for end in list(self.ends.values()):
            if end.other is not None:
                end.other.transport.abort()
            end.transport.abort()
        while self.ends:  # noqa: ASYNC110  the loop tells each end on its next turn
            await asyncio.sleep(0)
        if isinstance(self.target, Path):
            self.target.unlink(missing_ok=True)

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(EXPIRY_SECONDS)
            self._close(self.table.expire(self.clock()))
            self._admit()

    def _admit(self) -> None:
        forwarded, closed = self.table.admit(self.clock())
        self._close(closed)
        for connection in forwarded:
            self.tasks.spawn(self._forward(self.ends[connection]))

    def _close(self, connections: list[Connection]) -> None:
        for connection in connections:
            self.ends[connection].transport.abort()

    async def _forward(self, end: _Caller) -> None:
        """Open the connection to the server, and pass on the caller's first bytes."""
        loop, path = asyncio.get_running_loop(), ""
        try:
            if isinstance(self.target, Path):
                path = str(socket_folder() / f"c{next(_numbers)}")
                self.callers[path] = end
                inside = await _connected(self.target, path)
                await loop.create_unix_connection(lambda: _Inside(end, path), sock=inside)
            else:
                await loop.create_connection(lambda: _Inside(end, path), LOOPBACK, self.target)
        except OSError:  # the server is being started anew, or no descriptor is left
            self.callers.pop(path, None)
            end.transport.abort()


async def _connected(target: Path, path: str) -> socket.socket:
    """Connect to a socket at `target`, from one that was bound to `path`, which has no file any longer."""
    inside = socket.socket(socket.AF_UNIX)
    try:
        inside.setblocking(False)
        inside.bind(path)
        await asyncio.get_running_loop().sock_connect(inside, str(target))
    except BaseException:
        inside.close()
        raise
    finally:
        with suppress(OSError):
            os.unlink(path)
    return inside


def caller_at(host: str, port: int) -> str:
    """The name that gRPC gives to a caller at an address."""
    return f"ipv6:[{host}]:{port}" if ":" in host else f"ipv4:{host}:{port}"


async def bind(host: str, port: int, limits: ConnectionLimits, share: float) -> Gate:
    """Bind a gate to a public address (port 0: any). Whoever is given it closes it. `share` is the part of this
    process's descriptors for connections that the port may take. A wildcard is for both kinds of addresses; a name, for
    its IPv4 address if it has one.

    Raises:
        ResourceError: the port is taken, or the address is not this machine's.
    """
    within = limits.within(int(descriptors.for_connections() * share))
    return Gate([await _bound(host, port)], ConnectionTable(within))


async def _bound(host: str, port: int) -> socket.socket:
    """Bind a socket to a public address, as `bind` does."""
    try:
        addresses = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return listening_socket(host, port, addresses, BACKLOG)
    except OSError:
        where = join_address(host, port)
        raise ResourceError(
            f"cannot listen on {where}: the port is taken or the address is not ours; try --listen"
        ) from None
