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
"""The largest number of connections. One more closes the oldest that is no event stream, so silent ones keep nobody
out."""

REQUEST_SECONDS = 10.0
"""The seconds in which a request has to arrive, from the connection's start or from the last answer's end."""

RESPONSE_TIMEOUT_SECONDS = 60.0
"""The seconds in which a client has to read a whole answer; the largest, the view of a large run, has some MB."""

BEHIND_SECONDS = 30.0
"""The seconds in which a client that follows events has to read those that wait to be written to it."""

DASHBOARD_GRACE_SECONDS = 1
"""The seconds that answers in flight may take when the node stops."""


_arrivals = itertools.count()


@dataclass(frozen=True, slots=True)
class DashboardPort:
    """The port at which the dashboard listens. A request has to name as its host an IP address, `localhost` or
    one of `names`."""

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
def dashboard_port(
    where: str, announced: str | None = None, option: str = "--dashboard [HOST:]PORT"
) -> Iterator[DashboardPort]:
    """Listen where `--dashboard [HOST:]PORT` says, on loopback if no host is given; port 0 is any. `announced` is this
    node's name for others; `option` is what its user types.

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
            f"the dashboard cannot listen on {join_address(host, port)}: {why}; try another one: {option}"
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
    """Serve what `view` shows at `place` until `stop` is set. `until_changed` waits for another view, for so many
    seconds at most; `metrics` is the text for Prometheus, and without it there is no `/metrics`."""
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
    """A connection. One that sends no request, or does not read its answer, is closed after some seconds."""

    ends: asyncio.TimerHandle | None = None
    """The timer that closes this connection; None: nothing does, as for an event stream whose client keeps up."""
    number = 0
    """The place of this connection in the order of arrival; the loop's clock has the same time for several."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """Begin a connection, and close the oldest that is no event stream if there are too many now."""
        super().connection_made(transport)
        self.number = next(_arrivals)
        self._close_after(REQUEST_SECONDS)
        if descriptors.is_reserved(transport.get_extra_info("socket").fileno()):
            transport.abort()
        # One that is aborted stays in `connections` until the loop's next turn.
        here = [visit for visit in self.connections if isinstance(visit, Visit) and not visit.transport.is_closing()]
        if len(here) > MOST_CONNECTIONS:
            min((visit for visit in here if visit.ends is not None), key=lambda visit: visit.number).transport.abort()

    def handle_events(self) -> None:
        """Handle the bytes that have come. With the whole head of a request, the time for its answer
        begins."""
        before = self.cycle
        super().handle_events()
        if self.cycle is not before:
            self._close_after(None if self._streams() else RESPONSE_TIMEOUT_SECONDS)

    def on_response_complete(self) -> None:
        """Begin the time for the next request."""
        self._close_after(REQUEST_SECONDS)
        super().on_response_complete()

    def pause_writing(self) -> None:
        """Limit the time of an event stream whose client does not read as fast as events come."""
        super().pause_writing()
        if self._streams():
            self._close_after(BEHIND_SECONDS)

    def resume_writing(self) -> None:
        """Lift the limit of an event stream whose client has read what waited for it."""
        super().resume_writing()
        if self._streams():
            self._close_after(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer of a connection that has ended."""
        self._close_after(None)
        super().connection_lost(exc)

    def _streams(self) -> bool:
        """Whether the answer under way is the stream of events, which has no end."""
        return self.cycle is not None and not self.cycle.response_complete and self.scope["path"] == EVENTS_PATH

    def _close_after(self, seconds: float | None) -> None:
        """Close this connection in so many seconds, instead of when it would have been closed; None: do not."""
        if self.ends is not None:
            self.ends.cancel()
        self.ends = None if seconds is None else self.loop.call_later(seconds, self.transport.abort)


class Server(uvicorn.Server):
    """A uvicorn server in the event loop of the node, which handles the signals."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals to the node."""
        yield
