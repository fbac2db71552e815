"""A peer whose machine's addresses change: real daemons of libp2p, TLS and gRPC. What the machine has, a test says."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import grpc
import pytest

from peer.network import address_changes
from peer.network.address_changes import AddressChanges, address_fields
from peer.network.contacts import Contacts
from peer.network.discovery import Discovery
from peer.network.reach import reach as reaching
from peer.network.reach.reach import MachineAddresses, Reach, Wish
from peer.network.reach.relayed import Reachability
from protocol.events.event import Event
from protocol.identity import RunId
from protocol.limits import PEERS_SHARE
from protocol.net import gate as gates
from protocol.net.bandwidth import Bandwidth
from protocol.net.channels import options
from protocol.net.connection_limits import OF_PEERS
from protocol.net.relay import Relay
from protocol.schemas import run_pb2, run_pb2_grpc
from protocol.trust.membership_card import Signer
from protocol.trust.records import PeerRecord
from protocol.trust.ticket import Ticket
from tests.peer.network.reach.test_routes import Listening, NoDht
from tests.reference.admitted import certified, identity
from tests.reference.libp2p import Libp2pNode, authority, nodes, operator
from tests.reference.small_manifest import small_manifest
from tests.reference.waiting import until

MANIFEST = small_manifest()
TICKET = Ticket(RunId("ab" * 32), identity("operator").public, ("127.0.0.1:9",), ())
NEW = MachineAddresses(frozenset({"::1"}), "::1")
NONE = MachineAddresses(frozenset(), "")
DIRECT = Wish(way="direct")
AT_FIRST = Reach("127.0.0.1", 0, ("127.0.0.1", None))


class QuietDht(NoDht):
    """The node of a daemon; what is published lies nowhere."""

    def __init__(self, node: Libp2pNode) -> None:
        self.dht = node.dht
        self.move = node.dht.move

    @property
    def addresses(self) -> tuple[str, ...]:
        return self.dht.addresses


@dataclass
class House:
    """A peer that follows the addresses of its machine, and one that calls it."""

    moving: AddressChanges
    relay: Libp2pNode
    caller: Contacts
    service: Listening
    machine: MachineAddresses
    said: list[Event] = field(default_factory=list)
    told: list[PeerRecord] = field(default_factory=list)

    @property
    def record(self) -> PeerRecord:
        return self.moving.discovery.record

    async def call(self) -> None:
        """Call the peer where its record says."""
        async with self.caller.to(self.record) as channel:
            await run_pb2_grpc.RunStub(channel).Describe(run_pb2.DescribeRequest(), timeout=20)


@asynccontextmanager
async def house(folder: Path, wish: Wish, reach: Reach, machine: MachineAddresses) -> AsyncIterator[House]:
    async with AsyncExitStack() as stack:
        here, relay = await stack.enter_async_context(nodes(folder, "peer", "relay"))
        by, service, said = authority(folder), Listening(), list[Event]()
        await Relay(relay.streams, by).open()
        shown = certified(here.identity, operator(folder))
        gate = await gates.bind(reach.host, 0, OF_PEERS, PEERS_SHARE)
        stack.push_async_callback(gate.close, 0.0)
        server = grpc.aio.server(options=options(MANIFEST))
        run_pb2_grpc.add_RunServicer_to_server(service, server)
        await gate.serve(server, shown.serving())
        dht = QuietDht(here)
        told = address_fields(reach, gate.port, dht, relays=False)  # type: ignore[arg-type]
        record = PeerRecord(peer_id=here.id, role="volunteer", stage=0, slot=0, **told)
        discovery = Discovery(dht, Signer(here.identity, by, here.card), MANIFEST, record)  # type: ignore[arg-type]
        contacts, caller = (
            Contacts(MANIFEST, certified(each, operator(folder))) for each in (here.identity, relay.identity)
        )
        for each in (contacts, caller):
            stack.push_async_callback(each.close)
        reachability = Reachability(gate.connect, here.streams, discovery, Bandwidth(), [relay.address], said.append)
        made = House(None, relay, caller, service, machine, said)  # type: ignore[arg-type]

        async def tell(peer: PeerRecord) -> None:
            made.told.append(peer)

        made.moving = AddressChanges(
            wish, TICKET, machine, reach, gate, reachability, discovery, contacts, said.append, tell
        )
        await reachability.open(reach)
        living = asyncio.create_task(here.dht.while_alive(made.moving.watch()))
        keeping = asyncio.create_task(reachability.keep())
        try:
            yield made
        finally:
            for task in (living, keeping):
                task.cancel()
            await asyncio.wait((living, keeping))


def play(
    folder: Path,
    patch: pytest.MonkeyPatch,
    scene: Callable[[House], Awaitable[None]],
    wish: Wish = DIRECT,
    reach: Reach = AT_FIRST,
) -> None:
    patch.setattr(address_changes, "ADDRESS_POLL_SECONDS", 0.05)

    async def run() -> None:
        machine = MachineAddresses(frozenset({reach.host}), reach.host)
        async with house(folder, wish, reach, machine) as made:
            patch.setattr(address_changes, "machine_addresses", lambda ticket: made.machine)
            await scene(made)

    asyncio.run(asyncio.wait_for(run(), 90))


def test_a_peer_whose_address_is_gone_answers_at_the_new_one_and_tells_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async def scene(on: House) -> None:
        before = on.record
        await on.call()
        neighbour = before.model_copy(update={"peer_id": on.relay.id, "libp2p": on.relay.address})
        on.moving.discovery.meet(neighbour, in_person=True)
        on.machine = NONE
        await asyncio.sleep(0.2)  # some looks at a machine without any address
        assert on.record == before
        on.machine = NEW
        await until(lambda: bool(on.told))
        port = before.address.rpartition(":")[2]
        assert on.record.address == f"[::1]:{port}"
        assert on.record.libp2p.startswith("/ip6/::1/tcp/")
        assert on.record.libp2p.split("/")[4:] == before.libp2p.split("/")[4:], "the same port and id"
        assert on.record.sequence > before.sequence
        assert on.told == [neighbour]
        await on.call()

    play(tmp_path, monkeypatch, scene)


def test_a_peer_behind_relays_is_reached_by_them_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    async def scene(on: House) -> None:
        first = on.moving.reachability.relayed
        assert first is not None
        assert on.record.via == [on.relay.address]
        on.machine = NEW
        await until(lambda: on.moving.reachability.relayed is not first and on.moving.reachability.relayed is not None)
        relayed = on.moving.reachability.relayed
        assert relayed is not None
        await until(lambda: list(relayed.held) == [on.relay.address])
        assert (on.moving.gate.address[0], on.record.via, on.record.libp2p) == ("::1", [on.relay.address], "")

    play(tmp_path, monkeypatch, scene, Wish(way="relay"), Reach("127.0.0.1", 0, ("127.0.0.1", None), "by relays alone"))


def test_a_routers_new_address_is_found_out_when_peers_fall_silent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    async def scene(on: House) -> None:
        tries = 0

        async def try_out(wish: Wish, reach: Reach, *of: object) -> Reach:
            nonlocal tries
            tries += 1
            return replace(reach, announced=("203.0.113.8", None))

        monkeypatch.setattr(reaching, "try_out", try_out)
        monkeypatch.setattr(address_changes, "is_loopback", lambda host: False)
        discovery = on.moving.discovery
        neighbour = on.record.model_copy(update={"peer_id": on.relay.id})
        discovery.meet(neighbour, in_person=True)
        await asyncio.sleep(0.2)  # some looks
        assert tries == 0, "nobody has fallen silent"
        discovery.lose(on.relay.id)
        await until(lambda: on.record.address.startswith("203.0.113.8:"))
        await asyncio.sleep(0.2)
        assert tries == 1

    play(tmp_path, monkeypatch, scene, Wish(), Reach("127.0.0.1", 0, ("203.0.113.7", None)))


def test_who_may_listen_in_one_network_alone_is_reached_by_relays_while_that_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async def scene(on: House) -> None:
        on.machine = MachineAddresses(frozenset({"127.0.0.1"}), "127.0.0.1")
        await until(lambda: bool(on.record.via))
        assert on.moving.reach.hosts == ("127.0.0.1",)
        assert on.record.libp2p == ""

    monkeypatch.setattr(address_changes, "is_loopback", lambda host: True)  # there is no node that could dial back
    play(tmp_path, monkeypatch, scene, Wish(listen="[::1]:0"), Reach("::1", 0, ("::1", None)))
