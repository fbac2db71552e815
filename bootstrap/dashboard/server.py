"""Where the dashboard listens, and the server of it, which lives in the loop of the operator's node."""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import uvicorn

from bootstrap.dashboard.app import app
from protocol.addresses import LOOPBACK, WILDCARDS, is_loopback, join, read_place
from protocol.errors import FormatError, ResourceError, UserError
from protocol.view import View

MOST_CONNECTIONS = 200
"""Who comes when there are so many is told to come again (503); a browser needs up to six."""

GRACE_SECONDS = 1
"""How long answers in flight may take when the node stops."""


@dataclass(frozen=True, slots=True)
class Place:
    """A port that is taken for the dashboard, and the names by which it may be asked for besides IP addresses."""

    listening: socket.socket
    host: str
    names: tuple[str, ...] = ()

    @property
    def url(self) -> str:
        """Where a browser on this machine finds it; in a browser elsewhere this machine's address takes its place."""
        port = self.listening.getsockname()[1]
        return f"http://{join(LOOPBACK if self.host in WILDCARDS else self.host, port)}/"

    @property
    def warning(self) -> str:
        """What to tell of a place that others reach as well; "" of any other."""
        if is_loopback(self.host) or self.host == "localhost":
            return ""
        address = join(self.host, self.listening.getsockname()[1])
        return (
            f"WARNING: whoever can reach {address} can read the dashboard: who "
            "takes part in the run, from which address, and how it goes. It asks for no password and is not encrypted."
        )


@contextmanager
def taken(where: str, announced: str | None = None) -> Iterator[Place]:
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
            f"the dashboard cannot listen on {join(host, port)}: {why}; try another one: --dashboard [HOST:]PORT"
        ) from None
    with listening:
        yield Place(listening, host, tuple(name for name in (host, announced) if name))


async def serve(
    place: Place,
    view: Callable[[], View],
    until_changed: Callable[[float], Awaitable[None]],
    metrics: Callable[[], bytes] | None,
    stop: asyncio.Event,
) -> None:
    """Serve the dashboard until `stop` is set."""
    config = uvicorn.Config(
        app(view, until_changed, metrics, place.names, stop),
        loop="none",
        http="h11",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        limit_concurrency=MOST_CONNECTIONS,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    server = Server(config)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(server.serve([place.listening]))
        await stop.wait()
        server.should_exit = True


class Server(uvicorn.Server):
    """uvicorn in a loop that is somebody else's, who also hears the signals."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Do not."""
        yield
