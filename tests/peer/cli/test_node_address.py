"""The address of a bootstrap node, as its operator gives it."""

import socket

import pytest

from peer.cli.node_address import listen_address, reach_warning
from protocol.errors import UserError
from protocol.identity import RunId
from protocol.trust.ticket import Ticket


def ticket(*addresses: str) -> Ticket:
    return Ticket(RunId("ab" * 32), b"\2" + b"k" * 32, addresses, ())


@pytest.mark.parametrize(
    ("addresses", "is_warned"),
    [
        (("127.0.0.1:7700",), True),
        (("[::1]:7720",), True),
        (("192.168.1.7:7700",), False),
        (("node.example.org:7700",), False),
        (("127.0.0.1:7700", "10.0.0.1:7700"), False),
    ],
)
def test_a_ticket_of_loopback_alone_is_warned_of(addresses: tuple[str, ...], is_warned: bool):
    warning = reach_warning(ticket(*addresses))
    assert bool(warning) == is_warned
    assert not is_warned or f"--listen 0.0.0.0:{addresses[0][-4:]} --announce HOST" in warning


@pytest.mark.parametrize(("error", "is_refused"), [(socket.EAI_NONAME, True), (socket.EAI_AGAIN, False)])
def test_a_name_that_nobody_knows_is_refused_and_one_that_cannot_be_looked_up_now_is_not(
    error: int, is_refused: bool, monkeypatch: pytest.MonkeyPatch
):
    def look_up(host: str, port: None) -> None:
        raise socket.gaierror(error, "said by the name service")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    if is_refused:
        with pytest.raises(UserError, match=r"--announce no\.such\.host: there is no host of this name"):
            listen_address("0.0.0.0:7700", ["no.such.host"])
    else:
        assert listen_address("0.0.0.0:7700", ["no.such.host"]).announced == ("no.such.host",)


def test_an_address_that_nobody_could_reach_is_refused():
    with pytest.raises(UserError, match="needs --announce"):
        listen_address("0.0.0.0:7700", [])
    with pytest.raises(UserError, match="a port up to 65533"):
        listen_address("127.0.0.1:65534", [])
    assert listen_address("0.0.0.0:7700", ["10.0.0.1"]).announced == ("10.0.0.1",)
