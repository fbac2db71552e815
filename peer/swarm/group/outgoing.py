"""The outcomes of a stage's passes, from the device to its neighbours, in order."""

import asyncio
from collections import deque
from collections.abc import Callable

from peer.compute.transfers import OnHost, OnItsWay, PassOutcome
from peer.network.group import Link
from protocol.codec.frames import BackwardFrame, ForwardFrame, FrameRules, Payload, pack_frame
from protocol.errors import DivergedError
from protocol.net.tasks import Children

Deliver = Callable[[OnHost], None]
"""A function that sends an outcome on, or notes it."""


class Outgoing:
    """The outcomes of one inner step. What is on the host is delivered at once. What a device has yet to compute and
    copy is waited for by another thread, while the torch thread orders the next pass, and delivered in order."""

    def __init__(self) -> None:
        self.on_their_way: deque[tuple[OnItsWay, Deliver]] = deque()
        self.tasks = Children()
        self.task: asyncio.Task[None] | None = None
        """The task that delivers; None: nothing is on its way."""

    @property
    def failed(self) -> bool:
        """Whether an outcome could not be computed or delivered, as `require_delivered` says."""
        return self.task is not None and self.task.done() and self.task.exception() is not None

    def take(self, outcome: PassOutcome, deliver: Deliver) -> None:
        """Deliver an outcome once it is on the host, and those before it are delivered."""
        if isinstance(outcome, OnHost):
            deliver(outcome)
            return
        self.on_their_way.append((outcome, deliver))
        if self.task is None or (self.task.done() and not self.failed):
            self.task = self.tasks.spawn(self._deliver())

    async def wait_until_delivered(self) -> None:
        """Wait until nothing is on its way.

        Raises:
            BreachError, DivergedError: an outcome could not be delivered.
        """
        if self.task is not None:
            await asyncio.wait((self.task,))
            self.task.result()

    def stop(self) -> None:
        """Deliver nothing more."""
        self.on_their_way.clear()
        if self.task is not None and not self.task.cancel() and not self.task.cancelled():
            self.task.exception()  # nobody asked for it

    async def _deliver(self) -> None:
        while self.on_their_way:
            outcome, deliver = self.on_their_way.popleft()
            deliver(await asyncio.to_thread(outcome.wait))


def send(link: Link, frame: ForwardFrame | BackwardFrame, rules: FrameRules) -> None:
    """Send a frame, in as many messages as it takes."""
    for message in pack_frame(frame, rules):
        link.send(message)


def require_in_range(out: bytes, payload: Payload, source: Link | None) -> None:
    """Check that an output of this stage, computed mostly from what its neighbour `source` sent, would not look like a
    breach of its own.

    Raises:
        BreachError: it would: what was sent was too large to go on with.
        DivergedError: the same, and nobody sent it.
    """
    if not payload.in_range(out):
        if source is None:
            raise DivergedError("this stage's numbers left every range: the replica has diverged")
        raise source.breach("sent what this stage cannot go on with: its own values left their range")
