"""A dashboard on loopback that shows what a test says, served as the operator's node does."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from bootstrap.dashboard.server import dashboard_port, serve_dashboard
from protocol.monitor import View


class Shown:
    """What is to be seen now. Whoever waits for a change is woken, from another thread, too."""

    def __init__(self, view: View) -> None:
        self.view = view
        self._loop: asyncio.AbstractEventLoop | None = None
        self._changed = asyncio.Event()
        self.stop = asyncio.Event()

    def change(self, view: View) -> None:
        """Show another view."""
        self.view = view
        self._soon(self._changed.set)

    def end(self) -> None:
        """Stop serving."""
        self._soon(self.stop.set)

    def _soon(self, what: Callable[[], None]) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(what)

    async def until_changed(self, seconds: float) -> None:
        """As a node's monitor does."""
        self._changed.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            pass

    async def serve(self, up: Callable[[str], None], where: str = "0", metrics: bytes = b"") -> None:
        """Serve until the end; `up` is told the URL."""
        self._loop = asyncio.get_running_loop()
        with dashboard_port(where, "train.example.org") as place:
            up(place.url)
            await serve_dashboard(place, lambda: self.view, self.until_changed, lambda: metrics, self.stop)


@contextmanager
def dashboard_of(view: View, where: str = "0") -> Iterator[tuple[Shown, str]]:
    """A dashboard in a thread of its own, and its URL."""
    shown, url, ready = Shown(view), [], threading.Event()

    def up(found: str) -> None:
        url.append(found)
        ready.set()

    thread = threading.Thread(target=lambda: asyncio.run(shown.serve(up, where)))
    thread.start()
    try:
        assert ready.wait(30)
        yield shown, url[0]
    finally:
        shown.end()
        thread.join(30)
