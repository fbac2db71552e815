"""The benchmark of slow members, for less time than it takes to find one."""

from collections.abc import Iterator

import pytest

from benchmarks import slow_member
from tests.world.conftest import drop
from tests.world.runs import get_ready


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Of the simulated world."""
    yield
    drop()


def test_a_row_tells_what_a_group_and_a_datacenter_keep():
    get_ready()
    row = slow_member.play("14 s a step", stage=1, honest=True, spare=True, seconds=40.0)
    assert row.group_kept < 0.8
    assert 0 < row.slow_steps < 5
    assert (row.rightly, row.wrongly, row.dismissed) == (0, 0, 0)
    assert "stage 1, told, a spare" in slow_member.line(row)
