"""A crowd's names break the rules that they are to break, and no others: or what they show would be something else."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, get_args

import grpc
import pytest

from peer.optim.bounds import check_magnitudes
from protocol.clock import unix_time
from protocol.codec.contribution import decode
from protocol.errors import FormatError
from protocol.identity import Endpoint
from protocol.manifest import message_bytes
from protocol.net import dht
from protocol.net.channels import listen, options
from protocol.schemas import reconciliation_pb2 as pb
from protocol.trust.keys import load_or_create
from protocol.trust.membership_card import Authority, Card, Role, Signer, issue
from protocol.trust.proofs import read_entry
from protocol.trust.records import PeerRecord, Register, expiration, read_statement, sign_record
from tests.chaos.attackers import name_attacks, stranger_attacks
from tests.chaos.attackers.hostile_name import HostilePeer, as_bytes
from tests.chaos.attackers.hostile_process import NAMELESS, attack_of, shared_out
from tests.chaos.faults import CrowdKind
from tests.reference.admitted import certified
from tests.reference.loopback_peers import RUN, Village, village
from tests.reference.small_manifest import small_manifest

MANIFEST = small_manifest()
SECONDS = 30

Attack = Callable[[HostilePeer], Coroutine[Any, Any, None]]


@asynccontextmanager
async def hostile(made: Village, role: Role = "datacenter") -> AsyncIterator[HostilePeer]:
    """A name that the village's operator has let in, and that attacks everybody there."""
    me = load_or_create(made.folder / "hostile")
    signer = Signer(me, made.authority, issue(made.operator, RUN, Card(me.peer_id, role, 0, 7)))
    record = PeerRecord(
        peer_id=me.peer_id, address="", role=role, stage=0, slot=7, replica=me.peer_id if role == "datacenter" else ""
    )
    at = [each.outer.discovery.record for each in made.peers]
    targets = [Endpoint(each.peer_id, each.address) for each in at]
    name = HostilePeer("test", signer, certified(me, made.operator), MANIFEST, targets, record)
    await name.serve()
    try:
        yield name
    finally:
        await name.stop()


async def eventually(holds: Callable[[], bool]) -> None:
    """Until a condition holds, looking now and then: what a name does tells nobody."""
    async with asyncio.timeout(SECONDS):
        for _ in itertools.count():
            if holds():
                return
            await asyncio.sleep(0.01)


def attacked(
    folder: Path, attack: Attack, until: Callable[[HostilePeer], bool], role: Role = "datacenter"
) -> HostilePeer:
    """A name after it has attacked two peers, of whom one has contributed, until this holds."""

    async def scene() -> HostilePeer:
        async with village(MANIFEST, folder, "h", "g") as made, hostile(made, role) as name:
            await made.peers[0].contribute(1, 1)
            attacking = asyncio.create_task(attack(name))
            await eventually(lambda: until(name) or attacking.done())
            attacking.cancel()
            await asyncio.gather(attacking, return_exceptions=True)
            for peer in made.peers:
                for task in peer.outer.reconciler.tasks:
                    task.cancel()  # a fetch from who never ends it
        return name

    return asyncio.run(scene())


def test_every_kind_with_a_name_has_its_attack():
    for kind in get_args(CrowdKind):
        if kind not in (*NAMELESS, "gateway"):
            assert asyncio.iscoroutinefunction(attack_of(kind))


def test_all_kinds_are_shared_out_among_the_names_there_are():
    kinds = get_args(CrowdKind)[:4]
    assert shared_out(kinds, 2) == [(kinds[0], kinds[2]), (kinds[1], kinds[3])]
    assert shared_out(kinds, 6) == [*((each,) for each in kinds), (kinds[0],), (kinds[1],)]
    assert shared_out((), 3) == []


def test_who_takes_anothers_slot_contributes_what_is_valid(tmp_path: Path):
    name = attacked(tmp_path, name_attacks.slots, lambda name: len(name.blobs) >= 1)
    made = decode(next(iter(name.blobs.values())), MANIFEST)
    assert made.name.author == name.peer_id
    assert made.slot == 0 != name.record.slot
    check_magnitudes(made, MANIFEST)


def test_an_equivocator_has_two_contributions_of_one_name(tmp_path: Path):
    name = attacked(tmp_path, name_attacks.equivocation, lambda name: len(name.blobs) >= 2)
    one, other = [decode(blob, MANIFEST) for blob in list(name.blobs.values())[:2]]
    assert one.name == other.name
    assert one.tensors.keys() == other.tensors.keys()
    pairs = [(one.tensors[each].values, other.tensors[each].values) for each in one.tensors]
    assert all((mine == -theirs).all() for mine, theirs in pairs)


def test_who_is_slow_is_asked_for_bytes_and_gives_one(tmp_path: Path):
    name = attacked(tmp_path, name_attacks.slow, lambda name: name.outcomes["trickled"] > 0)
    assert name.entries  # others' contributions, which it says that it holds


def test_who_replays_says_what_others_have_said(tmp_path: Path):
    name = attacked(tmp_path, name_attacks.replay, lambda name: name.outcomes["refused"] > 0, "observer")
    assert len(name.known) == 2


class Enough(Exception):
    """So many messages were looked at."""


def said(folder: Path, attack: Attack, count: int, monkeypatch: pytest.MonkeyPatch) -> tuple[HostilePeer, list[bytes]]:
    """What a name says to everybody at first."""
    heard: list[bytes] = []

    async def everywhere(self: HostilePeer, method: str, message: Any, seconds: float = 0) -> None:
        heard.append(as_bytes(message))
        if len(heard) == count:
            raise Enough

    async def at_once(seconds: float) -> None:
        return None

    async def scene() -> HostilePeer:
        async with village(MANIFEST, folder, "h") as made, hostile(made) as name:
            monkeypatch.setattr(HostilePeer, "everywhere", everywhere)
            monkeypatch.setattr(name_attacks.asyncio, "sleep", at_once)
            with pytest.raises(Enough):
                await attack(name)
            monkeypatch.undo()
        return name

    return asyncio.run(scene()), heard


def test_a_false_clock_is_a_few_rounds_ahead_then_at_the_end_then_beyond_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    name, heard = said(tmp_path, name_attacks.clock, 3, monkeypatch)
    told = [read_statement(pb.News.FromString(each).statement, name.signer.authority).record for each in heard]
    last = MANIFEST.outer.rounds
    assert [each.round for each in told] == [min(5, last), last, 2**31 - 2]
    assert len({each.sequence for each in told}) == 3


def test_a_flood_is_of_nothing_of_valid_entries_of_far_rounds_and_of_keys_each_as_long_as_messages_may_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    name, heard = said(tmp_path, name_attacks.flood, 4, monkeypatch)
    empty, far, held = [pb.News.FromString(each) for each in heard[:3]]
    question = pb.Question.FromString(heard[3])
    assert all(0.85 * 2**20 < len(each) <= message_bytes(MANIFEST) for each in heard)
    assert len(empty.entries) == name_attacks.EMPTY_ENTRIES
    assert not any(each.proof for each in empty.entries[:10])
    entries = [read_entry(each.proof, [], name.signer.authority) for each in far.entries[:10]]
    last = name_attacks.LAST
    assert [each.name.round for each in entries] == list(range(last - name_attacks.FAR_ENTRIES, last))[:10]
    assert len(far.entries) == name_attacks.FAR_ENTRIES
    assert sum(len(each.keys) for each in held.held) == len(question.keys) == name_attacks.RANDOM_KEYS


def test_spam_is_not_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    name, heard = said(tmp_path, name_attacks.spam, 3, monkeypatch)
    valid, wrong_entry, wrong_statement = [pb.News.FromString(each) for each in heard]
    read_statement(valid.statement, name.signer.authority)
    with pytest.raises(FormatError):
        read_entry(wrong_entry.entries[0].proof, [], name.signer.authority)
    with pytest.raises(FormatError):
        read_statement(wrong_statement.statement, name.signer.authority)


def test_a_half_sent_call_is_begun_at_the_server_and_never_reaches_its_handler(tmp_path: Path):
    reached: list[bytes] = []

    async def measure(request: bytes, context: Any) -> bytes:
        reached.append(request)
        return b""

    async def scene() -> tuple[int, int]:
        server = grpc.aio.server(options=options(None))
        handler = grpc.unary_unary_rpc_method_handler(measure, as_bytes, as_bytes)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("hetpeer.v1.Run", {"Measure": handler}),))
        operator = load_or_create(tmp_path / "operator")
        port = listen(server, "127.0.0.1:0", certified(operator, operator).for_registration())
        await server.start()
        async with (
            asyncio.timeout(SECONDS),
            stranger_attacks.opened(f"127.0.0.1:{port}", stranger_attacks.anybody()) as (reader, writer),
        ):
            writer.write(stranger_attacks.PREFACE + stranger_attacks.frame(stranger_attacks.SETTINGS, 0, 0))
            sender = stranger_attacks.HalfSender(reader, writer)
            listening = asyncio.create_task(sender.listen())
            await sender.begin(1, "/hetpeer.v1.Run/Measure")
            half = len(reached)
            writer.write(stranger_attacks.frame(stranger_attacks.DATA, 1, 1, b"\0"))
            await eventually(lambda: bool(reached))
            listening.cancel()
        await server.stop(None)
        return half, len(reached[0])

    assert asyncio.run(scene()) == (0, stranger_attacks.MESSAGE_BYTES)


def test_a_stranger_has_many_signatures_checked_that_do_not_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(stranger_attacks, "SIGNATURES", 5)
    operator, member = (load_or_create(tmp_path / name) for name in ("operator", "member"))
    authority = Authority(RUN, operator.peer_id)
    register, checked = Register(authority, MANIFEST), list[tuple[str, str]]()
    signer = Signer(member, authority, issue(operator, RUN, Card(member.peer_id, "datacenter", 0, 0)))
    now = int(unix_time() * 1000)
    record = PeerRecord(peer_id=member.peer_id, address="h:1", role="datacenter", stage=0, slot=0, sequence=now)

    class Victim:
        """The rules of the run, which say to whose record each value was to belong, and why it may not lie there."""

        keys = register.keys

        def expiration(self, key: str, owner: str, value: object) -> float:
            try:
                return register.expiration(key, owner, value)
            except FormatError as error:
                checked.append((owner, str(error)))
                raise

        def signatures(self, value: object) -> int:
            return register.signatures(value)

    async def scene() -> str:
        victim = await dht.start(load_or_create(tmp_path / "victim"), "127.0.0.1", 0, Victim())
        await victim.store(
            register.key(member.peer_id), member.peer_id, sign_record(signer, record), expiration(record)
        )
        here = await stranger_attacks.meet(tmp_path, victim.addresses, register)
        assert here is not None
        attacking = asyncio.create_task(stranger_attacks.dht(here, tmp_path, register))
        try:
            await eventually(lambda: len(checked) >= 10 or attacking.done())
        finally:
            attacking.cancel()
            await asyncio.gather(attacking, return_exceptions=True)
            await here.stop()
            await victim.stop()
        return load_or_create(tmp_path / "stranger").peer_id

    stranger = asyncio.run(scene())
    assert {owner for owner, _ in checked} == {stranger}
    assert [why for _, why in checked[:5]] == ["a signature does not hold"] * 5
