"""The dashboard's answers: its page, the view as JSON and as server-sent events, and the node's metrics.

Everything can be read by whoever reaches the port, so nothing here is secret, and nothing can be changed by it: there
are only GETs. Browsers are told to run and load nothing but what comes from here, and a name that this node was not
given is refused, so that no page of somebody else reads along by pointing its own name here (DNS rebinding).
"""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from protocol.addresses import is_ip, read_host, subscriber
from protocol.clock import monotonic, unix_time
from protocol.errors import FormatError
from protocol.monitor import View
from protocol.net.tasks import first_of

PAGE = Path(__file__).with_name("page")
CHARTS = ("plotly", "package_data")
"""The installed package, and its folder, that has the chart library `plotly.min.js`."""

VIEW_INTERVAL_SECONDS = 1.0
"""The seconds between two views that are sent to one page."""

PAGE_HEARTBEAT_SECONDS = 5.0
"""A page that hears nothing for three times as long says that the connection is lost."""

MOST_STREAMS, STREAMS_OF_NETWORK = 96, 32
"""The largest number of event streams at once: a browser has one for each page that it has open."""

EVENTS_PATH = "/events"

EMPTY = "'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='"
"""The style sheet without any text that the chart library makes, to fill it by script. No other may be in the page."""

RESPONSE_HEADERS = {
    "Content-Security-Policy": f"default-src 'none'; script-src 'self'; style-src 'self' {EMPTY}; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def app(
    view: Callable[[], View],
    until_changed: Callable[[float], Coroutine[Any, Any, None]],
    metrics: Callable[[], bytes] | None,
    names: Collection[str] = (),
    stop: asyncio.Event | None = None,
) -> Starlette:
    """The dashboard of what `view` shows. It answers to IP addresses, to `localhost` and to `names`; once `stop` is
    set, its streams of events end."""
    latest = Latest(view)
    stopping = stop or asyncio.Event()
    listening: Counter[str] = Counter()

    async def page(_: Request) -> Response:
        return FileResponse(PAGE / "page.html", headers={"Cache-Control": "no-cache"})

    async def now(_: Request) -> Response:
        return Response(latest.read(), media_type="application/json", headers={"Cache-Control": "no-store"})

    async def events(_: Request) -> Response:
        stream = _events(latest, until_changed, stopping)
        return ServerSentEvents(
            stream, media_type="text/event-stream", headers={"Cache-Control": "no-store"}, others=listening
        )

    async def measured(_: Request) -> Response:
        return Response(metrics() if metrics else b"", media_type=METRICS_TYPE)

    routes: list[Route | Mount] = [Route("/", page), Route("/view.json", now), Route(EVENTS_PATH, events)]
    if metrics:
        routes.append(Route("/metrics", measured))
    routes.append(Mount("/", StaticFiles(directory=PAGE, packages=[CHARTS])))
    known_names = frozenset(name.lower() for name in ("localhost", *names))
    return Starlette(routes=routes, middleware=[Middleware(HostGuard, names=known_names)])


class ServerSentEvents(StreamingResponse):
    """Events for as long as somebody listens; `others` are those that are told already, by network."""

    def __init__(self, *told: Any, others: Counter[str], **how: Any) -> None:
        super().__init__(*told, **how)
        self.others = others

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Tell, or refuse."""
        network = subscriber((scope.get("client") or ("", 0))[0])
        if self.others.total() >= MOST_STREAMS or self.others[network] >= STREAMS_OF_NETWORK:
            await TOO_MANY(scope, receive, send)
            return
        self.others[network] += 1
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.others[network] -= 1
            self.others += Counter()  # forgets who has none


TOO_MANY = PlainTextResponse(
    "Too many pages follow this dashboard now. Close some, or ask for /view.json.\n",
    status_code=503,
    headers={"Retry-After": "30"},
)


@dataclass(frozen=True, slots=True)
class HostGuard:
    """Refuses what was meant for another host, and says with each answer what a browser may do with it."""

    app: ASGIApp
    names: frozenset[str]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(RESPONSE_HEADERS)
            await send(message)

        answer = self.app if _is_meant(Headers(scope=scope).get("host", ""), self.names) else MISDIRECTED
        await answer(scope, receive, guarded)


MISDIRECTED = PlainTextResponse(
    "The dashboard does not go by this name. Open it by its IP address, or start the node with\n"
    "--dashboard NAME:PORT, or --announce NAME.\n",
    status_code=421,
)


def _is_meant(host: str, names: frozenset[str]) -> bool:
    """Tell whether a request's `Host` is one of this node's names. An address cannot be pointed at another machine as a
    name can."""
    try:
        name, _ = read_host(host)
    except FormatError:
        return False
    return is_ip(name) or name.lower() in names


@dataclass(slots=True)
class Latest:
    """The view as JSON, for however many read it: looked at anew when it is older than half a second, and another
    text only where something but the time has changed."""

    look: Callable[[], View]
    clock: Callable[[], float] = monotonic
    view: View | None = field(default=None, init=False)
    text: str = field(default="", init=False)
    looked: float = field(default=0.0, init=False)

    def read(self) -> str:
        """One line of JSON."""
        if self.view is None or self.clock() - self.looked >= VIEW_INTERVAL_SECONDS / 2:
            fresh = self.look()
            if self.view is None or fresh.model_copy(update={"now": self.view.now}) != self.view:
                self.view, self.text = fresh, fresh.model_dump_json()
            self.looked = self.clock()
        return self.text


async def _events(
    latest: Latest, until_changed: Callable[[float], Coroutine[Any, Any, None]], stop: asyncio.Event
) -> AsyncIterator[str]:
    """The view, now and when it has changed, and beats in between."""
    sent = ""
    while not stop.is_set():
        text = latest.read()
        yield _event("view", text) if text != sent else _event("beat", json.dumps(unix_time()))
        sent = text
        await first_of(asyncio.sleep(VIEW_INTERVAL_SECONDS), stop.wait())
        if latest.read() == sent:
            await first_of(until_changed(PAGE_HEARTBEAT_SECONDS), stop.wait())


def _event(kind: str, line: str) -> str:
    return f"event: {kind}\ndata: {line}\n\n"
