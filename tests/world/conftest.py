"""What every test of a simulated world leaves behind is dropped with it, and not in the middle of another test."""

import gc
import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Tasks of a world that has ended clean up when they are forgotten: what they raise then happens to nobody. What
    was there before the test is not looked through for them: that takes seconds, with all of torch."""
    gc.freeze()
    yield
    hook, sys.unraisablehook = sys.unraisablehook, lambda unraisable: None
    try:
        for _ in range(3):
            gc.collect()
    finally:
        sys.unraisablehook = hook
        gc.unfreeze()
