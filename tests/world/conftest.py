"""What every test of a simulated world leaves behind is dropped with it, and not in the middle of another test."""

import gc
from collections.abc import Iterator

import pytest

from tests.reference.garbage import drop


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """What was there before the test is not looked through for what it leaves: that takes seconds, with all of
    torch."""
    gc.freeze()
    yield
    drop()
    gc.unfreeze()


@pytest.fixture(autouse=True, scope="module")
def nothing_is_left_to_other_modules() -> Iterator[None]:
    """What one test still held, and the next took for what was there before, is dropped before other modules run."""
    yield
    drop()
