"""How often one may ask, and what the node remembers of who asks."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bootstrap.rate_limit import RateLimit, Rates, host_of, network_of
from protocol.errors import RefusedError


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
    assert len(limit) == 100


@pytest.mark.parametrize(
    ("caller", "host", "network"),
    [
        ("ipv4:192.0.2.1:50000", "192.0.2.1", "192.0.2.1"),
        ("ipv6:[2001:db8:1:2:3::9]:443", "2001:db8:1:2:3::9", "2001:db8:1:2::/64"),
        ("ipv6:%5B2001:db8:1:2:ffff::1%5D:443", "2001:db8:1:2:ffff::1", "2001:db8:1:2::/64"),
        ("ipv6:%5Bfe80::1%25eth0%5D:443", "fe80::1", "fe80::/64"),
        ("ipv6:[::ffff:192.0.2.1]:50000", "192.0.2.1", "192.0.2.1"),
        ("unix:/run/x", "", ""),
        ("", "", ""),
        ("ipv4:nonsense", "", ""),
    ],
)
def test_callers_are_known_by_what_one_subscriber_has(caller: str, host: str, network: str):
    assert (host_of(caller), network_of(caller)) == (host, network)


@given(st.text(max_size=100))
def test_any_name_of_a_caller_is_read(caller: str):
    network_of(caller)


def test_the_addresses_of_one_network_share_its_limit():
    rates = Rates(by_network=RateLimit(2, 10.0))
    for last in (1, 2):
        rates.take(f"ipv6:[2001:db8::{last}]:1", "", 0.0)
    with pytest.raises(RefusedError, match="from your network at once: try again in 10 s"):
        rates.take("ipv6:[2001:db8::3]:1", "", 0.0)
    rates.take("ipv6:[2001:db8:0:1::3]:1", "", 0.0)


def test_an_invitation_is_limited_from_however_many_addresses():
    rates = Rates(by_invitation=RateLimit(2, 5.0))
    for last in (1, 2):
        rates.take(f"ipv4:192.0.2.{last}:1", "1f9a03c7", 0.0)
    with pytest.raises(RefusedError, match="with this ticket's invitation at once: try again in 5 s"):
        rates.take("ipv4:192.0.2.3:1", "1f9a03c7", 0.0)
    rates.take("ipv4:192.0.2.3:1", "00000000", 0.0)
    rates.take("ipv4:192.0.2.3:1", "", 0.0)
