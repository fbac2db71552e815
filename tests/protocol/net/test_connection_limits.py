"""Which connections go on, wait or are closed."""

from dataclasses import replace
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.identity import PeerId
from protocol.limits import TLS_SECONDS
from protocol.net.connection_limits import (
    OF_LIBP2P,
    OF_PEERS,
    OF_REGISTRATION,
    Connection,
    ConnectionLimits,
    ConnectionTable,
    State,
)

FEW = ConnectionLimits(
    waiting=8,
    waiting_of_address=6,
    waiting_seconds=20.0,
    pending=4,
    pending_of_address=2,
    pending_of_site=3,
    pending_seconds=30.0,
    established=3,
    established_of_peer=2,
)


def arrived(table: ConnectionTable, host: str, now: float = 0.0, speaks: bool = True) -> Connection:
    """A connection that has come in."""
    connection = Connection(host)
    assert connection not in table.arrive(connection, now)
    if speaks:
        table.speak(connection, now)
    return connection


def test_an_address_and_its_site_have_so_many_pending_connections_each():
    table = ConnectionTable(FEW)
    same = [arrived(table, "192.0.2.1") for _ in range(4)]
    assert table.admit(0.0) == (same[:2], [])
    neighbours = [arrived(table, "192.0.2.2") for _ in range(2)]
    assert table.admit(0.0) == (neighbours[:1], [])
    other = arrived(table, "198.51.100.1")
    assert table.admit(0.0) == ([other], [])
    table.remove(same[0])
    assert table.admit(0.0)[0] == [same[2]]


def test_an_ipv6_subscriber_is_a_64_and_its_site_a_48():
    first, second = Connection("2001:db8:1:2::3"), Connection("2001:db8:1:2::4%eth0")
    assert first.address == second.address == "2001:db8:1:2::/64"
    assert Connection("2001:db8:1:9::1").site == first.site == "2001:db8:1::/48"
    assert Connection("::ffff:192.0.2.7").address == "192.0.2.7"
    assert Connection("::ffff:192.0.2.7").site == "192.0.2.0/24"


def test_of_a_full_port_the_address_with_most_makes_way_and_else_a_handshake_that_had_its_time():
    table = ConnectionTable(FEW)
    crowd = [arrived(table, host) for host in ("10.0.1.1", "10.0.1.1", "10.0.2.1", "10.0.3.1")]
    assert table.admit(0.0) == (crowd, [])
    newcomer = arrived(table, "10.0.4.1", 1.0)
    assert table.admit(1.0) == ([newcomer], [crowd[0]])
    late = arrived(table, "10.0.5.1", 1.0)
    assert table.admit(TLS_SECONDS - 1) == ([], []), "all have one"
    assert table.admit(TLS_SECONDS) == ([late], [crowd[1]])


def test_silent_connections_make_way_and_those_that_have_spoken_do_not():
    table = ConnectionTable(replace(FEW, pending=1, pending_of_address=1))
    spoken = [arrived(table, f"10.0.{number}.1") for number in range(3)]
    table.admit(0.0)
    silent = [arrived(table, "10.1.0.1", speaks=False) for _ in range(4)] + [arrived(table, "10.2.0.1", speaks=False)]
    silent += [arrived(table, "10.3.0.1", speaks=False)]
    newcomer = Connection("10.4.0.1")
    assert table.arrive(newcomer, 0.0) == [silent[0]]
    for connection in [*table.silent]:
        table.speak(connection, 0.0)
    late = Connection("10.5.0.1")
    assert table.arrive(late, 0.0) == [late]
    assert {each.state for each in spoken[1:]} == {State.QUEUED}


def test_an_address_that_fills_the_waiting_room_leaves_room_for_others():
    table = ConnectionTable(FEW)
    for _ in range(FEW.waiting_of_address):
        arrived(table, "10.0.0.1", speaks=False)
    more = Connection("10.0.0.1")
    assert table.arrive(more, 0.0) == [more]
    arrived(table, "10.0.0.2")


def test_no_connection_that_has_not_authenticated_takes_the_place_of_one_that_has():
    table = ConnectionTable(FEW)
    peers = [arrived(table, "10.0.0.1") for _ in range(2)]
    table.admit(0.0)
    for number, connection in enumerate(peers):
        assert table.authenticate(connection, PeerId(f"peer {number}"), 0.0) == []
    for number in range(100):
        connection = Connection(f"10.{number}.0.1")
        table.arrive(connection, float(number))
        table.speak(connection, float(number))
        assert not {*table.admit(float(number))[1], *table.expire(float(number))} & {*peers}


def test_a_peer_with_too_many_connections_loses_its_oldest_and_else_the_busiest_address_its_newest():
    table = ConnectionTable(FEW)

    def established(host: str, peer: str) -> tuple[Connection, list[Connection]]:
        connection = arrived(table, host)
        assert table.admit(0.0) == ([connection], [])
        return connection, table.authenticate(connection, PeerId(peer), 0.0)

    first, second = established("10.0.0.1", "ann")[0], established("10.0.0.2", "ann")[0]
    assert established("10.0.0.3", "ann")[1] == [first]
    established("10.0.0.2", "bob")
    newest, closed = established("10.0.0.2", "cyd")
    assert closed == [newest]
    assert second in table.established


def test_connections_end_whose_time_is_over():
    table = ConnectionTable(FEW)
    silent = arrived(table, "10.0.0.1", speaks=False)
    pending = arrived(table, "10.0.0.2")
    table.admit(0.0)
    queued = [arrived(table, "10.0.0.2") for _ in range(2)][1]
    table.admit(0.0)
    assert table.expire(TLS_SECONDS - 1) == []
    assert table.expire(TLS_SECONDS) == [silent]
    assert table.expire(FEW.waiting_seconds) == [queued]
    assert pending in table.expire(FEW.pending_seconds)


def test_where_nobody_sees_who_authenticates_a_connection_that_lasts_is_established():
    table = ConnectionTable(replace(FEW, settles=True))
    connections = [arrived(table, f"10.0.{number}.1") for number in range(4)]
    table.admit(0.0)
    assert len(table.expire(FEW.pending_seconds)) == 1
    assert len(table.established) == FEW.established
    assert len({*connections} & {*table.established}) == FEW.established
    assert not table.pending


@pytest.mark.parametrize("limits", [OF_REGISTRATION, OF_PEERS, OF_LIBP2P])
@given(descriptors=st.integers(24, 100_000))
def test_limits_keep_within_the_descriptors_there_are(limits: ConnectionLimits, descriptors: int):
    within = limits.within(descriptors)
    assert within.descriptors <= descriptors
    assert 1 <= within.pending_of_address <= within.pending
    assert 1 <= within.waiting_of_address <= within.waiting
    assert within.established >= min(limits.established, within.pending) - 1
    if descriptors >= limits.descriptors:
        assert within == limits


@given(st.data())
def test_the_limits_hold_whatever_happens(data: st.DataObject):
    table, now = ConnectionTable(FEW), 0.0
    hosts = st.sampled_from([f"10.0.{site}.{host}" for site in range(3) for host in range(3)])
    here: list[Connection] = []
    for act in islice(data.draw(st.lists(st.sampled_from("aaasssptx"), max_size=60)), 60):
        connection = data.draw(st.sampled_from(here)) if here else None
        closed: list[Connection] = []
        match act:
            case "a":
                connection = Connection(data.draw(hosts))
                here.append(connection)
                closed = table.arrive(connection, now)
            case "s" if connection is not None:
                table.speak(connection, now)
            case "p" if connection is not None:
                closed = table.authenticate(connection, PeerId(data.draw(st.sampled_from("ab"))), now)
            case "x" if connection is not None:
                table.remove(connection)
                here.remove(connection)
            case "t":
                now += data.draw(st.floats(0.0, 40.0))
                closed = table.expire(now)
        closed += table.admit(now)[1]
        here = [each for each in here if each not in closed]
        queued = [each for of_one in table.queued.values() for each in of_one]
        assert {*here} == {*table.silent, *queued, *table.pending, *table.established}
        assert table.waiting.total() == len(table.silent) + len(queued) <= FEW.waiting
        assert len(table.pending) <= FEW.pending
        assert len(table.established) <= FEW.established
        for address in {each.address for each in table.pending}:
            assert sum(each.address == address for each in table.pending) <= FEW.pending_of_address
