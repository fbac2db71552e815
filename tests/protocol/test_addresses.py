"""Addresses as text."""

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network

import hypothesis.strategies as st
import pytest
from hypothesis import given

from protocol.addresses import dialled_at, is_public, join_address, moved, multiaddress, read_host, split_address
from protocol.errors import FormatError

TAIL = "tcp/7701/p2p/QmfNi74igfB5xPmSgD68LMZgKe9cJrH7u5k6zBC3Yh9cvM"


@pytest.mark.parametrize(
    ("address", "host", "port"),
    [
        ("127.0.0.1:7700", "127.0.0.1", 7700),
        ("train.example.org:1", "train.example.org", 1),
        ("[::1]:7700", "::1", 7700),
        ("[2001:db8::7]:0", "2001:db8::7", 0),
    ],
)
def test_host_and_port_come_apart_and_together_again(address: str, host: str, port: int):
    assert split_address(address) == (host, port)
    assert join_address(host, port) == address


@pytest.mark.parametrize(
    "address",
    [
        "",
        "host",
        "host:",
        ":7700",
        "::1:7700",
        "[::1]",
        "[::1]:",
        "[host]:1",
        "h:70000",
        "h:-1",
        "h:٣",
        "a b:1",
        "h" * 300 + ":1",
    ],
)
def test_what_is_no_address_is_refused(address: str):
    with pytest.raises(FormatError, match="is no HOST:PORT, with a port from 0 to 65535"):
        split_address(address)


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("me.example.org", "me.example.org", None),
        ("me.example.org:7710", "me.example.org", 7710),
        ("203.0.113.7", "203.0.113.7", None),
        ("2001:db8::7", "2001:db8::7", None),
        ("[2001:db8::7]", "2001:db8::7", None),
        ("[2001:db8::7]:7710", "2001:db8::7", 7710),
    ],
)
def test_a_host_may_be_named_with_or_without_a_port(text: str, host: str, port: int | None):
    assert read_host(text) == (host, port)


@pytest.mark.parametrize("text", ["", "[", "a b", "h:port", "[h]:1"])
def test_what_is_no_host_is_refused(text: str):
    with pytest.raises(FormatError):
        read_host(text)


def test_libp2p_has_its_own_form():
    assert multiaddress("127.0.0.1", 7701) == "/ip4/127.0.0.1/tcp/7701"
    assert multiaddress("::1", 7701) == "/ip6/::1/tcp/7701"


def test_a_libp2p_address_moves_to_the_host_that_others_dial():
    assert moved(f"/ip4/10.0.0.2/{TAIL}", "203.0.113.7") == f"/ip4/203.0.113.7/{TAIL}"
    assert moved(f"/ip4/10.0.0.2/{TAIL}", "2001:db8::7") == f"/ip6/2001:db8::7/{TAIL}"
    assert moved(f"/ip4/10.0.0.2/{TAIL}", "train.example.org") == f"/dns4/train.example.org/{TAIL}"
    assert moved(f"/ip6/::1/{TAIL}", "train.example.org") == f"/dns6/train.example.org/{TAIL}"


def test_of_several_libp2p_addresses_the_one_of_the_hosts_kind_is_dialled():
    both = (f"/ip4/127.0.0.1/{TAIL}", f"/ip6/::1/{TAIL.replace('7701', '7702')}")
    assert dialled_at(both, "203.0.113.7") == f"/ip4/203.0.113.7/{TAIL}"
    assert dialled_at(both, "2001:db8::7") == f"/ip6/2001:db8::7/{TAIL.replace('7701', '7702')}"
    assert dialled_at((), "203.0.113.7") == ""


PRIVATE = (
    "0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12 192.0.2.0/24 192.168.0.0/16 "
    "198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 224.0.0.0/4 240.0.0.0/4"
)
PRIVATE_6 = (
    "::/128 ::1/128 fc00::/7 fe80::/10 fec0::/10 ff00::/8 2001:db8::/32 64:ff9b:1::/48 100::/64 4000::/2 ::7f00:1/128"
)


@given(st.sampled_from([ip_network(each) for each in f"{PRIVATE} {PRIVATE_6}".split()]), st.integers(0, 2**128 - 1))
def test_no_address_of_ones_own_network_a_providers_or_a_group_is_public(network: IPv4Network | IPv6Network, at: int):
    ip = network[at % network.num_addresses]
    assert not is_public(ip)
    if isinstance(ip, IPv4Address):  # and neither is IPv6 that leads to it
        within = int(ip)
        assert not is_public(IPv6Address(int(IPv6Address("::ffff:0:0")) | within))
        assert not is_public(IPv6Address(int(IPv6Address("64:ff9b::")) | within))
        assert not is_public(IPv6Address(int(IPv6Address("2002::")) | within << 80))


@given(st.sampled_from(["1.0.0.0/8", "8.8.0.0/16", "93.184.0.0/16", "2606:4700::/32", "2a00::/12"]), st.integers(0))
def test_addresses_of_the_open_internet_are_public(network: str, at: int):
    chosen = ip_network(network)
    ip = chosen[at % chosen.num_addresses]
    assert is_public(ip)
    if isinstance(ip, IPv4Address):  # behind a network's NAT64, that is how it is reached
        assert is_public(IPv6Address(int(IPv6Address("64:ff9b::")) | int(ip)))
