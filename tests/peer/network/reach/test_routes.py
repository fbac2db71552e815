"""Calls to a peer that cannot be dialled, over real daemons of libp2p, relays, TLS and gRPC; the DHT says nothing."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest

from peer.network.contacts import Contacts
from peer.network.discovery import Discovery
from peer.network.reach import relayed as hiding
from peer.network.reach import routes
from peer.network.reach.relayed import RelayedPeer
from peer.network.reach.routes import Routes
from protocol import clock
from protocol.errors import UnreachableError
from protocol.events.activity import Reached
from protocol.events.event import Event
from protocol.identity import PeerId
from protocol.limits import ADDRESS_CHANGE_SECONDS, ADDRESS_CHANGES, ADDRESSES_NAMED, PEERS_SHARE
from protocol.net import gate as gates
from protocol.net.channels import caller, options
from protocol.net.connection_limits import OF_PEERS
from protocol.net.relay import Relay
from protocol.net.streams import TUNNEL, Streams
from protocol.schemas import run_pb2, run_pb2_grpc
from protocol.trust.membership_card import Authority, Signer
from protocol.trust.records import PeerRecord
from tests.peer.network.test_discovery import SetClocks
from tests.reference.admitted import certified, there
from tests.reference.libp2p import Libp2pNode, authority, nodes, operator
from tests.reference.small_manifest import small_manifest

MANIFEST = small_manifest()
NOWHERE = "127.0.0.1:9"
"""Nobody listens on the port of the discard service."""


class NoDht:
    """Holds nothing."""

    async def read_all(self) -> dict[str, object]:
        return {}

    async def store(self, key: str, subkey: str, value: bytes, expiration: float) -> bool:
        return True


class Listening(run_pb2_grpc.RunServicer):
    """Notes who calls."""

    def __init__(self) -> None:
        self.callers: list[PeerId] = []

    async def Describe(self, request: Any, context: Any) -> run_pb2.DescribeReply:
        self.callers.append(caller(context).peer)
        return run_pb2.DescribeReply(descriptor_json=bytes(100_000))


def discovery_of(node: Libp2pNode, by: Authority, **said: Any) -> Discovery:
    record = PeerRecord(peer_id=node.id, address=NOWHERE, role="volunteer", stage=0, slot=0, **said)
    return Discovery(NoDht(), Signer(node.identity, by, node.card), MANIFEST, record)  # type: ignore[arg-type]


@dataclass
class Town:
    """Two relays; a peer behind them, with a gRPC server that nobody is told of; and one that calls it."""

    relays: list[Libp2pNode]
    serving: list[Relay]
    relayed: RelayedPeer
    gate: gates.Gate
    service: Listening
    contacts: Contacts
    here: Discovery
    said: list[Event] = field(default_factory=list)

    async def call(self) -> int:
        """The size of the answer that the relayed peer gives."""
        async with self.contacts.to(self.relayed.discovery.record) as channel:
            reply = await run_pb2_grpc.RunStub(channel).Describe(run_pb2.DescribeRequest(), timeout=20)
            return len(reply.descriptor_json)

    def hear(self) -> None:
        """What the relayed peer tells reaches the caller."""
        self.here.meet(self.relayed.discovery.record, in_person=True)

    async def met(self) -> Streams:
        """The caller's daemon, as soon as the relayed peer is connected to it."""
        assert self.contacts.routes is not None
        streams = self.contacts.routes.streams
        async with asyncio.timeout(30):
            while self.relayed.discovery.record.peer_id not in await streams.connected():
                pass
        return streams

    async def told(self, holds: Callable[[list[str]], bool]) -> list[str]:
        """The relays of the relayed peer's record, as soon as this holds for them."""
        news = self.relayed.discovery.news
        while not holds(self.relayed.discovery.record.via):
            await news.wait(5.0)
        return self.relayed.discovery.record.via


@asynccontextmanager
async def town(folder: Path, meets: bool) -> AsyncIterator[Town]:
    """`meets`: the caller's own daemon is one that the relayed peer knows, as a public peer's."""
    async with AsyncExitStack() as stack:
        names = ("first relay", "second relay", "hidden", "caller")
        one, other, behind, calls = await stack.enter_async_context(nodes(folder, *names))
        by = authority(folder)
        serving = [Relay(each.streams, by) for each in (one, other)]
        for each in serving:
            await each.open()
        server, service = grpc.aio.server(options=options(MANIFEST)), Listening()
        run_pb2_grpc.add_RunServicer_to_server(service, server)
        gate = await gates.bind("127.0.0.1", 0, OF_PEERS, PEERS_SHARE)
        stack.push_async_callback(gate.close, 0.0)
        await gate.serve(server, certified(behind.identity, operator(folder)).serving())
        there, here, said = discovery_of(behind, by), discovery_of(calls, by, libp2p=calls.address), list[Event]()
        relayed = RelayedPeer(behind.streams, there, gate.connect, [one.address, other.address], said.append)
        if meets:
            there.meet(here.record, in_person=True)
        routes_there = Routes(calls.streams, here.signer, here.relays_of)
        contacts = Contacts(MANIFEST, certified(calls.identity, operator(folder)), routes=routes_there)
        stack.push_async_callback(contacts.close)
        made = Town([one, other], serving, relayed, gate, service, contacts, here, said)
        await relayed.begin()
        keeping = asyncio.create_task(relayed.keep())
        made.hear()
        try:
            yield made
        finally:
            keeping.cancel()
            await asyncio.wait((keeping,))


def play(folder: Path, scene: Callable[[Town], Awaitable[None]], meets: bool = False) -> None:
    async def whole() -> None:
        async with town(folder, meets) as made:
            await scene(made)

    asyncio.run(asyncio.wait_for(whole(), 90))


def test_a_peer_that_cannot_be_dialled_is_called_by_its_relays_and_knows_who_calls(tmp_path: Path):
    async def scene(on: Town) -> None:
        assert set(on.relayed.discovery.record.via) == {each.address for each in on.relays}
        assert await on.call() == 100_000
        assert on.service.callers == [on.here.record.peer_id]
        assert sum(budget.streams for each in on.serving for budget in each.budgets.values()) == 1
        assert on.said == [Reached([each.held[address] for address in on.relayed.held for each in [on.relayed]])]

    play(tmp_path, scene)


def test_when_a_relay_dies_calls_go_by_the_other_and_it_is_replaced_in_the_record(tmp_path: Path):
    async def scene(on: Town) -> None:
        await on.call()
        first = on.relayed.discovery.record.via[0]
        (dying,) = [each for each in on.relays if each.address == first]
        await dying.dht.stop()
        assert await on.told(lambda via: first not in via) == [each.address for each in on.relays if each is not dying]
        while True:  # the call in flight, if there is one, is lost; the next goes another way
            try:
                assert await on.call() == 100_000
                break
            except UnreachableError:
                continue
        assert isinstance(on.said[-1], Reached)
        assert len(on.said[-1].relays) == 1

    play(tmp_path, scene)


def test_a_public_peer_calls_over_the_connection_that_the_hidden_one_has_to_it(tmp_path: Path):
    async def scene(on: Town) -> None:
        await on.met()
        assert await on.call() == 100_000
        assert not any(each.budgets for each in on.serving), "no relay has carried anything"

    play(tmp_path, scene, meets=True)


def test_a_stranger_gets_no_tunnel(tmp_path: Path):
    async def scene(on: Town) -> None:
        streams = await on.met()  # else the stranger could not even ask
        on.relayed.discovery.records.clear()
        stranger = await streams.open(on.relayed.discovery.record.peer_id, TUNNEL)
        try:
            assert await stranger.receive_message(200) == b"this peer does not know you"
        finally:
            stranger.close()

    play(tmp_path, scene, meets=True)


def test_who_is_objected_to_gets_no_tunnel(tmp_path: Path):
    async def scene(on: Town) -> None:
        on.relayed.objection = lambda peer: "it was taken out" if peer == on.here.record.peer_id else ""
        streams = await on.met()
        stream = await streams.open(on.relayed.discovery.record.peer_id, TUNNEL)
        try:
            assert await stream.receive_message(200) == b"it was taken out"
        finally:
            stream.close()

    play(tmp_path, scene, meets=True)


def test_so_many_tunnels_are_taken_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(hiding, "TUNNELS", 1)

    async def scene(on: Town) -> None:
        await on.call()
        with pytest.raises(UnreachableError, match="too many tunnels"):
            async with on.contacts.alone(on.relayed.discovery.record) as channel:
                await run_pb2_grpc.RunStub(channel).Describe(run_pb2.DescribeRequest(), timeout=20)

    play(tmp_path, scene)


def test_without_relays_the_error_says_so_and_the_user_is_warned(tmp_path: Path):
    async def scene(on: Town) -> None:
        named = on.relayed.discovery.record.via
        for each in on.relays:
            await each.dht.stop()
        async with asyncio.timeout(60):
            while on.said[-1] != Reached([]):
                await on.relayed.changed.wait()
                await asyncio.sleep(0.1)
        assert set(on.relayed.discovery.record.via) <= set(named), "who says nothing of relays can be dialled"
        assert on.relayed.discovery.record.via
        on.hear()
        with pytest.raises(UnreachableError, match=r"answers no hetpeer/relay|no answer from /ip4"):
            await on.call()

    play(tmp_path, scene)


def test_behind_one_router_a_peer_is_dialled_after_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(routes, "is_loopback", lambda host: False)

    async def scene(on: Town) -> None:
        near = f"127.0.0.1:{on.gate.port}"
        on.relayed.discovery.update_record(address=near)
        on.hear()
        assert await on.contacts.routes.address(on.relayed.discovery.record) == near  # type: ignore[union-attr]
        assert await on.call() == 100_000
        assert not any(each.budgets for each in on.serving)

    play(tmp_path, scene)


def test_who_else_has_its_address_in_this_network_is_passed_by(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(routes, "is_loopback", lambda host: False)

    async def scene(on: Town) -> None:
        async with await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0) as other:
            on.relayed.discovery.update_record(address=f"127.0.0.1:{other.sockets[0].getsockname()[1]}")
            on.hear()
            with pytest.raises(UnreachableError):
                await on.call()
            assert await on.call() == 100_000

    play(tmp_path, scene)


# Several addresses of one peer


async def dialled(named: Routes, *addresses: str) -> str:
    """What is dialled of the server, where it names these addresses."""
    named.others_of = lambda peer: addresses[1:]
    return await named.address(there("server", addresses[0]))


def routes_to_all() -> Routes:
    return Routes(Streams(None), None, lambda peer: ())  # type: ignore[arg-type]


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses at which the server's key answers: none, until a test says so. They are asked in turn."""
    found = list[str]()

    async def first_answering(peer: PeerId, addresses: Sequence[str], seconds: float) -> str:
        assert len(addresses) <= ADDRESSES_NAMED + 1
        asked.append(tuple(addresses))
        if here := [each for each in addresses if each in found]:
            return here[0]
        raise UnreachableError(f"no answer from {addresses[0]}")

    asked.clear()
    monkeypatch.setattr(routes, "first_answering", first_answering)
    return found


asked: list[tuple[str, ...]] = []
"""What `first_answering` was asked in the test that runs."""


def test_the_address_that_answered_is_dialled_until_it_fails(answers: list[str]):
    async def scene() -> None:
        on, peer = routes_to_all(), there("server", "a:1")
        assert await dialled(on, "a:1") == "a:1"
        assert not asked, "one address alone is dialled as it is"
        answers.append("b:1")
        for _ in range(3):
            assert await dialled(on, "a:1", "b:1") == "b:1"
        assert asked == [("a:1", "b:1")]
        answers[:] = ["a:1"]
        on.failed(peer)
        assert await dialled(on, "a:1", "b:1") == "a:1"
        answers.clear()
        on.failed(peer)
        with pytest.raises(UnreachableError, match="no answer from a:1"):
            await dialled(on, "a:1", "b:1")

    asyncio.run(scene())


def test_a_peer_that_names_new_addresses_again_and_again_is_not_dialled_there(answers: list[str]):
    async def scene() -> None:
        on, clocks = routes_to_all(), SetClocks(monotonic_seconds=1000.0, unix_seconds=1_800_000_000.0)
        with clock.read_from(clocks):
            for number in range(ADDRESS_CHANGES):
                assert await dialled(on, f"victim:{number}") == f"victim:{number}"
            with pytest.raises(UnreachableError, match="names new addresses too often"):
                await dialled(on, "victim:99")
            assert await on.address(there("other", "c:1")) == "c:1", "others are called"
            clocks.monotonic_seconds += ADDRESS_CHANGE_SECONDS
            assert await dialled(on, "victim:99") == "victim:99"
            with pytest.raises(UnreachableError, match="names new addresses too often"):
                await dialled(on, "victim:100")

    asyncio.run(scene())


def test_the_addresses_of_so_many_peers_are_kept(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(routes, "PEERS_KEPT", 2)

    async def scene() -> None:
        on = routes_to_all()
        for name in ("ann", "bob", "cleo"):
            await on.address(there(name, "a:1"))
        assert len(on.named) == 2

    asyncio.run(scene())
