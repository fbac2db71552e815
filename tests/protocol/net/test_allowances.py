"""How much may be used at once, how fast it comes back, how many users are remembered, and how long one pauses."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.net.allowances import RateLimit, TokenBucket, pause_after


def plain_bucket(burst: int, seconds: float, times: list[float]) -> list[bool]:
    """A bucket of `burst` tokens, filled by one every `seconds`."""
    level, before, allowed = float(burst), 0.0, []
    for now in times:
        level, before = min(burst, level + (now - before) / seconds), now
        allowed.append(level >= 1)
        level -= allowed[-1]
    return allowed


@given(
    burst=st.integers(1, 8),
    seconds=st.sampled_from([0.25, 0.5, 1.0, 4.0]),
    gaps=st.lists(st.integers(0, 40).map(lambda eighths: eighths / 8), max_size=60),
)
def test_a_limit_is_a_token_bucket(burst: int, seconds: float, gaps: list[float]):
    times = [math.fsum(gaps[: number + 1]) for number in range(len(gaps))]
    limit = RateLimit(burst, seconds)
    assert [not limit.wait_seconds("a", now) for now in times] == plain_bucket(burst, seconds, times)


@given(burst=st.integers(1, 100), seconds=st.floats(0.001, 100), now=st.floats(0, 1e7))
def test_who_waits_as_long_as_it_is_told_is_let_in_and_nobody_sooner(burst: int, seconds: float, now: float):
    limit = RateLimit(burst, seconds)
    assert [limit.wait_seconds("a", now) for _ in range(burst)] == [0] * burst
    wait = limit.wait_seconds("a", now)
    assert wait == pytest.approx(seconds, abs=1e-5)
    assert limit.wait_seconds("a", now + wait * 0.9) > 0
    assert limit.wait_seconds("a", now + wait) == 0


def test_each_is_held_to_its_own_limit():
    limit = RateLimit(1, 10.0)
    assert limit.wait_seconds("a", 0.0) == 0
    assert limit.wait_seconds("b", 0.0) == 0
    assert limit.wait_seconds("a", 1.0) == 9.0


def test_however_many_ask_the_memory_is_bounded_and_who_keeps_asking_is_remembered():
    limit = RateLimit(1, 1e6, keys_kept=100)
    limit.wait_seconds("loud", 0.0)
    for number in range(10_000):
        limit.wait_seconds(str(number), float(number))
        assert limit.wait_seconds("loud", float(number)) > 0
    assert len(limit.buckets) == 100


def test_what_is_owed_has_to_come_back_before_anything_is_spent():
    bucket = TokenBucket(per_second=2.0, most=10.0)
    bucket.take(14.0, 0.0)
    assert (bucket.left(0.0), bucket.wait_seconds(0.0, 0.0), bucket.wait_seconds(1.0, 1.0)) == (-4.0, 2.0, 1.5)
    assert bucket.spend(1.0, 2.0) == 0.5
    assert bucket.left(2.0) == 0.0, "what was not spent is there"
    assert bucket.spend(1.0, 2.5) == 0.0
    assert bucket.left(2.5) == 0.0
    assert bucket.left(1e9) == 10.0


def test_each_failure_doubles_the_pause_up_to_the_most():
    assert [pause_after(failures, 1.0, 10.0) for failures in range(7)] == [0.0, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0]


def test_a_failure_forgiven_in_part_counts_for_less():
    assert pause_after(1.0, 4.0, 60.0) < pause_after(1.75, 4.0, 60.0) < pause_after(2.0, 4.0, 60.0)


def test_any_number_of_failures_has_a_pause():
    assert pause_after(10**9, 0.25, 3600.0) == 3600.0
