"""The dashboard's socket and server, which lives in the event loop of the operator's node."""

import asyncio
import itertools
import socket
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from bootstrap.dashboard.app import EVENTS_PATH, app
from protocol import descriptors
from protocol.addresses import LOOPBACK, WILDCARDS, is_loopback, join_address, read_place
from protocol.errors import FormatError, ResourceError, UserError
from protocol.monitor import View

MOST_CONNECTIONS = 256
"""The largest number of connections. Where there are more, the oldest that is no event stream is closed: silent ones
keep nobody out."""

REQUEST_SECONDS = 10.0
"""The seconds for a request, from when a connection is made or the last answer has been given."""

RESPONSE_TIMEOUT_SECONDS = 60.0
"""The seconds in which an answer has to be taken: the chart library has 4.5 MB."""

BEHIND_SECONDS = 30.0
"""The seconds in which a follower of events has to take those that are on their way."""

DASHBOARD_GRACE_SECONDS = 1
"""The seconds that answers in flight may take when the node stops."""


_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class DashboardPort:
    """A port that is taken for the dashboard, and the names by which it may be asked for besides IP addresses."""

    listening: socket.socket
    host: str
    names: tuple[str, ...] = ()

    @property
    def url(self) -> str:
        """The address for a browser on this machine; elsewhere this machine's own address takes its place."""
        port = self.listening.getsockname()[1]
        return f"http://{join_address(LOOPBACK if self.host in WILDCARDS else self.host, port)}/"

    @property
    def warning(self) -> str:
        """A warning if others can reach the address as well; empty if they cannot."""
        if is_loopback(self.host) or self.host == "localhost":
            return ""
        address = join_address(self.host, self.listening.getsockname()[1])
        return (
            f"WARNING: whoever can reach {address} can read the dashboard: who "
            "takes part in the run, from which address, and how it goes. It asks for no password and is not encrypted."
        )


@contextmanager
def dashboard_port(where: str, announced: str | None = None) -> Iterator[DashboardPort]:
    """Listen where `--dashboard [HOST:]PORT` says, on loopback if no host is given; port 0 is any. `announced` is this
    node's name for others.

    Raises:
        UserError: it is no such address.
        ResourceError: the port is taken, or the host is not this machine's.
    """
    try:
        host, port = read_place(where)
    except FormatError as error:
        raise UserError(f"--dashboard takes [HOST:]PORT, as in 8080 or 0.0.0.0:8080: {error}") from None
    try:
        listening = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        why = error.strerror or str(error)
        raise ResourceError(
            f"the dashboard cannot listen on {join_address(host, port)}: {why}; try another one: "
            "--dashboard [HOST:]PORT"
        ) from None
    with listening:
        yield DashboardPort(listening, host, tuple(name for name in (host, announced) if name))


async def serve_dashboard(
    place: DashboardPort,
    view: Callable[[], View],
    until_changed: Callable[[float], Coroutine[Any, Any, None]],
    metrics: Callable[[], bytes] | None,
    stop: asyncio.Event,
) -> None:
    """Serve the dashboard until `stop` is set."""
    config = uvicorn.Config(
        app(view, until_changed, metrics, place.names, stop),
        loop="none",
        http=Visit,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=DASHBOARD_GRACE_SECONDS,
    )
    server = Server(config)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(server.serve([place.listening]))
        await stop.wait()
        server.should_exit = True


class Visit(H11Protocol):
    """A connection, which may say nothing, or take nothing, for so long only."""

    ends: asyncio.TimerHandle | None = None
    number = 0
    """The number of this connection in the order of their arrival: the loop's clock has the same time for many."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """Whoever has been here longest makes way if there are too many."""
        super().connection_made(transport)
        self.number = next(_numbers)
        self._has(REQUEST_SECONDS)
        if descriptors.is_reserved(transport.get_extra_info("socket").fileno()):
            transport.abort()
        waiting = [visit for visit in self.connections if isinstance(visit, Visit) and visit.ends is not None]
        if len(self.connections) > MOST_CONNECTIONS:
            min(waiting, key=lambda visit: visit.number).transport.abort()

    def handle_events(self) -> None:
        """A request may have come."""
        before = self.cycle
        super().handle_events()
        if self.cycle is not before:
            self._has(None if self._streams() else RESPONSE_TIMEOUT_SECONDS)

    def on_response_complete(self) -> None:
        """The next request may come."""
        self._has(REQUEST_SECONDS)
        super().on_response_complete()

    def pause_writing(self) -> None:
        """Note that more is on its way than the other end takes."""
        super().pause_writing()
        if self._streams():
            self._has(BEHIND_SECONDS)

    def resume_writing(self) -> None:
        """Note that the other end has taken it."""
        super().resume_writing()
        if self._streams():
            self._has(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """Note that the connection has ended."""
        self._has(None)
        super().connection_lost(exc)

    def _streams(self) -> bool:
        """Whether events are being told: they go on for ever."""
        return self.cycle is not None and not self.cycle.response_complete and self.scope["path"] == EVENTS_PATH

    def _has(self, seconds: float | None) -> None:
        if self.ends is not None:
            self.ends.cancel()
        self.ends = None if seconds is None else self.loop.call_later(seconds, self.transport.abort)


class Server(uvicorn.Server):
    """uvicorn in a loop that is somebody else's, who also hears the signals."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Do not."""
        yield
