"""What the door answers to whoever asks: dialling back, over real sockets; pieces to measure with; a view that fits
into a message. The callers' names are what gRPC would say of them."""

import asyncio
import socket
from collections.abc import Awaitable, Callable

import pytest

from bootstrap.admission import registration_answers
from bootstrap.admission.registration_answers import (
    NOBODY,
    PIECES_BURST,
    VIEWS_BURST,
    Dialler,
    Measuring,
    StatusAnswers,
    fitting,
)
from peer.network.reach.reach import answering
from protocol.errors import FormatError, RefusedError
from protocol.limits import CHUNK_BYTES
from protocol.monitor import LineView, PeerView, RoundView, View
from protocol.net.allowances import RateLimit
from tests.reference.admitted import identity

ANN = identity("ann")
HERE = "ipv4:127.0.0.1:40000"
ONE, OTHER = "ipv4:192.0.2.1:5000", "ipv4:198.51.100.1:5000"


def play(scene: Callable[[int], Awaitable[None]], host: str = "127.0.0.1") -> None:
    """While Ann listens."""

    async def whole() -> None:
        async with answering(ANN, host, 0) as port:
            await scene(port)

    asyncio.run(asyncio.wait_for(whole(), 60))


def test_who_listens_where_it_calls_from_is_told_so():
    async def scene(port: int) -> None:
        assert await Dialler().dial(HERE, ANN.peer_id, f"127.0.0.1:{port}") == (f"127.0.0.1:{port}", "")
        assert await Dialler().dial(HERE, ANN.peer_id, f"localhost:{port}") == (f"localhost:{port}", "")

    play(scene)


def test_over_ipv6_as_well():
    async def scene(port: int) -> None:
        caller = "ipv6:%5B::1%5D:40000"
        assert await Dialler().dial(caller, ANN.peer_id, f"[::1]:{port}") == (f"[::1]:{port}", "")
        assert await Dialler().dial(caller, ANN.peer_id, f"[0:0::0:1]:{port}") == (f"[0:0::0:1]:{port}", "")

    play(scene, "::1")


def test_another_host_than_the_callers_is_never_dialled():
    async def scene(port: int) -> None:
        for named in ("192.0.2.1", "192.168.1.5", "no-such-name.invalid", "[::1]"):
            assert await Dialler().dial(HERE, ANN.peer_id, f"{named}:{port}") == (f"127.0.0.1:{port}", "")

    play(scene)


def test_a_closed_port_and_another_peer_and_something_else_are_told_apart():
    async def scene(port: int) -> None:
        with socket.create_server(("127.0.0.1", 0)) as closed:
            free = closed.getsockname()[1]
        assert await Dialler().dial(HERE, ANN.peer_id, f"127.0.0.1:{free}") == (f"127.0.0.1:{free}", NOBODY)
        _, objection = await Dialler().dial(HERE, identity("bob").peer_id, f"127.0.0.1:{port}")
        assert objection == "another peer answers there"

        async def chatter(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"220 welcome to something else\r\n")
            await writer.drain()
            writer.close()

        async with await asyncio.start_server(chatter, "127.0.0.1", 0) as other:
            elsewhere = other.sockets[0].getsockname()[1]
            _, objection = await Dialler().dial(HERE, ANN.peer_id, f"127.0.0.1:{elsewhere}")
        assert objection == "something else answers there"

    play(scene)


def test_what_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(registration_answers, "DIAL_SECONDS", 0.2)

    async def scene(port: int) -> None:
        dialler = Dialler()
        with socket.create_server(("127.0.0.1", 0)) as silent:
            where = f"127.0.0.1:{silent.getsockname()[1]}"
            assert await dialler.dial(HERE, ANN.peer_id, where) == (where, NOBODY)
        assert dialler.open == 0

    play(scene)


def test_nobody_dials_often_by_it():
    async def scene(port: int) -> None:
        dialler = Dialler(RateLimit(2, 3600.0))
        for _ in range(2):
            await dialler.dial(HERE, ANN.peer_id, f"127.0.0.1:{port}")
        with pytest.raises(RefusedError, match="too many ask to be dialled: try again in 3600 s"):
            await dialler.dial(HERE, ANN.peer_id, f"127.0.0.1:{port}")

    play(scene)


@pytest.mark.parametrize("address", ["", "127.0.0.1", "::1:80", "127.0.0.1:99999"])
def test_what_is_no_address_is_refused(address: str):
    with pytest.raises(FormatError):
        asyncio.run(Dialler().dial(HERE, ANN.peer_id, address))


@pytest.mark.parametrize(("caller", "address"), [("unix:/tmp/socket", "127.0.0.1:80"), (HERE, "127.0.0.1:0")])
def test_without_an_address_or_port_there_is_nothing_to_dial(caller: str, address: str):
    with pytest.raises(RefusedError, match="no address to dial"):
        asyncio.run(Dialler().dial(caller, ANN.peer_id, address))


# How good the way to the node is


def test_an_answer_is_as_long_as_was_asked_for():
    measuring = Measuring()
    assert [len(measuring.answer(ONE, b"", wanted)) for wanted in (0, 1, CHUNK_BYTES)] == [0, 1, CHUNK_BYTES]


@pytest.mark.parametrize(("piece", "wanted"), [(bytes(CHUNK_BYTES + 1), 0), (b"", CHUNK_BYTES + 1)])
def test_pieces_have_a_bound_in_both_directions(piece: bytes, wanted: int):
    with pytest.raises(RefusedError, match="262144 bytes at most"):
        Measuring().answer(ONE, piece, wanted)


def test_a_network_is_told_to_wait_while_another_measures():
    measuring = Measuring()
    for _ in range(PIECES_BURST):
        measuring.answer(ONE, b"", 1)
    with pytest.raises(RefusedError, match="try again in 1 s"):
        measuring.answer(ONE, b"", 1)
    assert measuring.answer(OTHER, b"", 1)


def test_everybody_together_measures_within_a_bound():
    measuring = Measuring(by_all=RateLimit(2, 3600.0))
    for caller in (ONE, OTHER):
        measuring.answer(caller, b"", 1)
    with pytest.raises(RefusedError, match="too much is measured at once"):
        measuring.answer("ipv4:203.0.113.1:1", b"", 1)


# How the run goes


def view(peers: int = 1, rounds: int = 1, lines: int = 1) -> View:
    ids = [f"Qm{number:044}" for number in range(peers)]
    return View(
        run_id="ab" * 32,
        now=2.0,
        started=1.0,
        stages=1,
        replicas=1,
        rounds=100,
        round=1,
        inner_steps=2,
        compression=1,
        tokens=0,
        tokens_per_second=0.0,
        peers=[PeerView(id=each, role="datacenter") for each in ids],
        groups=[],
        history=[RoundView(round=each, began=1.0, contributions=dict.fromkeys(ids, 2)) for each in range(rounds)],
        log=[LineView(at=1.0, kind="Refused", words=f"line {each}") for each in range(lines)],
    )


def test_a_view_that_fits_is_all_there():
    whole = view(3, 4, 5)
    assert View.model_validate_json(fitting(whole)) == whole


def test_what_does_not_fit_loses_the_oldest_first():
    cut = View.model_validate_json(fitting(view(50, 40, 10), 30_000))
    assert cut.history
    assert cut.history[-1].round == 39
    assert cut.log[-1].words == "line 9"
    assert len(cut.peers) == 50


@pytest.mark.parametrize("most", [100_000, 10_000, 1000])
def test_whatever_there_is_fits(most: int):
    assert len(fitting(view(400, 100, 200), most)) <= most


def test_a_network_is_told_to_wait_while_another_hears_how_the_run_goes():
    status = StatusAnswers(view)
    for _ in range(VIEWS_BURST):
        status.answer(ONE)
    with pytest.raises(RefusedError, match="try again in 1 s"):
        status.answer(ONE)
    assert View.model_validate_json(status.answer(OTHER)) == view()


def test_everybody_together_asks_within_a_bound():
    status = StatusAnswers(view, by_all=RateLimit(1, 3600.0))
    status.answer(ONE)
    with pytest.raises(RefusedError, match="asked for too often"):
        status.answer(OTHER)


def test_many_who_ask_at_once_cost_one_view():
    made: list[View] = []

    def make() -> View:
        made.append(view())
        return made[-1]

    status = StatusAnswers(make)
    assert len({status.answer(caller) for caller in (ONE, OTHER, ONE)}) == 1
    assert len(made) == 1
