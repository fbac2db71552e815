"""The front of the door: who connects is counted, by network and in all, before TLS and gRPC hear of it.

gRPC has no bound on connections and shows nobody when one is made, and each may hold messages that are sent in half. So
the door's server listens on loopback alone, and this lets connections through to it, byte by byte, so many at once.
Others wait their turn. Where a network has more than who waits, its oldest makes way; else whoever has had its time.
"""

import asyncio
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from bootstrap.rate_limit import caller_at, network_of
from protocol.addresses import LOOPBACK, WILDCARDS, join
from protocol.clock import monotonic
from protocol.errors import ResourceError
from protocol.limits import (
    DOOR_CONNECTIONS,
    DOOR_CONNECTIONS_OF_NETWORK,
    DOOR_SECONDS,
    DOOR_TURN_SECONDS,
    DOOR_WAITING,
    DOOR_WAITING_OF_NETWORK,
)
from protocol.net.allowances import RateLimit
from protocol.net.tasks import Children

BUFFER = 2**16
BACKLOG = 256

CONNECTIONS_BURST, CONNECTION_SECONDS = 512, 0.1
"""From one network: a lecture hall that joins at once makes four connections each, and `hetpeer doctor` three."""


@dataclass(eq=False, slots=True)
class Guest:
    """A connection from outside. `caller` is as gRPC would name it; `since` when it was let through."""

    caller: str
    network: str
    writer: asyncio.StreamWriter
    turn: asyncio.Future[None]
    since: float = 0.0

    def close(self) -> None:
        """Hang up at once."""
        self.writer.transport.abort()


@dataclass(slots=True)
class Front:
    """Lets connections through to the server at `port` on loopback."""

    port: int = 0
    inside: list[Guest] = field(default_factory=list)
    """The longest there first."""
    waiting: list[Guest] = field(default_factory=list)
    rate: RateLimit = field(default_factory=lambda: RateLimit(CONNECTIONS_BURST, CONNECTION_SECONDS))
    clock: Callable[[], float] = monotonic
    callers: dict[str, str] = field(default_factory=dict)
    """Of connections on loopback, as gRPC names them: who is behind them."""
    tasks: Children = field(default_factory=Children)

    def caller(self, named: str) -> str:
        """Who calls, where gRPC names a connection of this front's."""
        return self.callers.get(named, named)

    @asynccontextmanager
    async def listening(self, host: str, port: int) -> AsyncIterator[int]:
        """Let connections in at an address; its port. `self.port` is to be set first.

        Raises:
            ResourceError: the port is taken, or the address is not this machine's.
        """
        try:
            server = await asyncio.start_server(self._receive, limit=BUFFER, sock=await _bound(host, port))
        except OSError:
            where = join(host, port)
            raise ResourceError(
                f"cannot listen on {where}: the port is taken or the address is not ours; try --listen"
            ) from None
        self.tasks.spawn(self._keep_seating())
        try:
            yield int(server.sockets[0].getsockname()[1])
        finally:
            server.close()
            await self.tasks.end()

    def _receive(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.pause_reading()  # type: ignore[attr-defined]  # who waits is not listened to
        self.tasks.spawn(self._serve(reader, writer))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        caller = caller_at(*(writer.get_extra_info("peername") or ("", 0))[:2])  # without, it has gone already
        guest = Guest(caller, network_of(caller), writer, asyncio.get_running_loop().create_future())
        try:
            of_network = sum(each.network == guest.network for each in self.waiting)
            if len(self.waiting) >= DOOR_WAITING or of_network >= DOOR_WAITING_OF_NETWORK:
                return
            if self.rate.wait_seconds(guest.network, self.clock()) > 0:
                return
            self.waiting.append(guest)
            self._seat()
            async with asyncio.timeout(DOOR_TURN_SECONDS):
                await guest.turn
            writer.transport.resume_reading()  # type: ignore[attr-defined]
            async with asyncio.timeout(DOOR_SECONDS):
                await self._let_through(reader, guest)
        except (TimeoutError, OSError):
            pass
        finally:
            for place in (self.waiting, self.inside):
                with suppress(ValueError):
                    place.remove(guest)
            guest.close()
            self._seat()

    async def _keep_seating(self) -> None:
        """Somebody's time may be over without anything else happening."""
        while True:
            await asyncio.sleep(1.0)
            self._seat()

    def _seat(self) -> None:
        """Let through who may be, the longest waiting first."""
        for guest in [*self.waiting]:
            counts = Counter(each.network for each in self.inside)
            if counts[guest.network] >= DOOR_CONNECTIONS_OF_NETWORK:
                continue
            if len(self.inside) >= DOOR_CONNECTIONS and not self._make_room(guest, counts):
                continue
            self.waiting.remove(guest)
            guest.since = self.clock()
            self.inside.append(guest)
            if not guest.turn.done():
                guest.turn.set_result(None)

    def _make_room(self, guest: Guest, counts: Counter[str]) -> bool:
        """Whether somebody goes for a guest: the oldest of a network that has more than the guest's would have, or else
        of all, once it has been there for so long that an honest newcomer is done."""
        (most, count), oldest = counts.most_common(1)[0], self.inside[0]
        if count > counts[guest.network] + 1:
            oldest = next(each for each in self.inside if each.network == most)
        elif self.clock() - oldest.since < DOOR_TURN_SECONDS / 2:
            return False
        self.inside.remove(oldest)
        oldest.close()
        return True

    async def _let_through(self, reader: asyncio.StreamReader, guest: Guest) -> None:
        within, onwards = await asyncio.open_connection(LOOPBACK, self.port, limit=BUFFER)
        ours = caller_at(*onwards.get_extra_info("sockname")[:2])
        self.callers[ours] = guest.caller
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(_carry(reader, onwards))
                both.create_task(_carry(within, guest.writer))
            guest.writer.close()
            await guest.writer.wait_closed()
        except* OSError:  # one end is gone
            pass
        finally:
            onwards.transport.abort()
            del self.callers[ours]


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(BUFFER):
        writer.write(data)
        await writer.drain()
    writer.write_eof()


async def _bound(host: str, port: int) -> socket.socket:
    """Where to listen: a wildcard is for both kinds of addresses, as gRPC takes it."""
    if host in WILDCARDS and socket.has_dualstack_ipv6():
        return socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=BACKLOG)
    family, *_, where = (await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM))[0]
    return socket.create_server((str(where[0]), port), family=family, backlog=BACKLOG)
