"""A peer that gives way to its owner: it pauses when told to, or at quiet hours, and goes on as if it had been started
again.

Pausing is leaving in order, as after Ctrl-C: the inner step ends, what is done is contributed, the group finds another
member or waits. Nothing is left running but this: no socket, no model, no DHT. The peer's folder keeps its key, its
place and its state, and from there it goes on.
"""

import asyncio
from collections.abc import Callable
from datetime import datetime

from peer.compute.capacity import family_bytes, give_memory_back
from peer.daemon import run_until
from peer.pausing import Pauses
from peer.process import first_error
from peer.settings import PeerSettings
from peer.telemetry.events import Listener, Paused, PauseEnded, Progress, Warned
from peer.telemetry.status import EventStream
from protocol.errors import HetpeerError
from protocol.net.tasks import Children, first_of
from protocol.wording import size

MEMORY_SECONDS = 10.0
"""How often the process's memory is looked at."""


async def serve_as_guest(
    stop: asyncio.Event, settings: PeerSettings, emit: EventStream, now: Callable[[], datetime] = datetime.now
) -> None:
    """Serve until the last round, or until `stop` is set, but for the pauses. `now` is the local time.

    Raises:
        HetpeerError: with a message that a volunteer can act on.
    """
    pauses = Pauses(settings.directory, settings.quiet, now)
    async with Children() as children:
        children.spawn(_watch_memory(settings.memory_limit, emit))
        while not stop.is_set():
            if reason := pauses.reason():
                emit(Paused(reason))
                await first_of(stop.wait(), pauses.wait_until_over())
                if stop.is_set():
                    return
                emit(PauseEnded())
            if not await _serve_until_paused(stop, pauses, settings, emit):
                return
            give_memory_back()


async def _serve_until_paused(stop: asyncio.Event, pauses: Pauses, settings: PeerSettings, emit: EventStream) -> bool:
    """Serve; whether it is a pause that has ended it."""
    leave = asyncio.Event()

    async def watch() -> None:
        await first_of(stop.wait(), pauses.wait_until_due())
        leave.set()

    async with Children() as children:
        children.spawn(watch())
        try:
            await run_until(leave, settings, emit)
        except (HetpeerError, BaseExceptionGroup) as error:
            if stop.is_set() or not leave.is_set():
                raise
            what = error if isinstance(error, HetpeerError) else first_error(error)
            emit(Progress(f"leaving was cut short: {what}"))
    return leave.is_set() and not (stop.is_set() or emit.status.over)


async def _watch_memory(most: int | None, emit: Listener) -> None:
    """Say when this peer has grown beyond `most`: with so much it plans, but nothing holds it to that."""
    warned = 0
    while most is not None:
        used = family_bytes()
        if used > max(most, warned):
            warned = used + used // 10
            emit(Warned(f"WARNING: this peer uses {size(used)}, more than --max-memory {size(most)}"))
        await asyncio.sleep(MEMORY_SECONDS)
