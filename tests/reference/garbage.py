"""What earlier tests have left behind, dropped before it complains in the middle of another test."""

import asyncio
import gc
import sys


def drop() -> None:
    """Collect what nobody holds any more. Tasks of a world that has ended clean up when they are forgotten: what they
    raise then happens to nobody."""
    hook, sys.unraisablehook = sys.unraisablehook, lambda unraisable: None
    asyncio.set_event_loop(None)  # a world's loop, and all that it holds
    try:
        for _ in range(3):
            gc.collect()
    finally:
        sys.unraisablehook = hook
