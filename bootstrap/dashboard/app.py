"""The dashboard's answers: its page, the view as JSON and as server-sent events, and the node's metrics.

Everything can be read by whoever reaches the port, so nothing here is secret, and nothing can be changed by it: there
are only GETs. Browsers are told to run and load nothing but what comes from here, and a name that this node was not
given is refused, so that no page of somebody else reads along by pointing its own name here (DNS rebinding).
"""

import asyncio
import json
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable, Collection, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic_core import to_json
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bootstrap.dashboard.page_view import Tree, merge_patch, page_view
from protocol.addresses import is_ip, read_host, subscriber
from protocol.clock import monotonic, unix_time
from protocol.errors import FormatError
from protocol.monitor import View
from protocol.net.tasks import first_of

PAGE = Path(__file__).with_name("page")
VIEW_INTERVAL_SECONDS = 1.0
"""The seconds between two views that are sent to one page."""

PAGE_HEARTBEAT_SECONDS = 5.0
"""A page that hears nothing for three times as long says that the connection is lost."""

TREES_KEPT = 4
"""The last trees, of which a page that has one is sent only what has changed since."""

MOST_STREAMS, STREAMS_OF_NETWORK = 96, 32
"""The largest number of event streams at once: a browser has one for each page that it has open."""

EVENTS_PATH = "/events"

RESPONSE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
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
        return Response(latest.read().view_json(), media_type="application/json", headers={"Cache-Control": "no-store"})

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
    routes.append(Mount("/", StaticFiles(directory=PAGE)))
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
    """The view, for however many read it: looked at anew when it is older than half a second. It has another number
    only where something but the time has changed."""

    look: Callable[[], View]
    clock: Callable[[], float] = monotonic
    number: int = field(default=0, init=False)
    view: View | None = field(default=None, init=False)
    looked: float = field(default=0.0, init=False)
    _trees: OrderedDict[int, Tree] = field(default_factory=OrderedDict, init=False)
    """The last trees that pages may have, by number; the last one is that of `view`."""
    _texts: dict[int, str] = field(default_factory=dict, init=False)
    """The events by which a page comes to the newest tree, by the number of the tree that it has; 0: none."""
    _json: str = field(default="", init=False)

    def read(self) -> "Latest":
        """Look anew if it is time."""
        if self.view is None or self.clock() - self.looked >= VIEW_INTERVAL_SECONDS / 2:
            fresh = self.look()
            tree = page_view(fresh)
            patch = merge_patch(self._trees.get(self.number, {}), tree)
            if patch.keys() - {"now"}:
                self._texts = {self.number: _event_of("change", patch)} if self.number else {}
                self.number += 1
                self.view, self._trees[self.number], self._json = fresh, tree, ""
                if len(self._trees) > TREES_KEPT:
                    self._trees.popitem(last=False)
            self.looked = self.clock()
        return self

    def view_json(self) -> str:
        """The whole view as one line of JSON."""
        if not self._json and self.view is not None:
            self._json = self.view.model_dump_json()
        return self._json

    def event_after(self, number: int) -> str:
        """The event for a page that has the tree of this number: what has changed since, or the whole tree."""
        if number not in self._texts:
            before, tree = self._trees.get(number), self._trees[self.number]
            self._texts[number] = (
                _event_of("view", tree) if before is None else _event_of("change", merge_patch(before, tree))
            )
        return self._texts[number]


async def _events(
    latest: Latest, until_changed: Callable[[float], Coroutine[Any, Any, None]], stop: asyncio.Event
) -> AsyncIterator[str]:
    """The run, now and when it has changed, and beats in between."""
    sent = 0
    while not stop.is_set():
        newest = latest.read().number
        yield latest.event_after(sent) if newest != sent else _event("beat", json.dumps(unix_time()))
        sent = newest
        await first_of(asyncio.sleep(VIEW_INTERVAL_SECONDS), stop.wait())
        if latest.read().number == sent:
            await first_of(until_changed(PAGE_HEARTBEAT_SECONDS), stop.wait())


def _event_of(kind: str, tree: Tree) -> str:
    return _event(kind, to_json(tree, inf_nan_mode="null").decode())


def _event(kind: str, line: str) -> str:
    return f"event: {kind}\ndata: {line}\n\n"
