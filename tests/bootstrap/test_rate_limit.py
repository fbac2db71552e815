"""How often one may ask for a certificate, by where the call comes from and by the invitation that it names."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bootstrap.rate_limit import Rates, host_of, network_of
from protocol.errors import RefusedError
from protocol.net.allowances import RateLimit


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
