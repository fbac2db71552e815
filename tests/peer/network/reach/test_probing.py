"""The way to a door and to peers, over real sockets."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from bootstrap.admission.registration_answers import Measuring
from peer.network.reach.probing import (
    AT_ONCE,
    PROBE_PIECES,
    Handshake,
    MeasuredWay,
    NoWay,
    measure_nodes,
    rate_of,
    shake_hands,
    usual_round_trip,
)
from protocol.net.allowances import RateLimit
from tests.bootstrap.admission.test_registration import House, play
from tests.reference.admitted import credentials


def test_a_way_has_a_round_trip_two_rates_and_a_clock(tmp_path: Path):
    async def scene(house: House) -> None:
        (way,) = await measure_nodes(house.ticket)
        assert isinstance(way, MeasuredWay)
        assert 0 < way.round_trip < 5
        assert min(way.up, way.down) > 1e6
        assert abs(way.ahead) <= way.uncertain + 1.0
        assert (way.round, way.round_seconds) == (0, 0.0)

    play(tmp_path, scene)


def test_the_node_tells_how_fast_the_run_goes(tmp_path: Path):
    async def scene(house: House) -> None:
        house.registration.measuring.pace.round = 7
        house.registration.measuring.pace.ends.extend([(5, 10.0), (7, 30.0)])
        (way,) = await measure_nodes(house.ticket)
        assert isinstance(way, MeasuredWay)
        assert way.round == 7
        assert way.round_seconds > 10.0

    play(tmp_path, scene)


def test_who_measures_too_much_is_told_to_wait(tmp_path: Path):
    async def scene(house: House) -> None:
        house.registration.measuring = Measuring(by_network=RateLimit(PROBE_PIECES, 3600.0))
        (way,) = await measure_nodes(house.ticket)
        assert isinstance(way, NoWay)
        assert "try again in" in way.reason
        assert way.answers

    play(tmp_path, scene)


def test_a_door_that_does_not_open_is_named(tmp_path: Path):
    async def scene(house: House) -> None:
        with closed_port() as nobody:
            silent, way = await measure_nodes(
                type(house.ticket)(
                    house.ticket.run_id, house.ticket.authority, (nobody, *house.ticket.node_addresses), ()
                )
            )
        assert isinstance(silent, NoWay)
        assert nobody in silent.reason
        assert not silent.answers
        assert isinstance(way, MeasuredWay)

    play(tmp_path, scene)


def test_a_peer_shows_its_certificate_to_who_has_none_and_the_way_to_it_is_timed():
    async def scene() -> None:
        server = grpc.aio.server()
        port = server.add_secure_port("127.0.0.1:0", credentials("ann").serving())
        await server.start()
        try:
            with closed_port() as nobody:
                shaken = await shake_hands([f"127.0.0.1:{port}", nobody, "no address", "x:99999999"])
        finally:
            await server.stop(None)
        there, *others = shaken
        assert isinstance(there, Handshake)
        assert 0 < there.round_trip < 5
        assert 0 < there.tls < 5
        assert all(isinstance(each, NoWay) and each.reason for each in others)
        assert usual_round_trip(shaken) == there.round_trip
        assert usual_round_trip(others) is None

    asyncio.run(scene())


def test_a_rate_is_taken_without_its_beginning():
    """A link that carries a piece a second and began slowly."""
    came = [10.0 + number for number in range(PROBE_PIECES)]
    assert rate_of(0.0, came, 1000) == pytest.approx(8000.0)
    assert rate_of(0.0, came[::-1], 1000) == pytest.approx(8000.0)
    in_batches = [float(AT_ONCE * (1 + number // AT_ONCE)) for number in range(PROBE_PIECES)]
    assert rate_of(0.0, in_batches, 1000) == pytest.approx(8000.0)
    assert rate_of(0.0, [4.0], 1000) == pytest.approx(2000.0)


@contextmanager
def closed_port() -> Iterator[str]:
    """An address at which nobody listens while the block lasts."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound.getsockname()[1]}"
