"""The DHT: real nodes on loopback."""

import asyncio
import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import FormatError, ResourceError, UnreachableError
from protocol.identity import RunId
from protocol.limits import CLOCK_SLACK_SECONDS, RECORD_BYTES, RECORDS_READ
from protocol.net import dht as dhts
from protocol.net.dht import Dht
from protocol.net.dht_checks import Checks, DhtEntry, Rules, is_valid, latest
from protocol.patience import RECORD_SECONDS
from protocol.trust.keys import Identity, load_or_create
from protocol.trust.membership_card import Authority, Card, Signer, issue
from protocol.trust.records import PeerRecord, Register, expiration, pack_record, sign_record
from tests.reference.small_manifest import small_manifest

ROOT = Path(__file__).parents[3]

RUN, OTHER = RunId("ab" * 32), RunId("cd" * 32)


@dataclass(frozen=True)
class Volunteer:
    """A peer and its record, which is of now and a little later each time it is renewed."""

    signer: Signer
    record: PeerRecord

    @property
    def id(self) -> str:
        return self.signer.identity.peer_id

    @property
    def signed(self) -> bytes:
        return sign_record(self.signer, self.record)

    @property
    def until(self) -> float:
        return expiration(self.record)

    def saying(self, **changes: object) -> "Volunteer":
        sequence = self.record.sequence + 1
        return replace(self, record=self.record.model_copy(update={"sequence": sequence} | changes))


def volunteer(folder: Path, operator: Identity, run: RunId = RUN) -> Volunteer:
    identity = load_or_create(folder)
    card = issue(operator, run, Card(identity.peer_id, "volunteer", 1, 0))
    now = time.time_ns() // 1_000_000
    record = PeerRecord(peer_id=identity.peer_id, address="h:1", role="volunteer", stage=1, slot=0, sequence=now)
    return Volunteer(Signer(identity, Authority(run, operator.peer_id), card), record)


def register_of(operator: Identity, run: RunId = RUN) -> Register:
    return Register(Authority(run, operator.peer_id), small_manifest())


@asynccontextmanager
async def nodes(folder: Path, *rules: Rules) -> AsyncIterator[list[Dht]]:
    """Nodes that know each other, each with its rules."""
    started: list[Dht] = []
    try:
        for number, each in enumerate(rules):
            addresses = started[0].addresses if started else ()
            started.append(await dhts.start(load_or_create(folder / f"node {number}"), "127.0.0.1", 0, each, addresses))
        yield started
    finally:
        for node in reversed(started):
            await node.stop()


class Unchecked(Checks):
    """All is valid."""

    async def valid(self, entries: Sequence[DhtEntry], source: str) -> list[DhtEntry]:
        return list(entries)


def make_lawless(node: Dht) -> None:
    """Its owner has taken the checks out: it stores and says anything."""
    node.node.protocol.record_validator = None
    node.calls.checks = Unchecked(node.checks.rules)


async def offer(to: Dht, by: Dht, key: str, subkey: str | None, value: object, until: float) -> bool:
    """Ask one node to store something, as hivemind's own code asks, whatever the asking node thinks of it."""
    from hivemind.dht.routing import DHTID

    subkeys = None if subkey is None else [subkey]
    asked = by.node.protocol.call_store(
        to.p2p.peer_id, [DHTID.generate(key)], [msgpack.packb(value)], until, subkeys=subkeys
    )
    (stored,) = await asked
    assert stored is not None, "it was asked"
    return bool(stored)


def test_what_one_node_stores_another_reads_and_its_peer_renews(tmp_path: Path):
    operator = load_or_create(tmp_path / "operator")
    rules, a, b = register_of(operator), volunteer(tmp_path / "a", operator), volunteer(tmp_path / "b", operator)
    (key,) = rules.keys

    async def scene() -> None:
        async with nodes(tmp_path, rules, rules) as (first, second):
            assert await second.read(key) == {}
            assert await first.store(key, a.id, a.signed, a.until)
            assert await second.store(key, b.id, b.signed, b.until)
            for node in (first, second):
                assert await node.read(key) == {a.id: a.signed, b.id: b.signed}
            renewed = a.saying(round=7)
            assert await second.store(key, a.id, renewed.signed, renewed.until)
            for node in (first, second):
                found = rules.read(await node.read_all())
                assert {each.peer_id: each.round for each in found} == {a.id: 7, b.id: 0}

    asyncio.run(scene())


def test_who_comes_back_is_met_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A node that was started anew knows nobody; and who had called it in vain has dropped it."""
    monkeypatch.setattr(dhts, "ATTACH_AGAIN_SECONDS", 0.1)
    operator = load_or_create(tmp_path / "operator")
    rules, a = register_of(operator), volunteer(tmp_path / "a", operator)
    (key,) = rules.keys

    async def scene() -> None:
        identity = load_or_create(tmp_path / "first")
        first = await dhts.start(identity, "127.0.0.1", 0, rules)
        (address,) = first.addresses
        async with nodes(tmp_path, rules) as (second,), asyncio.timeout(60):
            assert await second.attach([address])
            first_id = first.p2p.peer_id
            await first.stop()
            assert first_id in second.node.protocol.routing_table
            while first_id in second.node.protocol.routing_table:
                await second.store(key, a.id, a.signed, a.until)
            first = await dhts.start(identity, "127.0.0.1", int(address.split("/")[4]), rules)
            assert await first.read(key) == {}
            keeping = asyncio.create_task(second.keep_attached(lambda: [address]))
            while await first.read(key) != {a.id: a.signed}:
                await second.store(key, a.id, a.signed, a.until)
            keeping.cancel()
            await first.stop()

    asyncio.run(scene())


def test_a_search_follows_neighbours_to_a_node_that_the_reader_has_never_met(tmp_path: Path):
    """Each node of five knows those beside it, and the last one has what the first one reads."""
    rules = Numbers()

    async def scene() -> None:
        async with AsyncExitStack() as stack:
            chain = [(await stack.enter_async_context(nodes(tmp_path / f"{each}", rules)))[0] for each in range(5)]
            tables = [each.node.protocol.routing_table.uid_to_peer_id for each in chain]
            for node, beside in pairwise(chain):
                assert await node._meet(
                    *dhts.by_peer(beside.addresses).popitem()
                )  # `attach` would look for the others, too
            await asyncio.sleep(0)  # hivemind notes whom it has met in a task of its own
            assert [len(table) for table in tables] == [1, 2, 2, 2, 1]
            assert await offer(chain[4], chain[3], "numbers", "a", 7, rules.until)
            assert [len(each.node.protocol.storage) for each in chain] == [0, 0, 0, 0, 1]
            assert await chain[0].read("numbers") == {"a": 7}

    asyncio.run(asyncio.wait_for(scene(), 60))


def test_who_says_what_is_no_nodes_id_is_not_met(tmp_path: Path):
    from hivemind.proto.dht_pb2 import NodeInfo

    async def scene() -> None:
        async with nodes(tmp_path, Numbers(), Numbers()) as (hostile, honest):
            assert await honest.attach(hostile.addresses) == 1
            hostile.node.protocol.node_info = NodeInfo(node_id=b"\xff" * 30)
            assert await honest.attach(hostile.addresses) == 0

    asyncio.run(scene())


def test_a_node_stores_nothing_but_valid_records_of_their_owners(tmp_path: Path):
    operator = load_or_create(tmp_path / "operator")
    rules, honest, other = (
        register_of(operator),
        volunteer(tmp_path / "honest", operator),
        volunteer(tmp_path / "other", operator),
    )
    stranger = volunteer(tmp_path / "stranger", load_or_create(tmp_path / "no operator"))
    foreign = volunteer(tmp_path / "honest", operator, OTHER)
    future = honest.saying(sequence=honest.record.sequence + 10**7)
    newer, until = honest.saying(round=5), honest.until + 1
    (key,), (foreign_key,) = rules.keys, register_of(operator, OTHER).keys
    offers: dict[str, tuple[str, str | None, object, float]] = {
        "a stranger's": (key, stranger.id, stranger.signed, stranger.until),
        "of one, by another": (key, honest.id, sign_record(other.signer, newer.record), newer.until),
        "another's own, over one's": (key, honest.id, other.saying().signed, until),
        "another run's": (key, honest.id, foreign.saying().signed, until),
        "under another run's key": (foreign_key, foreign.id, foreign.signed, foreign.until),
        "under a key of nobody": ("anything", honest.id, newer.signed, newer.until),
        "unsigned": (key, honest.id, pack_record(newer.record), newer.until),
        "no bytes": (key, honest.id, "text", until),
        "oversize": (key, honest.id, newer.signed + bytes(RECORD_BYTES), newer.until),
        "over all subkeys": (key, None, newer.signed, newer.until),
        "made to live longer": (key, honest.id, honest.signed, until),
        "from the far future": (key, honest.id, future.signed, future.until),
        "for ever": (key, honest.id, honest.signed, math.inf),
    }

    async def scene() -> None:
        async with nodes(tmp_path, rules, rules) as (keeper, attacker):
            make_lawless(attacker)
            assert await offer(keeper, attacker, key, honest.id, honest.signed, honest.until)
            accepted = [name for name, each in offers.items() if await offer(keeper, attacker, *each)]
            assert accepted == []
            assert await keeper.read(key) == {honest.id: honest.signed}
            assert await offer(keeper, attacker, key, honest.id, newer.signed, newer.until), "an honest renewal"
            assert await keeper.read(key) == {honest.id: newer.signed}
            assert len(keeper.node.protocol.storage) == 1

    asyncio.run(scene())


def test_what_a_lawless_node_answers_is_not_believed(tmp_path: Path):
    operator = load_or_create(tmp_path / "operator")
    rules, honest = register_of(operator), volunteer(tmp_path / "honest", operator)
    stranger = volunteer(tmp_path / "stranger", load_or_create(tmp_path / "no operator"))
    (key,) = rules.keys

    async def scene() -> None:
        async with nodes(tmp_path, rules, rules, rules) as (reader, keeper, lawless):
            make_lawless(lawless)
            assert await offer(keeper, lawless, key, honest.id, honest.signed, honest.until)
            until = honest.until + 1
            assert await offer(lawless, keeper, key, stranger.id, stranger.signed, until)
            assert await offer(lawless, keeper, key, honest.id, sign_record(stranger.signer, honest.record), until)
            assert set(await lawless.read(key)) == {honest.id, stranger.id}, "it holds what it would tell"
            assert await reader.read(key) == {honest.id: honest.signed}

    asyncio.run(scene())


class Numbers:
    """Rules by which whole numbers may lie under any subkey, for half a minute from now."""

    keys = ("numbers",)

    def __init__(self) -> None:
        self.until = time.time() + 30

    def expiration(self, key: str, subkey: str, value: object) -> float:
        if not isinstance(value, int):
            raise FormatError("no number")
        return self.until

    def signatures(self, value: object) -> int:
        return 1


def test_of_very_many_under_one_key_so_many_are_read(tmp_path: Path):
    rules = Numbers()

    async def scene() -> Mapping[str, object]:
        async with nodes(tmp_path, rules) as (node,):
            many = range(RECORDS_READ + 10)
            await node.node.store_many(["numbers"] * len(many), many, rules.until, [str(each) for each in many])
            return await node.read_all()

    found = asyncio.run(scene())
    assert len(found) == RECORDS_READ
    assert all(found[subkey] == int(subkey) for subkey in found)


def test_rules_are_asked_only_about_what_has_a_subkey_a_size_and_a_near_end():
    rules = Numbers()
    now = rules.until - 30
    subkey, value = msgpack.packb("a"), msgpack.packb(1)
    assert is_valid(rules, "numbers", subkey, value, rules.until, now)
    assert not is_valid(rules, "numbers", subkey, value, rules.until, now - 300)
    assert not is_valid(rules, "numbers", subkey, value, rules.until + 1, now)
    assert not is_valid(rules, "numbers", subkey, value, math.nan, now)
    assert not is_valid(rules, "numbers", subkey, msgpack.packb("1"), rules.until, now)
    assert not is_valid(rules, "numbers", subkey, value + b"1", rules.until, now)
    assert not is_valid(rules, "numbers", subkey, b"\xc1", rules.until, now)
    for none in (b"", msgpack.packb(None), msgpack.packb(b"a"), msgpack.packb("a" * 65)):
        assert not is_valid(rules, "numbers", none, value, rules.until, now)
    whole = {"a": bytes(RECORD_BYTES + 1)}
    assert not is_valid(rules, "numbers", subkey, msgpack.packb(whole), rules.until, now)


@given(st.floats(0, 2**32), st.floats(0, 3))
def test_a_peer_whose_clock_is_a_minute_ahead_is_believed_and_clocks_agree_on_who_is_but_for_moments(
    now: float, apart: float
):
    assert RECORD_SECONDS + CLOCK_SLACK_SECONDS <= latest(now) - now <= RECORD_SECONDS + 2 * CLOCK_SLACK_SECONDS
    assert latest(now) == latest(now + apart) or (now + apart) % CLOCK_SLACK_SECONDS <= apart


def test_its_address_carries_the_identity_of_the_key(tmp_path: Path):
    identity = load_or_create(tmp_path)

    async def scene() -> None:
        node = await dhts.start(identity, "127.0.0.1", 0, Numbers())
        await node.stop()
        assert all(address.endswith(f"/p2p/{identity.peer_id}") for address in node.addresses)
        assert node.addresses

    asyncio.run(scene())


def test_nodes_meet_over_ipv6(tmp_path: Path):
    rules = Numbers()

    async def scene() -> None:
        first = await dhts.start(load_or_create(tmp_path / "first"), "::1", 0, rules)
        assert all(address.startswith("/ip6/::1/tcp/") for address in first.addresses)
        second = await dhts.start(load_or_create(tmp_path / "second"), "::1", 0, rules, first.addresses)
        try:
            await second.store("numbers", "a", 7, rules.until)  # type: ignore[arg-type]
            assert await first.read("numbers") == {"a": 7}
        finally:
            await second.stop()
            await first.stop()

    asyncio.run(scene())


def test_bootstrap_nodes_that_do_not_answer_are_named(tmp_path: Path):
    gone = f"/ip4/127.0.0.1/tcp/9/p2p/{load_or_create(tmp_path / 'other').peer_id}"

    async def scene() -> None:
        await dhts.start(load_or_create(tmp_path / "a"), "127.0.0.1", 0, Numbers(), [gone])

    with pytest.raises(UnreachableError, match=f"tried {gone}"):
        asyncio.run(scene())


def test_a_taken_port_is_named_because_libp2p_would_not_notice(tmp_path: Path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ResourceError, match=f"cannot listen on 127.0.0.1:{port}"):
            asyncio.run(dhts.start(load_or_create(tmp_path), "127.0.0.1", port, Numbers()))


PEER_ON_A_TERMINAL = """
import asyncio, signal, sys
from pathlib import Path
from protocol.net import dht
from protocol.trust.keys import load_or_create
from tests.protocol.net.test_dht import Numbers

async def main():
    node = await dht.start(load_or_create(Path(sys.argv[1])), "127.0.0.1", 0, Numbers())
    pressed, end = asyncio.Event(), asyncio.create_task(node.p2p._child.wait())
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, pressed.set)
    print("here", flush=True)
    await pressed.wait()
    await asyncio.wait((end,), timeout=1)
    print("without its daemon" if end.done() else "with its daemon")
    await node.stop()

asyncio.run(main())
"""


def test_ctrl_c_on_a_terminal_leaves_libp2ps_daemon_to_its_peer(tmp_path: Path):
    """A terminal sends it to all processes of its group."""
    command = [sys.executable, "-c", PEER_ON_A_TERMINAL, str(tmp_path)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    peer = subprocess.Popen(command, cwd=ROOT, text=True, start_new_session=True, **pipes)  # type: ignore[call-overload]
    assert peer.stdout.readline() == "here\n"
    os.killpg(peer.pid, signal.SIGINT)
    assert peer.communicate(timeout=60) == ("with its daemon\n", "")
    assert peer.returncode == 0
