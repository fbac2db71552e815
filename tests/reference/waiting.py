"""Waiting for something that nothing rings for, in a test that has a time limit of its own."""

import asyncio
from collections.abc import Callable


async def until(holds: Callable[[], bool]) -> None:
    """Until a condition holds."""
    while not holds():  # noqa: ASYNC110
        await asyncio.sleep(0.01)
