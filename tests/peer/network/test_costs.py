"""What one peer may cost another, over real sockets: counted by what its messages hold, not by how many they are."""

import asyncio
import tracemalloc
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any

import grpc
import pytest

import peer.network.gossip as wires
import peer.network.gossip_service as service
from peer.network import intake
from peer.network.learning import Learner
from peer.network.wanted import ENTRY_RETRY_SECONDS, MOST_SOURCES, SourceBackoff, Wanted
from protocol.identity import EMBEDDING, Part, PeerId
from protocol.limits import (
    CALLS_SAVED,
    ENTRIES_NAMED,
    ENTRIES_OF_ONE,
    KEYS_ASKED_OF_ONE,
    KEYS_NAMED,
    LEARNING_OF_ONE,
    REVOCATIONS_NAMED,
    ROUNDS_NAMED,
)
from protocol.net.allowances import Places
from protocol.net.channels import handshake
from protocol.net.guard import Guard
from protocol.net.lenient import AnyBytes
from protocol.net.tasks import Turns
from protocol.outer.ledger import Entry
from protocol.schemas import reconciliation_pb2 as pb
from protocol.schemas import reconciliation_pb2_grpc, succession_pb2, succession_pb2_grpc
from protocol.trust.handovers import HandoverOffer, Handovers, sign_handover
from protocol.trust.keys import Identity
from protocol.trust.membership_card import Authority, Card, Signer, issue
from protocol.trust.proofs import read_trial, sign_contribution, sign_receipt
from protocol.trust.records import PeerRecord, make_statement
from tests.reference.admitted import identity
from tests.reference.loopback_peers import RUN, LoopbackPeer, Village, village
from tests.reference.small_manifest import small_manifest
from tests.reference.waiting import until

MANIFEST = small_manifest(outer={"rounds": 50})


def play(folder: Path, scene: Callable[[Village], Awaitable[None]], names: str = "abc") -> None:
    """`a` and `b` are honest, `c` is what the test makes of it. Everybody has a guard, whose clock stands still."""

    async def run() -> None:
        async with village(MANIFEST, folder) as made:
            made.interceptors = [Guard(clock=lambda: 0.0), AnyBytes()]
            for name in names:
                await made.join(name)
            await asyncio.wait_for(scene(made), 60)

    asyncio.run(run())


async def tell(liar: LoopbackPeer, other: LoopbackPeer, **what: Any) -> str:
    """How a peer answers to news: empty if it heard them."""
    return await call(liar, other, "Tell", pb.News(statement=liar.outer.reconciler.statement(), **what))


async def call(liar: LoopbackPeer, other: LoopbackPeer, method: str, message: Any) -> str:
    contacts = liar.outer.reconciler.contacts
    async with contacts.to(other.outer.discovery.record) as channel:
        stub = reconciliation_pb2_grpc.ReconciliationStub(channel)
        try:
            await getattr(stub, method)(message, metadata=handshake(MANIFEST), timeout=30)
        except grpc.aio.AioRpcError as error:
            return f"{error.code().name}: {error.details()}"
    return ""


def avoided(by: LoopbackPeer, whom: LoopbackPeer) -> str:
    return by.outer.reconciler.bans.objection(whom.outer.discovery.record.peer_id)


def checked(by: LoopbackPeer) -> int:
    """How often it has checked what others have signed."""
    return by.intake.turns.done


def signed(author: LoopbackPeer, round: int, number: int = 0) -> pb.Entry:
    return pb.Entry(proof=sign_contribution(author.signer, EMBEDDING, round, f"{number:064x}", 10).proof)


def random_keys(count: int) -> list[int]:
    chance = Random(1)
    return [chance.getrandbits(64) for _ in range(count)]


def named(count: int) -> list[pb.PartKeys]:
    return [pb.PartKeys(part=EMBEDDING, keys=random_keys(count))]


TOO_MUCH: dict[str, tuple[str, Callable[[LoopbackPeer], Any]]] = {
    "entries": ("Tell", lambda liar: {"entries": [pb.Entry()] * 500_000}),
    "keys": ("Tell", lambda liar: {"held": named(KEYS_NAMED + 1)}),
    "parts": ("Tell", lambda liar: {"held": [pb.PartKeys(part=str(each)) for each in range(1000)]}),
    "twice": ("Tell", lambda liar: {"held": [pb.PartKeys(part=EMBEDDING)] * 2}),
    "revocations": ("Tell", lambda liar: {"revocations": [b""] * (REVOCATIONS_NAMED + 1)}),
    "revocations,": ("Revoke", lambda liar: {"revocations": [b""] * (REVOCATIONS_NAMED + 1)}),
    "rounds": ("Compare", lambda liar: {"parts": [summary(ROUNDS_NAMED + 1)]}),
    "parts,": ("Compare", lambda liar: {"parts": [summary(1)] * 1000}),
    "twice,": ("Compare", lambda liar: {"parts": [summary(1)] * 2}),
}


def summary(rounds: int) -> pb.PartSummary:
    checks = [pb.RoundCheck(round=each, check=each) for each in range(rounds)]
    return pb.PartSummary(part=EMBEDDING, clock=1, rounds=checks)


@pytest.mark.parametrize("what", TOO_MUCH)
def test_a_message_that_names_more_than_there_can_be_is_a_breach_and_nothing_of_it_is_looked_at(
    tmp_path: Path, what: str
):
    async def scene(made: Village) -> None:
        _, b, liar = made.peers
        method, fields = TOO_MUCH[what]
        message = {"Tell": pb.News, "Compare": pb.Comparison, "Revoke": pb.Revocations}[method](**fields(liar))
        if method != "Revoke":
            message.statement = liar.outer.reconciler.statement()
        before = checked(b)
        answer = await call(liar, b, method, message)
        assert what.strip(",") in answer
        assert answer.startswith("FAILED_PRECONDITION")
        await until(lambda: bool(avoided(b, liar)))
        assert checked(b) == before
        assert not b.outer.reconciler.learning

    play(tmp_path, scene)


@pytest.mark.parametrize(("round", "breach"), [(51, True), (2**31 - 1, True), (50, False), (20, False)])
def test_entries_of_rounds_that_are_not_open_are_not_checked_and_of_none_that_will_be_a_breach(
    tmp_path: Path, round: int, breach: bool, monkeypatch: pytest.MonkeyPatch
):
    read: list[bytes] = []

    def watched(proof: bytes, authority: Authority) -> Entry | None:
        read.append(proof)
        return read_trial(proof, authority)

    monkeypatch.setattr(intake, "read_trial", watched)

    async def scene(made: Village) -> None:
        _, b, liar = made.peers
        many = [signed(liar, round, number) for number in range(ENTRIES_NAMED)]
        await tell(liar, b, entries=many)
        await until(lambda: not b.outer.reconciler.learning)
        assert len(read) == (0 if breach else 1)  # one shows how far its author is
        assert bool(avoided(b, liar)) == breach
        assert not b.outer.reconciler.learner.entries.total

    play(tmp_path, scene)


def test_of_one_name_more_versions_than_void_each_other_are_not_checked(tmp_path: Path):
    async def scene(made: Village) -> None:
        a, b, liar = made.peers
        b.outer.reconciler.bans.emit = lambda event: None
        versions = [sign_contribution(liar.signer, EMBEDDING, 1, f"{number:064x}", 10) for number in range(3)]
        for entry in versions[:2]:  # both in time
            b.intake.ledgers[EMBEDDING].take(entry)
        before = checked(b)
        for _ in range(5):
            await tell(a, b, entries=[signed(liar, 1, 7 + number) for number in range(ENTRIES_NAMED)])
        assert checked(b) == before + 5  # the statements
        assert not avoided(b, a)

    play(tmp_path, scene)


def test_what_a_message_holds_is_taken_from_the_allowance_and_who_has_none_left_is_no_offender(tmp_path: Path):
    async def scene(made: Village) -> None:
        _, b, liar = made.peers
        follower, entry = await made.join("follower", 1), signed(liar, 1)
        claimed = sign_contribution(liar.signer, EMBEDDING, 1, f"{0:064x}", 10)
        many = [pb.Entry(proof=entry.proof, receipts=[sign_receipt(follower.signer, claimed)] * 2)] * ENTRIES_NAMED
        answers, before = [], checked(b)
        for _ in range(100):  # of a contribution whose bytes never come, with receipts that say nothing
            answers.append(await tell(liar, b, entries=many))
        heard = [each for each in answers if not each]
        assert 0 < len(heard) < CALLS_SAVED / ENTRIES_NAMED
        assert checked(b) - before <= CALLS_SAVED
        assert any("signatures" in each for each in answers)
        assert not avoided(b, liar)

    play(tmp_path, scene)


# Hostile cards, and what is passed on unchecked


def nested(most: int) -> tuple[bytes, Identity]:
    """A card of `most` bytes at most that a chain of gateways has given, none of which is one, and whose it is."""
    made, number = b"", 0
    while True:
        giver, holder = (identity(f"level {number + more}") for more in (0, 1))
        longer = issue(giver, RUN, Card(holder.peer_id, "gateway", 0, 0), made)
        if len(longer) > most:
            return made, giver
        made, number = longer, number + 1


@pytest.mark.parametrize("way", ["Tell", "receipts", "Compare", "Bequeath", "an honest card, a garbled receipt"])
def test_who_passes_on_a_card_or_receipt_that_cannot_hold_has_broken_the_protocol_and_leaves_nothing_behind(
    tmp_path: Path, way: str
):
    """One name made 21 calls with cards of 95 gateways each, which cost three peers 72 to 88 MB and it nothing."""
    deep, who = nested(20_000)

    async def hostile_call(made: Village, number: int) -> None:
        a, b, liar = made.peers
        signer = Signer(who, liar.signer.authority, deep)
        entry = sign_contribution(a.signer, EMBEDDING, 1, "ab" * 32, 10)
        match way:
            case "Tell":
                proof = sign_contribution(signer, EMBEDDING, 1, f"{number:064x}", 10).proof
                await tell(liar, b, entries=[pb.Entry(proof=proof)])
            case "receipts":
                await tell(liar, b, entries=[pb.Entry(proof=entry.proof, receipts=[sign_receipt(signer, entry)])])
            case "Compare":
                record = liar.outer.discovery.record.model_copy(update={"peer_id": who.peer_id, "round": number})
                await call(liar, b, "Compare", pb.Comparison(statement=make_statement(signer, record, {})))
            case "Bequeath":
                offer = HandoverOffer(who.peer_id, PeerId(b.id), number + 1, 0, "ef" * 32, 10)
                await bequeath_from(liar, b, sign_handover(signer, offer))
            case _:
                others = sign_contribution(a.signer, EMBEDDING, 1, "cd" * 32, 10)
                receipts = [sign_receipt(liar.signer, others)]
                await tell(liar, b, entries=[pb.Entry(proof=entry.proof, receipts=receipts)])

    async def scene(made: Village) -> None:
        _, b, liar = made.peers
        b.handover.handovers = Handovers()
        await hostile_call(made, 0)
        await until(lambda: bool(avoided(b, liar)))
        tracemalloc.start()
        before, _ = tracemalloc.get_traced_memory()
        for number in range(1, 21):
            b.outer.reconciler.bans.offenders.clear()  # as if each came when the time for the last was over
            await hostile_call(made, number)
        await until(lambda: not b.outer.reconciler.learning)
        after, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert after - before < 2 * 2**20

    play(tmp_path, scene)


def test_the_receipt_of_a_peer_that_could_not_contribute_to_the_part_itself_says_nothing_and_is_no_offence(
    tmp_path: Path,
):
    """Whoever follows a part signs what it has accepted of it, the embedding at a later stage, too."""

    async def scene(made: Village) -> None:
        a, b, honest = made.peers
        follower = await made.join("follower", 1)
        entry = sign_contribution(a.signer, EMBEDDING, 1, "ab" * 32, 10)
        await tell(honest, b, entries=[pb.Entry(proof=entry.proof, receipts=[sign_receipt(follower.signer, entry)])])
        await until(lambda: not b.outer.reconciler.learning)
        assert not b.outer.reconciler.bans.offenders

    play(tmp_path, scene)


async def bequeath_from(liar: LoopbackPeer, other: LoopbackPeer, proof: bytes) -> None:
    async with liar.outer.reconciler.contacts.to(other.outer.discovery.record) as channel:
        stub = succession_pb2_grpc.SuccessionStub(channel)
        with pytest.raises(grpc.aio.AioRpcError):
            await stub.Bequeath(succession_pb2.Bequest(proof=proof), metadata=handshake(MANIFEST), timeout=30)


def test_cards_that_are_not_known_are_charged_beside_what_they_came_with(tmp_path: Path):
    """A gateway may let in as many names as it likes, and each of their messages takes a signature more."""
    gateway = identity("gateway")

    async def scene(made: Village) -> None:
        _, b, liar = made.peers
        by_operator = issue(made.operator, RUN, Card(gateway.peer_id, "gateway", 0, 0))
        authors = [identity(f"name {number}") for number in range(ENTRIES_NAMED)]

        def entry(author: Identity, slot: int) -> pb.Entry:
            card = issue(gateway, RUN, Card(author.peer_id, "datacenter", 0, slot), by_operator)
            signer = Signer(author, made.authority, card)
            return pb.Entry(proof=sign_contribution(signer, EMBEDDING, 20, "ef" * 32, 10).proof)

        guard, *_ = made.interceptors
        assert isinstance(guard, Guard)
        spent = []
        for slot in (1, 1, 2):
            before = left(guard, liar)
            await tell(liar, b, entries=[entry(author, slot) for author in authors])
            await until(lambda: not b.outer.reconciler.learning)
            spent.append(before - left(guard, liar))
        known, again, others = spent
        assert known > others > again
        assert others - again == ENTRIES_NAMED

    play(tmp_path, scene)


def left(guard: Guard, caller: LoopbackPeer) -> float:
    """What a caller may still cost: the guard's clock stands still."""
    known = guard.allowances.get(PeerId(caller.id))
    return known.calls.left(0.0) if known is not None else CALLS_SAVED


def test_an_entry_longer_than_its_proof_and_receipts_can_be_is_not_kept_until_its_turn(tmp_path: Path):
    async def scene(made: Village) -> None:
        _, b, liar = made.peers
        entry = signed(liar, 1)
        long = pb.Entry(proof=entry.proof, receipts=[bytes(100_000)])
        assert "bytes of an entry" in await tell(liar, b, entries=[long])
        await until(lambda: bool(avoided(b, liar)))

    play(tmp_path, scene)


def test_who_shows_none_of_what_it_has_named_has_broken_the_protocol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    hear, most = Wanted.add_source, []

    def watched(wanted: Wanted[Any, Any], *given: Any) -> Any:
        unknown = hear(wanted, *given)
        most.append((wanted.places.total, len(wanted.pending)))
        return unknown

    async def scene(made: Village) -> None:
        _, b, liar = made.peers
        monkeypatch.setattr(Wanted, "add_source", watched)
        await tell(liar, b, held=named(KEYS_NAMED))
        await until(lambda: bool(avoided(b, liar)))
        await until(lambda: not b.outer.reconciler.learning)
        assert max(most) == (KEYS_ASKED_OF_ONE, KEYS_ASKED_OF_ONE)
        assert b.intake.fetcher.wanted.pending == {}
        assert b.intake.fetcher.wanted.places.total == 0
        assert "entries that it named" in avoided(b, liar)

    play(tmp_path, scene)


def test_who_names_a_few_that_it_does_not_show_is_not_heard_for_longer_each_time():
    now = [0.0]
    wanted: Wanted[int, str] = Wanted(lambda: now[0])
    silent = []
    for _ in range(6):
        assert wanted.add_source([1], "liar") == [1]
        assert wanted.reassign([1], "liar") == {}
        wanted.unresponsive.note("liar")
        begun = now[0]
        while not wanted.add_source([2], "liar"):
            now[0] += 0.5
        wanted.forget([2])
        silent.append(now[0] - begun)
    assert silent == [1, 2, 4, 8, 16, 32]
    assert wanted.pending == {}


def test_an_entry_that_is_not_shown_is_asked_of_who_else_has_named_it():
    now = [0.0]
    wanted: Wanted[int, str] = Wanted(lambda: now[0])
    assert wanted.add_source([1, 2], "liar") == [1, 2]
    assert wanted.add_source([1], "honest") == []  # it is asked for already
    assert wanted.reassign([1, 2], "liar") == {"honest": [1]}
    assert wanted.want(1, "honest")
    assert wanted.sources == {1: ["honest"]}
    assert wanted.places.total == 0


def test_who_keeps_this_peer_waiting_for_an_entry_is_not_waited_for():
    now = [0.0]
    wanted: Wanted[int, str] = Wanted(lambda: now[0])
    wanted.add_source([1], "liar")
    assert wanted.add_source([1], "stranger") == []
    wanted.speeds["honest"] = 1.0
    assert wanted.add_source([1], "honest") == [1]
    now[0] = ENTRY_RETRY_SECONDS
    assert wanted.add_source([1], "stranger") == [1]
    assert wanted.add_source([1], "stranger") == []


def test_an_honest_source_is_remembered_though_others_have_filled_the_list():
    wanted: Wanted[int, str] = Wanted()
    for number in range(MOST_SOURCES):
        wanted.want(1, f"liar-{number}")
    wanted.add_source([1], "stranger")
    assert "stranger" not in wanted.sources[1]
    wanted.speeds["honest"] = 1.0
    wanted.add_source([1], "honest")
    assert "honest" in wanted.sources[1]
    wanted.slow.note("liar-5")
    wanted.add_source([1], "stranger")
    assert "stranger" in wanted.sources[1]
    assert len(wanted.sources[1]) == MOST_SOURCES


@pytest.mark.parametrize("answer", ["others", "more", "receipts", "far"])
def test_answers_have_bounds_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str):
    async def scene(made: Village) -> None:
        _, b, liar = made.peers
        me, honest = liar.outer.discovery.record.peer_id, service.entries
        own = [sign_contribution(liar.signer, EMBEDDING, 1, f"{number:064x}", 10) for number in range(100)]
        far = sign_contribution(liar.signer, EMBEDDING, 51, "ab" * 32, 10)
        for entry in own:
            entry.receipts = {PeerId(str(number)): b"x" for number in range(20)} if answer == "receipts" else {}
        shown = {"others": own[1:2], "more": own, "receipts": own[:1], "far": [far]}[answer]
        monkeypatch.setattr(service, "entries", lambda ledger, keys: shown if ledger.me == me else honest(ledger, keys))
        monkeypatch.setattr(service, "entry_to_wire", lambda entry, _: wire(entry))
        before = checked(b)
        await tell(liar, b, held=[pb.PartKeys(part=EMBEDDING, keys=[int.from_bytes(own[0].key, "big")])])
        await until(lambda: bool(avoided(b, liar)))
        assert checked(b) == before + 1
        assert not b.outer.reconciler.learner.entries.total

    play(tmp_path, scene)


def wire(entry: Any) -> pb.Entry:
    return pb.Entry(proof=entry.proof, receipts=list(entry.receipts.values()))


def test_an_answer_to_a_comparison_that_names_too_much_is_a_breach(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    async def scene(made: Village) -> None:
        _, b, liar = made.peers
        many = [key.to_bytes(8, "big") for key in random_keys(KEYS_NAMED + 1)]
        monkeypatch.setattr(service, "different", lambda ledger, theirs: many)
        monkeypatch.setattr(service, "some_named", lambda keys: dict([*keys.items()][:1]))
        await b.outer.reconciler.compare(liar.outer.discovery.record)
        assert f"{KEYS_NAMED + 1} keys" in avoided(b, liar)
        assert b.intake.fetcher.wanted.pending == {}

    play(tmp_path, scene)


def test_who_has_more_than_goes_into_a_message_names_others_each_time(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(wires, "KEYS_NAMED", 10)
    keys = [bytes([each]) * 8 for each in range(30)]
    drawn = [wires.some_named({EMBEDDING: keys})[EMBEDDING] for _ in range(100)]
    assert {len(each) for each in drawn} == {10}
    assert {key for each in drawn for key in each} == {*keys}


def test_of_one_source_so_many_messages_are_learnt_from_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Those beyond are let pass: comparing finds out what they named."""

    async def scene(made: Village) -> None:
        a, _, c = made.peers
        learner, goes, asked = a.outer.reconciler.learner, asyncio.Event(), []

        async def request(self: Learner, peer: PeerRecord, part: Part, keys: list[bytes]) -> dict[bytes, pb.Entry]:
            asked.append(keys)
            await goes.wait()
            return {}

        monkeypatch.setattr(Learner, "_request", request)
        named = [[pb.PartKeys(part=EMBEDDING, keys=[key])] for key in range(1, LEARNING_OF_ONE + 3)]
        learning = [asyncio.create_task(learner.learn(each, c.outer.discovery.record)) for each in named]
        await until(lambda: len(asked) >= LEARNING_OF_ONE)
        goes.set()
        await asyncio.gather(*learning)
        assert len(asked) == LEARNING_OF_ONE
        assert not learner.asking

    play(tmp_path, scene)


def test_entries_that_wait_have_so_many_places_of_one_source_and_others_have_theirs(tmp_path: Path):
    async def scene(made: Village) -> None:
        a, b, liar = made.peers
        b.outer.reconciler.learner.entries.take(liar.outer.discovery.record.peer_id, ENTRIES_OF_ONE - 1)
        assert "still on its way" in await tell(liar, b, entries=[signed(liar, 1), signed(liar, 1)])
        await a.contribute(1, 1)
        await until(lambda: a.id in b.intake.ledgers[EMBEDDING].chosen(1))

    play(tmp_path, scene)


def test_of_the_last_places_everybody_has_a_few():
    places: Places[str] = Places(10, 30, 3)
    for name in "abc":
        assert places.take(name, 10)
        assert not places.take(name)
    assert places.free("honest") == 3
    assert places.take("honest", 3)
    assert not places.take("honest")
    places.give_back("a", 10)
    assert places.free("honest") == 7
    assert places.free("a") == 7  # 23 are taken


def test_checks_take_turns_by_source_and_leave_the_loop_its_time():
    async def scene() -> None:
        turns, order = Turns(share=0.25), list[str]()
        loop = asyncio.get_running_loop()
        spent = 0.0

        async def work(source: str) -> None:
            nonlocal spent
            async with turns.of(PeerId(source)):
                order.append(source)
                begun = loop.time()
                while loop.time() < begun + 0.002:
                    pass
                spent += loop.time() - begun

        begun = loop.time()
        many = [asyncio.create_task(work("many")) for _ in range(20)]
        await asyncio.sleep(0)
        few = [asyncio.create_task(work(name)) for name in ("one", "two")]
        many[5].cancel()
        await asyncio.gather(*many, *few, return_exceptions=True)
        assert {*order[1:4]} == {"many", "one", "two"}
        assert len(order) == 21
        assert spent <= 0.25 * (loop.time() - begun) + 0.01

    asyncio.run(asyncio.wait_for(scene(), 20))


def test_who_does_it_again_is_passed_over_for_longer_and_doing_well_is_forgiven_slowly():
    now = [0.0]
    passed: SourceBackoff[str] = SourceBackoff(10.0, 100.0, lambda: now[0])
    passed.note("a")
    assert "a" in passed
    assert "b" not in passed
    now[0] = 10.0
    assert "a" not in passed
    for _ in range(2):  # it alternates
        passed.forgive("a")
    passed.note("a")
    now[0] += 10.0
    assert "a" in passed
    for _ in range(100):
        passed.note("a")
    assert passed.faults["a"][1] == now[0] + 100.0
