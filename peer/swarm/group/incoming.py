"""The messages of a neighbour on a link, read and checked in order while the stage computes."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from peer.network.group import Link
from protocol.net.tasks import Children
from protocol.schemas import pipeline_pb2 as pb


@dataclass(frozen=True, slots=True)
class Expected:
    """A payload that a neighbour has to send next: its number of messages, and how they are read."""

    messages: int
    read: Callable[[list[pb.Frame]], Any]


class Incoming:
    """The messages of one neighbour in an inner step. The next one is requested as soon as one is taken. Where there is
    no neighbour on that side (`link` is None), nothing ever has to be waited for."""

    def __init__(self, link: Link | None, expected: Iterable[Expected] = ()) -> None:
        self.link = link
        self.expected = deque(expected)
        self.arrival_times: list[float] = []
        """The time at which each payload was complete, by the loop's clock."""
        self.tasks = Children()
        self.task: asyncio.Task[Any] | None = None
        self._ask()

    @property
    def ready(self) -> bool:
        """Whether the next is here, or the news that none will be."""
        return self.link is None or (self.task is not None and self.task.done())

    @property
    def failed(self) -> bool:
        """Whether nothing more comes: the neighbour is gone, or broke the protocol, as `take` says."""
        return self.task is not None and self.task.done() and self.task.exception() is not None

    def expect(self, expected: Iterable[Expected]) -> None:
        """Expect further payloads of the step."""
        self.expected.extend(expected)
        if self.task is None:
            self._ask()

    def take(self) -> Any:
        """The next, which is here; None where there is no neighbour.

        Raises:
            LostMemberError: the neighbour is gone.
            BreachError: it broke the protocol.
        """
        if self.task is None:
            return None
        payload = self.task.result()
        self._ask()
        return payload

    async def next(self) -> Any:
        """The next, once it is here.

        Raises:
            LostMemberError, BreachError: as `take`.
        """
        await wait_for_any(self)
        return self.take()

    def stop(self) -> None:
        """Read nothing more."""
        if self.task is not None and not self.task.cancel() and not self.task.cancelled():
            self.task.exception()  # nobody asked for it

    def _ask(self) -> None:
        self.task = None
        if self.link is not None and self.expected:
            self.task = self.tasks.spawn(self._receive(self.link, self.expected.popleft()))

    async def _receive(self, link: Link, payload: Expected) -> Any:
        messages = [await link.receive() for _ in range(payload.messages)]
        self.arrival_times.append(asyncio.get_running_loop().time())
        with link.blamed():
            return await asyncio.to_thread(payload.read, messages)


async def wait_for_any(*neighbours: Incoming, beside: asyncio.Task[None] | None = None) -> None:
    """Wait until one of these neighbours has sent something that had not arrived, or the task `beside` them ends."""
    coming = [neighbour.task for neighbour in neighbours if neighbour.task is not None and not neighbour.ready]
    coming += [beside] if beside is not None and not beside.done() else []
    if coming:
        await asyncio.wait(coming, return_when=asyncio.FIRST_COMPLETED)
