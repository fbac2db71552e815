"""Turns at what costs this peer's loop time, by whose word it does: nobody's keeps the loop from its other work, and
nobody's keeps the others' waiting."""

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from protocol.identity import PeerId
from protocol.limits import CHECK_SHARE


@dataclass(slots=True)
class Turns:
    """One piece of work at a time, of one source after the other, for at most `share` of the loop's time."""

    share: float = CHECK_SHARE
    waiting: OrderedDict[PeerId, deque[asyncio.Future[None]]] = field(default_factory=OrderedDict)
    done: int = 0
    """Pieces of work."""
    _free_at: float = 0.0
    _timer: asyncio.TimerHandle | None = None

    @asynccontextmanager
    async def of(self, source: PeerId) -> AsyncIterator[None]:
        """The turn of a source, in which nothing may be awaited."""
        loop = asyncio.get_running_loop()
        if self.waiting or loop.time() < self._free_at:
            turn: asyncio.Future[None] = loop.create_future()
            self.waiting.setdefault(source, deque()).append(turn)
            self._call_again()
            try:
                await turn
            except asyncio.CancelledError:
                self._call_again()  # the next one's, if it was this one's already
                raise
        begun = loop.time()
        try:
            yield
        finally:
            self.done += 1
            now = loop.time()
            self._free_at = now + (now - begun) * (1 / self.share - 1)
            self._call_again()

    def _call_again(self) -> None:
        if self.waiting and self._timer is None:
            self._timer = asyncio.get_running_loop().call_at(self._free_at, self._go_on)

    def _go_on(self) -> None:
        """The next one of the source that has waited longest for a turn."""
        self._timer = None
        while self.waiting:
            source, turns = self.waiting.popitem(last=False)
            turn = turns.popleft()
            if turns:
                self.waiting[source] = turns
            if not turn.done():  # who waited may have been cancelled
                turn.set_result(None)
                return
