"""Where a peer listens and what others dial: the operator's door is there, and dials back from this machine."""

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest

from bootstrap.node import as_operator
from peer.network.reach.reach import MachineAddresses, Reach, Wish, after_change, answering, find_reach, reach_at
from peer.testnet.child import two_free_ports
from protocol.errors import ResourceError, UserError
from protocol.identity import RunId
from protocol.net.channels import listen, options
from protocol.schemas import run_pb2, run_pb2_grpc
from protocol.trust.ticket import Ticket
from tests.reference.admitted import identity

ANN, OPERATOR = identity("ann"), identity("operator")


class Outside(run_pb2_grpc.RunServicer):
    """A door that says of every peer what the test wants: where it was dialled (None: where it said), and why it is not
    there."""

    def __init__(self, dialled: str | None = None, objection: str = "") -> None:
        self.dialled, self.objection = dialled, objection
        self.asked: list[str] = []

    async def DialBack(self, request: Any, context: Any) -> Any:
        self.asked.append(request.address)
        port = request.address.rpartition(":")[2]
        dialled = request.address if self.dialled is None else f"{self.dialled}:{port}"
        return run_pb2.DialBackReply(dialled=dialled, objection=self.objection)


def found(wish: Wish, folder: Path, door: Any = None, asks: bool = True) -> Reach:
    """What a peer with this wish finds before this door."""

    async def run() -> Reach:
        server = grpc.aio.server(options=options(None))
        run_pb2_grpc.add_RunServicer_to_server(door or run_pb2_grpc.RunServicer(), server)
        port = listen(server, "127.0.0.1:0", as_operator(OPERATOR, 600.0).credentials.for_registration())
        await server.start()
        ticket = Ticket(RunId("ab" * 32), OPERATOR.public, (f"127.0.0.1:{port}",), ())
        try:
            return await find_reach(wish, ticket, ANN, folder, asks)
        finally:
            await server.stop(None)

    return asyncio.run(asyncio.wait_for(run(), 30))


def test_a_peer_that_is_dialled_where_it_listens_announces_that(tmp_path: Path):
    door = Outside()
    reach = found(Wish(), tmp_path, door)
    assert (reach.host, reach.announced, reach.objection, reach.doubt) == ("127.0.0.1", ("127.0.0.1", None), "", "")
    (asked,) = door.asked
    assert reach.port == 0, "any will do: the one that was tried may be another's by now"
    assert reach.address(7700) == "127.0.0.1:7700"
    assert asked.startswith("127.0.0.1:")


def test_behind_a_router_the_fix_is_told_in_words(tmp_path: Path):
    port = two_free_ports()
    reach = found(Wish(listen=f"127.0.0.1:{port}"), tmp_path, Outside("203.0.113.7", "nothing answers there"))
    assert reach.objection == (
        f"others cannot dial this peer at 203.0.113.7:{port} (nothing answers there); it is reached by relays. "
        f"To do without: listen where others call, with --listen 0.0.0.0:{port}: on 127.0.0.1 only this machine does"
    )
    wish = Wish(listen=f"0.0.0.0:{port}", announce=("10.0.0.2",))
    reach = found(wish, tmp_path, Outside(None, "nothing answers there"))
    assert reach.objection.endswith(
        f"forward TCP port {port} on the router to this machine (0.0.0.0), and name it: "
        f"--listen 0.0.0.0:{port} --announce 10.0.0.2"
    )
    assert (reach.port, reach.libp2p_port) == (port, port + 1)


def test_a_router_that_forwards_already_is_found_by_itself(tmp_path: Path):
    reach = found(Wish(), tmp_path, Outside("203.0.113.7"))
    assert not reach.objection
    assert reach.address(7700) == "203.0.113.7:7700"


def test_what_the_user_announces_and_cannot_be_tried_is_believed(tmp_path: Path):
    reach = found(Wish(announce=("me.example.org:7710",)), tmp_path, Outside("203.0.113.7", "nothing answers there"))
    assert not reach.objection
    assert "cannot tell whether others can dial me.example.org:7710" in reach.doubt
    assert reach.address(1) == "me.example.org:7710"


def test_a_node_that_does_not_dial_back_leaves_it_open(tmp_path: Path):
    reach = found(Wish(), tmp_path)
    assert not reach.objection
    assert "cannot tell whether others can dial" in reach.doubt


def test_what_was_found_is_remembered_for_when_no_node_is_there_to_ask(tmp_path: Path):
    assert found(Wish(), tmp_path, asks=False).objection == ""
    first = found(Wish(), tmp_path, Outside("203.0.113.7", "nothing answers there"))
    door = Outside()
    assert found(Wish(), tmp_path, door, asks=False).objection == first.objection
    assert not door.asked
    unable = found(Wish(), tmp_path)
    assert unable.doubt
    assert unable.objection == first.objection
    assert found(Wish(), tmp_path, door).objection == ""
    assert found(Wish(), tmp_path, asks=False).objection == ""


def test_a_user_may_know_better(tmp_path: Path):
    door = Outside(None, "nothing answers there")
    assert found(Wish(way="direct"), tmp_path, door).objection == ""
    assert found(Wish(way="relay"), tmp_path, door).objection
    assert not door.asked


@pytest.mark.parametrize(
    ("wish", "words"),
    [
        (Wish(listen="here"), "--listen takes HOST:PORT"),
        (Wish(listen="::1:7700"), r"in brackets, as in \[::1\]:7700"),
        (Wish(announce=("a b",)), "--announce takes HOST or HOST:PORT"),
    ],
)
def test_a_wish_that_makes_no_sense_is_refused(tmp_path: Path, wish: Wish, words: str):
    with pytest.raises(UserError, match=words):
        found(wish, tmp_path)


def test_a_port_that_is_taken_is_told(tmp_path: Path):
    async def twice() -> None:
        async with answering(ANN, "::1", 0) as port, answering(ANN, "::1", port):
            pass

    with pytest.raises(ResourceError, match=r"cannot listen on \[::1\]:\d+: the port is taken"):
        asyncio.run(twice())


def test_the_port_is_free_again_afterwards():
    async def again() -> None:
        async with answering(ANN, "127.0.0.1", 0) as port:
            pass
        async with answering(ANN, "127.0.0.1", port) as same:
            assert same == port

    asyncio.run(again())


# After the addresses of the machine have changed


def here(*own: str, towards: str | None = None) -> MachineAddresses:
    """A machine with these addresses, of which it calls the operator from the first one, if no other is given."""
    return MachineAddresses(frozenset(own), own[0] if towards is None else towards)


def changed(wish: Wish, before: MachineAddresses, now: MachineAddresses, reach: Reach | None = None) -> Reach | None:
    """What becomes of a peer with port 4000, which was where it wished to be."""
    reach = reach or reach_at(wish, before, before.own)
    return after_change(wish, reach, before, now, before.own | now.own, 4000)


def test_a_peer_whose_address_is_gone_listens_at_the_one_that_leads_to_the_operator():
    moved = changed(Wish(), here("10.0.0.2"), here("10.0.0.3"))
    assert moved == Reach("10.0.0.3", 4000, ("10.0.0.3", None))
    moved = changed(Wish(), here("10.0.0.2"), here("2001:db8::3"))
    assert moved is not None
    assert moved.address(4000) == "[2001:db8::3]:4000"


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (here("10.0.0.2"), here("10.0.0.2", "172.17.0.1")),
        (here("10.0.0.2", "172.17.0.1"), here("10.0.0.2")),
        (here("10.0.0.2"), here("10.0.0.2", "10.8.0.1", towards="10.8.0.1")),
    ],
)
def test_addresses_that_come_and_go_beside_the_ones_in_use_move_nobody(before: MachineAddresses, now: MachineAddresses):
    assert changed(Wish(), before, now) is None
    assert changed(Wish(listen="0.0.0.0:4000"), before, now) is None


def test_without_a_way_to_the_operator_a_peer_waits_where_it_is():
    assert changed(Wish(), here("10.0.0.2"), MachineAddresses(frozenset({"127.0.0.1"}), "")) is None


def test_who_listens_everywhere_announces_its_new_address():
    moved = changed(Wish(listen="0.0.0.0:4000"), here("10.0.0.2"), here("10.0.0.3"))
    assert moved == Reach("0.0.0.0", 4000, ("10.0.0.3", None))


def test_of_several_addresses_those_that_are_there_are_announced_in_the_owners_order():
    wish = Wish(announce=("10.8.0.2", "2001:DB8::2", "me.example.org:7000"))
    all_there = here("10.0.0.2", "10.8.0.2", "2001:db8::2")
    reach = reach_at(wish, all_there, all_there.own)
    assert reach.hosts == ("10.0.0.2", "10.8.0.2", "2001:db8::2")
    assert reach.address(4000) == "10.8.0.2:4000"
    assert reach.other_addresses(4000) == ["[2001:db8::2]:4000", "me.example.org:7000"]
    without = changed(wish, all_there, here("10.0.0.2", "2001:db8::2"))
    assert without is not None
    assert (without.hosts, without.address(4000)) == (("10.0.0.2", "2001:db8::2"), "[2001:db8::2]:4000")
    assert without.other_addresses(4000) == ["me.example.org:7000"]
    back = after_change(wish, without, here("10.0.0.2", "2001:db8::2"), all_there, all_there.own, 4000)
    assert back is not None
    assert (back.hosts, back.announced, back.others) == (reach.hosts, reach.announced, reach.others)


def test_what_a_router_forwards_stays_announced():
    moved = changed(Wish(announce=("203.0.113.7:7000",)), here("192.168.1.2"), here("192.168.1.3"))
    assert moved is not None
    assert (moved.host, moved.address(4000)) == ("192.168.1.3", "203.0.113.7:7000")


def test_who_is_to_listen_in_one_network_alone_listens_in_no_other_when_that_is_gone():
    wish, both = Wish(listen="10.8.0.2:4000"), here("10.0.0.2", "10.8.0.2")
    gone = changed(wish, both, here("10.0.0.2"))
    assert gone is not None
    assert gone.hosts == ("127.0.0.1",)
    assert "10.8.0.2, where this peer is to listen" in gone.objection
    back = after_change(wish, gone, here("10.0.0.2"), both, both.own, 4000)
    assert back == Reach("10.8.0.2", 4000, ("10.8.0.2", None))


def test_no_more_addresses_are_announced_than_others_try():
    with pytest.raises(UserError, match="4 addresses of a peer at most"):
        _ = Wish(announce=("a", "b", "c", "d", "e")).announced
