"""The benchmark of what watching costs runs, and tells shares. Its numbers are for quiet machines."""

from benchmarks.watching import measure


def test_a_small_measurement_ends_with_shares():
    found = measure("nano", pairs=2, steps=3)
    assert found.step_seconds > 0
    assert -1 < found.cpu < 1
