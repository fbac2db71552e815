"""asyncio's own event loop, for the few tests whose servers and pipes do in uvloop what they do not tell of."""

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

Result = TypeVar("Result")


def run(scene: Coroutine[Any, Any, Result]) -> Result:
    """Run a scene to its end. uvloop tells a server of no connection whose handshake was cut short, and closes a pipe
    one turn after its end."""
    with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
        return runner.run(scene)


@contextmanager
def in_own_loops() -> Iterator[None]:
    """Have all that is run in the block run in such loops."""
    before = asyncio.get_event_loop_policy()
    asyncio.set_event_loop_policy(None)
    try:
        yield
    finally:
        asyncio.set_event_loop_policy(before)
