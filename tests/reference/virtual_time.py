"""An event loop whose clock jumps to the next timer: what takes minutes there takes none here."""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.now = 1000.0
        super().__init__(_Jumping(self))

    def time(self) -> float:
        return self.now


class _Jumping(selectors.DefaultSelector):  # type: ignore[misc,valid-type]
    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self.loop = loop

    def select(self, timeout: float | None = None) -> Any:
        if timeout:
            self.loop.now += timeout
        return super().select(0)


def run(scene: Coroutine[Any, Any, T]) -> T:
    """Run a scene in which nothing but timers waits."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(scene)
