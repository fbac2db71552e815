"""What others may do to a node of the DHT: real daemons of libp2p on loopback, some with hivemind's bare code."""

import asyncio
import math
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgpack
import pytest

from protocol.clock import monotonic
from protocol.errors import FormatError, RefusedError, ResourceError
from protocol.identity import PeerId
from protocol.limits import (
    DHT_ASKED_OF_PEER,
    DHT_MEMBER_SAVED,
    DHT_MESSAGE_BYTES,
    DHT_NEW_NODE_COST,
    DHT_PER_SECOND,
    DHT_REFUSED,
    DHT_SAVED,
    DHT_SILENT_SECONDS,
    DHT_STRANGER_PER_SECOND,
    DHT_STRANGER_SAVED,
    DHT_STRANGERS_PER_SECOND,
    DHT_STRANGERS_SAVED,
    RECORDS_READ,
)
from protocol.net import dht as dhts
from protocol.net import libp2p
from protocol.net.dht import Dht
from protocol.net.dht_checks import Costs, DhtEntry, packed_dictionary, unpacked
from protocol.net.streams import Stream
from protocol.net.tasks import first_of
from tests.protocol.net.test_dht import nodes
from tests.reference.waiting import until

SILENT_SECONDS = 0.3


class Texts:
    """Rules by which texts that are not "bad" may lie under some keys for half a minute. It counts what it is asked."""

    keys = ("texts 0", "texts 1", "texts 2", "texts 3")

    def __init__(self) -> None:
        self.until = time.time() + 30
        self.asked: list[object] = []
        self.threads: set[int] = set()

    def expiration(self, key: str, subkey: str, value: object) -> float:
        self.asked.append(value)
        self.threads.add(threading.get_ident())
        if not isinstance(value, str) or value.startswith("bad"):
            raise FormatError("no text, or a bad one")
        return self.until

    def signatures(self, value: object) -> int:
        return 1


KEY = Texts.keys[0]


@dataclass
class Context:
    """Who has sent a call, as hivemind's handlers are told."""

    remote_id: Any


@asynccontextmanager
async def bare(*to: Dht) -> AsyncIterator[Any]:
    """Somebody else's program: hivemind's code as it is, without a name in the run, connected to nodes."""
    from hivemind.p2p import P2P, PeerID
    from hivemind.utils.multiaddr import Multiaddr

    p2p = await P2P.create(nat_port_map=False, auto_nat=False, use_relay=False)
    try:
        for node in to:
            where, _, peer = node.addresses[0].rpartition("/p2p/")
            await p2p._client.connect(PeerID.from_base58(peer), [Multiaddr(where)])
        yield p2p
    finally:
        await p2p.shutdown()


def offer(rules: Texts, *records: tuple[str, str], said: bytes = b"") -> Any:
    """A request to store records, (owner, text), under one key."""
    from hivemind.dht.routing import DHTID
    from hivemind.proto import dht_pb2

    return dht_pb2.StoreRequest(
        keys=[DHTID.generate(KEY).to_bytes()] * len(records),
        subkeys=[msgpack.packb(owner) for owner, _ in records],
        values=[msgpack.packb(text) for _, text in records],
        expiration_time=[rules.until] * len(records),
        in_cache=[False] * len(records),
        peer=dht_pb2.NodeInfo(node_id=said),
    )


async def asked(by: Any, node: Dht, request: Any) -> Any:
    """What a node answers; None: it refuses."""
    from hivemind.p2p.p2p_daemon_bindings.utils import P2PDaemonError, P2PHandlerError
    from hivemind.proto import dht_pb2

    name = type(request).__name__.removesuffix("Request")
    kind = getattr(dht_pb2, f"{name}Response")
    with suppress(P2PHandlerError, P2PDaemonError):
        called = by.call_protobuf_handler(node.p2p.peer_id, f"DHTProtocol.rpc_{name.lower()}", request, kind)
        return await asyncio.wait_for(called, 20)
    return None


def play(scene: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(scene(), 60))  # type: ignore[arg-type]


def test_a_stranger_has_so_many_records_checked_and_others_are_served_as_ever(tmp_path: Path):
    rules, other = Texts(), Texts()
    other.until = rules.until

    async def scene() -> None:
        async with nodes(tmp_path, rules, other) as (node, member), bare(node) as stranger:
            await node.attach(member.addresses)
            rules.asked.clear()
            began = time.monotonic()
            flood = [[("s", f"bad {call} {number}") for number in range(200)] for call in range(10)]
            calls = [asyncio.create_task(asked(stranger, node, offer(rules, *each))) for each in flood]
            assert await member.store(KEY, "m", "good", rules.until)  # type: ignore[arg-type]
            answers = await asyncio.gather(*calls)
            bad = [each for each in rules.asked if str(each).startswith("bad")]
            assert len(bad) <= DHT_STRANGER_SAVED + DHT_STRANGER_PER_SECOND * (time.monotonic() - began)
            assert not any(ok for each in answers if each for ok in each.store_ok)
            assert await node.read(KEY) == {"m": "good"}

    play(scene)


def test_a_record_is_checked_once_and_not_where_the_loop_runs(tmp_path: Path):
    rules = Texts()

    async def scene() -> None:
        async with nodes(tmp_path, rules) as (node,), bare(node) as stranger:
            for _ in range(3):
                await asked(stranger, node, offer(rules, ("s", "good"), ("s", "good")))
            assert rules.asked == ["good"]
            assert threading.get_ident() not in rules.threads
            assert await node.read(KEY) == {"s": "good"}

    play(scene)


def test_a_record_that_is_older_than_the_one_held_is_neither_checked_nor_handed_on(tmp_path: Path):
    """A stranger that replays what others have replaced pays for the call alone, and no reader gets the old record."""

    class Dated(Texts):
        """Each text holds until the time that it names, in seconds from the start."""

        def expiration(self, key: str, subkey: str, value: object) -> float:
            super().expiration(key, subkey, value)
            return self.until + float(str(value))

    rules, handed_on = Dated(), list[tuple[bytes, ...]]()

    def dated(text: str, whole: bool) -> Any:
        request = offer(rules, ("a", text))
        request.expiration_time[0] = rules.until + float(text)
        if whole:
            request.values[0] = packed_dictionary(
                [DhtEntry("", msgpack.packb("a"), msgpack.packb(text), rules.until + float(text))]
            )
            request.subkeys[0] = b""
        return request

    async def scene() -> None:
        async with nodes(tmp_path, rules) as (node,), bare(node) as stranger:
            (ok,) = (await asked(stranger, node, dated("10", False))).store_ok
            assert ok
            rules.asked.clear()
            handler = node.node.protocol.rpc_store

            async def recorded(request: Any, context: Any) -> Any:
                handed_on.append(tuple(request.values))
                return await handler(request, context)

            for whole in (False, True):
                for older in ("5", "10"):
                    context = Context(stranger.peer_id)
                    assert not any((await node.calls.answer(recorded, dated(older, whole), context)).store_ok)
            assert handed_on == [()] * 4
            assert rules.asked == []
            assert await node.read(KEY) == {"a": "10"}

    play(scene)


def test_calls_of_strangers_are_refused_beyond_what_they_have_and_who_goes_on_is_hung_up_on(tmp_path: Path):
    from hivemind.proto import dht_pb2

    async def scene() -> None:
        async with nodes(tmp_path, Texts()) as (node,), bare(node) as stranger:
            began, many = time.monotonic(), int(DHT_STRANGER_SAVED) + DHT_REFUSED + 60
            answers = [await asked(stranger, node, dht_pb2.PingRequest()) for _ in range(many)]
            served = sum(each is not None for each in answers)
            assert served <= DHT_STRANGER_SAVED + DHT_STRANGER_PER_SECOND * (time.monotonic() - began)
            while PeerId(stranger.peer_id.to_base58()) in await node.streams.connected():
                await asked(stranger, node, dht_pb2.PingRequest())

    play(scene)


def test_answers_are_cut_to_what_a_message_may_hold(tmp_path: Path):
    from hivemind.dht.routing import DHTID
    from hivemind.proto import dht_pb2

    rules = Texts()

    async def scene() -> None:
        async with nodes(tmp_path, rules) as (node,), bare(node) as stranger:
            many, long = [str(each) for each in range(400)], "x" * 4000
            for key in rules.keys:
                await node.node.store_many([key] * len(many), [long] * len(many), rules.until, many)
            keys = [DHTID.generate(key).to_bytes() for key in rules.keys]
            answer = await asked(stranger, node, dht_pb2.FindRequest(keys=keys))
            assert answer is not None
            assert answer.ByteSize() <= DHT_MESSAGE_BYTES
            for result in answer.results:
                found = unpacked(result.value)
                assert len(found) > 10
                assert all(msgpack.unpackb(value) == long for _, value, _ in found)
            too_many = dht_pb2.FindRequest(keys=[os.urandom(20) for _ in range(1000)])
            assert await asked(stranger, node, too_many) is None

    play(scene)


def test_a_node_holds_so_many_records_under_a_key_and_who_comes_later_has_a_place_too(tmp_path: Path):
    rules = Texts()

    async def scene() -> None:
        async with nodes(tmp_path, rules, rules) as (node, by):
            await node.attach(by.addresses)
            many = [str(each) for each in range(RECORDS_READ)]
            await node.node.store_many([KEY] * len(many), ["x"] * len(many), rules.until, many)
            for late in ("late", "later"):
                (ok,) = (await asked(by.p2p, node, offer(rules, (late, "good")))).store_ok
                assert ok
            (held,) = (item.value for _, item in node.node.protocol.storage.items())
            assert len(held) == RECORDS_READ
            assert "later" in held

    play(scene)


def test_a_stranger_under_many_ids_takes_few_places_and_is_handed_nothing(tmp_path: Path):
    from hivemind.dht.routing import DHTID
    from hivemind.proto import dht_pb2

    rules = Texts()

    async def scene() -> None:
        async with nodes(tmp_path, rules) as (node,), bare(node) as stranger:
            await node.store(KEY, "a", "good", rules.until)  # type: ignore[arg-type]
            given = list[Any]()

            async def take(request: Any, context: Any) -> Any:
                given.append(request)
                return dht_pb2.StoreResponse(store_ok=[True] * len(request.keys))

            await stranger.add_protobuf_handler("DHTProtocol.rpc_store", take, dht_pb2.StoreRequest)
            began = time.monotonic()
            for _ in range(100):
                said = dht_pb2.NodeInfo(node_id=DHTID.generate().to_bytes())
                await asked(stranger, node, dht_pb2.PingRequest(peer=said))
            most = (DHT_STRANGER_SAVED + DHT_STRANGER_PER_SECOND * (time.monotonic() - began)) / DHT_NEW_NODE_COST
            assert 0 < len(node.node.protocol.routing_table.uid_to_peer_id) <= most
            assert given == []

    play(scene)


@dataclass
class Lie:
    """What a node has to say of any key, and whom it names as near to it. How often it was asked."""

    dictionary: bytes
    expiration: float
    near: tuple[Dht, ...] = ()
    asked: int = 0


@asynccontextmanager
async def lying(lie: Lie, *known: Dht) -> AsyncIterator[str]:
    """The address of a node that says this, and that is connected to those it knows: an answer names neighbours
    without their addresses, which libp2p's daemons learn of each other."""
    from hivemind.dht.routing import DHTID
    from hivemind.proto import dht_pb2

    async with bare(*known, *lie.near) as p2p:
        me = dht_pb2.NodeInfo(node_id=DHTID.generate().to_bytes())

        async def ping(request: Any, context: Any) -> Any:
            return dht_pb2.PingResponse(peer=me, dht_time=time.time(), available=True)

        async def find(request: Any, context: Any) -> Any:
            lie.asked += 1
            said = dht_pb2.FindResult(
                type=dht_pb2.FOUND_DICTIONARY,
                value=lie.dictionary,
                expiration_time=lie.expiration,
                nearest_node_ids=[each.node.node_id.to_bytes() for each in lie.near],
                nearest_peer_ids=[each.p2p.peer_id.to_bytes() for each in lie.near],
            )
            return dht_pb2.FindResponse(results=[said] * len(request.keys), peer=me)

        await p2p.add_protobuf_handler("DHTProtocol.rpc_ping", ping, dht_pb2.PingRequest)
        await p2p.add_protobuf_handler("DHTProtocol.rpc_find", find, dht_pb2.FindRequest)
        (where, *_) = await p2p.get_visible_maddrs()
        yield str(where)


def dictionary(rules: Texts, **records: str) -> bytes:
    return packed_dictionary(
        DhtEntry("", msgpack.packb(owner), msgpack.packb(text), rules.until) for owner, text in records.items()
    )


NESTED = msgpack.packb(msgpack.ExtType(0x50, msgpack.packb(["large", 1.0, []])))
"""Of a size that is no number, which hivemind compares with one."""


def test_an_answer_with_an_expiry_that_is_made_up_ends_no_search_and_is_not_remembered(tmp_path: Path):
    """Each search has to come by the liar to who has the record: no answer can overtake another."""
    rules = Texts()
    good = {"a": "good"}
    said = {
        "nothing": (packed_dictionary([]), good),
        "no size": (NESTED, good),
        "no msgpack": (b"\xc1", good),
        "one of two": (dictionary(rules, b="good"), good | {"b": "good"}),
    }

    async def scene() -> None:
        async with nodes(tmp_path / "keeper", rules) as (keeper,), nodes(tmp_path / "reader", rules) as (reader,):
            assert await keeper.store(KEY, "a", "good", rules.until)  # type: ignore[arg-type]
            lie = Lie(b"", 0.0, (keeper,))
            async with lying(lie, reader) as address:
                assert await reader._meet(*dhts.by_peer([address]).popitem())
                known, stored = reader.node.protocol.routing_table, reader.node.protocol.storage
                await asyncio.sleep(0)  # hivemind notes whom it has met in a task of its own
                assert len(known.uid_to_peer_id) == 1
                for name, (lie.dictionary, expected) in said.items():
                    for lie.expiration in (math.inf, math.nan, 1e300):
                        lie.asked = 0
                        assert await reader.read(KEY) == expected, f"{name}, until {lie.expiration}"
                        assert lie.asked == 1
                        assert len(stored) == len(reader.node.protocol.cache) == 0
                        del known[keeper.node.node_id]

    play(scene)


def test_a_bad_record_in_an_answer_hides_no_other(tmp_path: Path):
    rules = Texts()

    async def scene() -> None:
        said = dictionary(rules, a="good", b="bad", c="as good")
        async with nodes(tmp_path, rules) as (reader,), lying(Lie(said, rules.until), reader) as address:
            assert await reader.attach([address]) == 1
            assert await reader.read(KEY) == {"a": "good", "c": "as good"}

    play(scene)


def test_a_record_said_to_live_longer_is_the_old_one_by_every_way_into_a_node(tmp_path: Path):
    """Stored alone, stored in a dictionary, stored into the cache, or in an answer."""
    rules = Texts()

    async def scene() -> None:
        later = rules.until + 20
        async with nodes(tmp_path, rules) as (node,), bare(node) as stranger:
            alone, whole, cached = (offer(rules, ("a", "good")) for _ in range(3))
            alone.expiration_time[0] = cached.expiration_time[0] = whole.expiration_time[0] = later
            cached.in_cache[0], whole.subkeys[0] = True, b""
            whole.values[0] = packed_dictionary([DhtEntry("", msgpack.packb("a"), msgpack.packb("good"), later)])
            for request in (alone, whole, cached):
                assert not any((await asked(stranger, node, request)).store_ok)
            longer = packed_dictionary([DhtEntry("", msgpack.packb("a"), msgpack.packb("good"), later)])
            async with lying(Lie(longer, later), node) as address:
                assert await node.attach([address]) == 1
                assert await node.read(KEY) == {}
            assert len(node.node.protocol.storage) == len(node.node.protocol.cache) == 0

    play(scene)


def test_a_call_that_its_caller_gives_up_is_not_taken_from_under_hivemind(tmp_path: Path):
    """An answer in the same moment would end its reading of the daemon, for good and without a word."""
    from hivemind.proto import dht_pb2

    async def scene() -> None:
        async with nodes(tmp_path, Texts()) as (node,), bare(node) as slow:
            now, came = asyncio.Event(), asyncio.Event()

            async def answer(request: Any, context: Any) -> Any:
                came.set()
                await now.wait()
                return dht_pb2.PingResponse()

            await slow.add_protobuf_handler("slow", answer, dht_pb2.PingRequest)
            call = node.p2p.call_protobuf_handler(slow.peer_id, "slow", dht_pb2.PingRequest(), dht_pb2.PingResponse)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.5):
                    await call
            await came.wait()
            pending = node.p2p._client.control._pending_calls.values()
            assert not any(each.cancelled() for each in pending)
            now.set()
            while node.calls.asked:
                await asyncio.wait(list(node.calls.asked))
            assert await libp2p.p2pd_answers(node.p2p, node.calls.tasks)

    play(scene)


def test_who_leaves_calls_unanswered_is_asked_no_more_and_hung_up_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from hivemind.proto import dht_pb2

    monkeypatch.setattr("protocol.net.dht_calls.DHT_ASKED_SECONDS", 0.0)

    async def scene() -> None:
        async with nodes(tmp_path, Texts()) as (node,), bare(node) as silent:
            came = asyncio.Semaphore(0)

            async def never(request: Any, context: Any) -> Any:
                came.release()
                await asyncio.Event().wait()

            await silent.add_protobuf_handler("silent", never, dht_pb2.PingRequest)
            ping = dht_pb2.PingRequest(), dht_pb2.PingResponse
            calls = [
                asyncio.create_task(node.p2p.call_protobuf_handler(silent.peer_id, "silent", *ping)) for _ in range(30)
            ]
            for _ in range(DHT_ASKED_OF_PEER):
                await came.acquire()
            assert len(node.calls.asked) == DHT_ASKED_OF_PEER
            node.calls.let_go_of_silent()
            assert all(isinstance(each, Exception) for each in await asyncio.gather(*calls, return_exceptions=True))
            assert not node.calls.asked

    play(scene)


def freeze(node: Dht) -> None:
    os.kill(node.p2p._child.pid, signal.SIGSTOP)


def kill(node: Dht) -> None:
    node.p2p._child.kill()


def stop_reading(node: Dht) -> None:
    node.p2p._client.control._read_task.cancel()


@pytest.mark.parametrize("harm", [freeze, kill, stop_reading])
def test_a_daemon_that_is_gone_in_any_way_is_replaced_and_work_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, harm: Callable[[Dht], None]
):
    monkeypatch.setattr(dhts, "P2PD_HEARTBEAT_SECONDS", 0.1)
    monkeypatch.setattr(libp2p, "P2PD_TIMEOUT_SECONDS", SILENT_SECONDS)
    rules = Texts()

    async def scene() -> None:
        async with nodes(tmp_path, rules, rules) as (other, node):
            said, again = list[str](), asyncio.Event()
            node.say = lambda text: (said.append(text), again.set())[0]  # type: ignore[func-returns-value]

            async def echo(peer: PeerId, stream: Stream) -> None:
                await stream.send_message(await stream.receive_message(10))

            await node.streams.serve("echo", echo)
            addresses = node.addresses

            async def work() -> None:
                harm(node)
                await again.wait()
                while not await other.attach(node.addresses):
                    pass
                await node.store(KEY, "a", "good", rules.until)  # type: ignore[arg-type]
                assert await other.read(KEY) == {"a": "good"}
                stream = await other.streams.open(node.identity.peer_id, "echo")
                await stream.send_message(b"here")
                assert await stream.receive_message(10) == b"here"
                stream.close()

            await node.while_alive(work())
            assert len(said) == 1
            assert node.addresses == addresses

    play(scene)


def test_who_waits_for_an_answer_when_the_daemon_goes_is_told_and_not_cancelled(tmp_path: Path):
    from hivemind.proto import dht_pb2

    async def scene() -> None:
        async with nodes(tmp_path, Texts()) as (node,), bare(node) as silent:
            came = asyncio.Event()

            async def never(request: Any, context: Any) -> Any:
                came.set()
                await asyncio.Event().wait()

            await silent.add_protobuf_handler("silent", never, dht_pb2.PingRequest)
            ping = dht_pb2.PingRequest(), dht_pb2.PingResponse
            asker = asyncio.create_task(node.p2p.call_protobuf_handler(silent.peer_id, "silent", *ping))
            await came.wait()
            node.calls.stop()
            with pytest.raises(RefusedError, match="daemon"):
                await asker
            came.clear()
            asker = asyncio.create_task(node.p2p.call_protobuf_handler(silent.peer_id, "silent", *ping))
            await came.wait()
            asker.cancel()  # by whoever asked: then it is
            with pytest.raises(asyncio.CancelledError):
                await asker

    play(scene)


def test_a_daemon_whose_neighbours_are_all_cut_off_is_not_taken_for_one_that_hangs(tmp_path: Path):
    async def scene() -> None:
        async with nodes(tmp_path, Texts(), Texts()) as (other, node):
            freeze(other)
            try:
                assert await libp2p.p2pd_answers(node.p2p, node.calls.tasks)
            finally:
                os.kill(other.p2p._child.pid, signal.SIGCONT)

    play(scene)


def test_a_daemon_that_holds_too_much_lets_strangers_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(dhts, "P2PD_HEARTBEAT_SECONDS", 0.05)
    monkeypatch.setattr(dhts, "BEATS_MISSED", 10**6)
    monkeypatch.setattr(dhts, "LIBP2P_BYTES", 1)

    async def scene() -> None:
        async with nodes(tmp_path, Texts(), Texts()) as (node, friend), bare(node) as stranger:
            await node.attach(friend.addresses)
            friends = {friend.identity.peer_id}
            assert await node.streams.connected() == friends | {PeerId(stranger.peer_id.to_base58())}

            async def alone() -> None:
                while await node.streams.connected() != friends:
                    pass

            await node.while_alive(alone())

    play(scene)


def test_a_daemon_that_goes_on_holding_too_much_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(dhts, "P2PD_HEARTBEAT_SECONDS", 0.05)
    monkeypatch.setattr(dhts, "LIBP2P_BYTES", 1)

    async def scene() -> None:
        async with nodes(tmp_path, Texts()) as (node,):
            said = asyncio.get_running_loop().create_future()
            node.say = said.set_result
            await node.while_alive(asyncio.wait((said,)))
            assert "holds more than" in said.result()

    play(scene)


def test_a_daemon_that_cannot_be_started_again_ends_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(dhts, "P2PD_HEARTBEAT_SECONDS", 0.1)
    monkeypatch.setattr(dhts, "STARTS", 2)

    async def never(*given: object) -> None:
        raise ResourceError("no such program")

    async def scene() -> None:
        async with nodes(tmp_path, Texts()) as (node,):
            monkeypatch.setattr(libp2p, "begin", never)
            kill(node)
            await node.while_alive(asyncio.Event().wait())

    with pytest.raises(ResourceError, match=r"child of this process, died .* cannot be started again: no such program"):
        play(scene)


def test_strangers_have_what_they_have_together_and_the_runs_peers_are_served_while_it_is_used_up():
    now = 0.0
    costs = Costs(lambda source: source.startswith("member"), lambda: now)
    spent = sum(costs.spend(f"stranger {each % 1000}", 1.0) for each in range(5000))
    assert spent == DHT_STRANGERS_SAVED
    assert costs.spend("member", DHT_MEMBER_SAVED)
    assert not costs.spend("member", 1.0)
    now = 2.0
    assert sum(costs.spend(f"stranger {each % 1000}", 1.0) for each in range(5000)) == 2 * DHT_STRANGERS_PER_SECOND
    now = 1e6
    assert sum(costs.spend(f"member {each % 100}", 1.0) for each in range(10**4)) == DHT_SAVED
    now += 1.0
    assert sum(costs.spend(f"member {each % 100}", 1.0) for each in range(10**4)) == DHT_PER_SECOND


def test_one_stranger_leaves_something_to_others_and_what_is_refused_costs_nothing():
    now = 0.0
    costs = Costs(lambda source: False, lambda: now)
    assert sum(costs.spend("a", 1.0) for _ in range(1000)) == DHT_STRANGER_SAVED
    assert sum(costs.spend("b", 1.0) for _ in range(1000)) == DHT_STRANGER_SAVED
    now = 1.0
    assert sum(costs.spend("a", 1.0) for _ in range(1000)) == DHT_STRANGER_PER_SECOND
    costs.charge("a", 16.0)
    now = 2.0
    assert not costs.spend("a", 1.0), "it owes"
    now = 3.25
    assert costs.spend("a", 1.0)


# Addresses that change


def test_a_node_that_moves_answers_at_its_new_host_with_the_same_key_port_and_handlers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(dhts, "P2PD_HEARTBEAT_SECONDS", 60.0)  # it does not wait for the next look at the daemon

    async def scene() -> None:
        async with nodes(tmp_path, Texts(), Texts()) as (other, node):
            said = list[str]()
            node.say = said.append

            async def echo(peer: PeerId, stream: Stream) -> None:
                await stream.send_message(await stream.receive_message(10))

            await node.streams.serve("echo", echo)
            (before,) = node.addresses

            async def work() -> None:
                await node.move("::1", hidden=False)
                (now,) = node.addresses
                assert now == before.replace("/ip4/127.0.0.1/", "/ip6/::1/")
                assert await other.attach([now]) == 1
                stream = await other.streams.open(node.identity.peer_id, "echo")
                await stream.send_message(b"here")
                assert await stream.receive_message(10) == b"here"
                stream.close()

            await node.while_alive(work())
            assert said == [], "nothing is wrong with the daemon"

    play(scene)


def test_a_node_that_does_not_answer_over_the_connection_that_is_there_is_dialled_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async def scene() -> None:
        async with nodes(tmp_path, Texts(), Texts()) as (other, node):
            await node.attach(other.addresses)
            hung_up, answers = list[str](), [None]
            hang_up, ping = node.streams.hang_up, node.node.protocol.call_ping

            async def noted(peer: PeerId) -> None:
                hung_up.append(peer)
                await hang_up(peer)

            async def first_unanswered(*of: Any, **more: Any) -> Any:
                return answers.pop() if answers else await ping(*of, **more)

            monkeypatch.setattr(type(node.streams), "hang_up", lambda self, peer: noted(peer))
            monkeypatch.setattr(node.node.protocol, "call_ping", first_unanswered)
            dead = other.addresses[0].replace("127.0.0.1", "127.0.0.9")
            assert await node.attach([dead, *other.addresses]) == 1, "one node with two addresses"
            assert hung_up == [other.identity.peer_id]

    play(scene)


def test_a_node_is_met_that_cannot_call_back(tmp_path: Path):
    """Its own connection to this one may be dead still."""

    async def scene() -> None:
        async with nodes(tmp_path, Texts(), Texts()) as (other, node):

            async def hang(*of: Any, **more: Any) -> None:
                await asyncio.Event().wait()

            other.node.protocol.call_ping = hang
            assert await node.attach(other.addresses) == 1

    play(scene)


def test_a_node_that_is_silent_is_met_again_at_once_but_not_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(dhts, "P2PD_HEARTBEAT_SECONDS", 0.05)

    async def scene() -> None:
        async with nodes(tmp_path, Texts(), Texts()) as (other, node):
            met, looks = list[Sequence[str]](), 0
            attach = node.attach

            async def noted(addresses: Sequence[str]) -> int:
                met.append(addresses)
                return await attach(addresses)

            def silent() -> set[str]:
                nonlocal looks
                looks += 1
                return {other.identity.peer_id}

            monkeypatch.setattr(type(node), "attach", lambda self, addresses: noted(addresses))
            monkeypatch.setattr(type(node.calls), "silent", lambda self: silent())

            async def work() -> None:
                await until(lambda: len(met) == 2)
                before = looks
                await until(lambda: looks > before + 5)
                assert len(met) == 2

            await node.while_alive(first_of(work(), node.keep_attached(lambda: other.addresses)))

    play(scene)


def test_who_leaves_a_call_unanswered_for_longer_than_answers_take_is_silent(tmp_path: Path):
    async def scene() -> None:
        async with nodes(tmp_path, Texts()) as (node,):
            now = monotonic()
            tasks = [asyncio.create_task(asyncio.sleep(0)) for _ in range(2)]
            node.calls.asked = dict(zip(tasks, [("new", now), ("old", now - DHT_SILENT_SECONDS - 1)], strict=True))
            assert node.calls.silent() == {"old"}
            node.calls.asked.clear()
            await asyncio.wait(tasks)

    play(scene)
