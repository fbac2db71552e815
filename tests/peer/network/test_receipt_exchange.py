"""Neighbours sign on request, over real sockets; what they sign is kept and verifies."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import peer.network.receipt_exchange as signing
from peer.network.group import Attempt
from peer.network.receipt_exchange import (
    RECEIPT_ATTEMPTS,
    RECEIPT_ROUNDS_KEPT,
    ROUNDS_ASKED,
    ReceiptCollector,
    SeenWork,
)
from peer.store.receipt_file import KeptReceipts
from protocol.errors import RefusedError
from protocol.events.activity import Credited, Progress, Refused
from protocol.events.decisions import Recalled
from protocol.events.event import Event
from protocol.identity import PeerId, ReplicaId
from protocol.net.channels import handshake
from protocol.schemas import credit_pb2 as pb
from protocol.schemas import credit_pb2_grpc
from protocol.trust import receipts
from protocol.trust.membership_card import Signer
from protocol.trust.receipts import Verifier, Work, by_round, microbatch_tokens
from tests.reference.loopback_peers import LoopbackPeer, Village, village
from tests.reference.small_manifest import small_manifest

MANIFEST = small_manifest()
STEP = MANIFEST.inner.microbatches


def run(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(story)


@asynccontextmanager
async def group(folder: Path) -> AsyncIterator[tuple[Village, LoopbackPeer, LoopbackPeer]]:
    """A leader and its member, who have never met a pipeline."""
    async with village(MANIFEST, folder) as made:
        yield made, await made.join("leader", 0), await made.join("member", 1)


def exchange(leader: LoopbackPeer, member: LoopbackPeer, round: int, steps: int = 1, attempt: int = 1) -> None:
    """Inner steps that both took."""
    which = Attempt(ReplicaId(leader.id), attempt)
    for _ in range(steps):
        leader.receipt_collector.seen.exchange(round, PeerId(member.id), 1, which)
        member.receipt_collector.seen.exchange(round, PeerId(leader.id), 0, which)


def kept(peer: LoopbackPeer) -> list[Work]:
    return list(peer.receipt_collector.kept.read())


def credited(peer: LoopbackPeer) -> list[Credited]:
    return [event for event in peer.said if isinstance(event, Credited)]


def test_neighbours_sign_what_both_have_seen(tmp_path: Path):
    async def story() -> None:
        async with group(tmp_path) as (_, leader, member):
            exchange(leader, member, 1, steps=3)
            for asker, other in ((leader, member), (member, leader)):
                assert await asker.receipt_collector.ask() == []
                (work,) = kept(asker)
                assert (work.signer, work.receiver, work.replica) == (other.id, asker.id, leader.id)
                assert work.forward == work.backward == 3 * STEP
                assert work.tokens == 3 * MANIFEST.tokens_per_step
                assert credited(asker) == [Credited(1, work.tokens, [other.id])]

    run(story())


def test_a_later_receipt_replaces_the_earlier_and_nothing_new_is_not_asked_for(tmp_path: Path):
    async def story() -> None:
        async with group(tmp_path) as (_, leader, member):
            for attempt in (1, 2):
                exchange(leader, member, 4, attempt=attempt)
                await member.receipt_collector.ask()
                await member.receipt_collector.ask()
            assert [work.attempts for work in kept(member)] == [1, 2]
            (credit,) = by_round(kept(member))
            assert credit.tokens == 2 * MANIFEST.tokens_per_step
            assert [event.tokens for event in credited(member)] == [credit.tokens // 2, credit.tokens]

    run(story())


def test_a_neighbour_that_has_seen_less_yet_is_asked_again(tmp_path: Path):
    async def story() -> None:
        async with group(tmp_path) as (_, leader, member):
            exchange(leader, member, 1)
            leader.receipt_collector.seen.exchange(1, PeerId(member.id), 1, Attempt(ReplicaId(leader.id), 1))
            assert await leader.receipt_collector.ask() == [(member.id, 1)]
            member.receipt_collector.seen.exchange(1, PeerId(leader.id), 0, Attempt(ReplicaId(leader.id), 1))
            assert await leader.receipt_collector.ask([(PeerId(member.id), 1)]) == []
            assert by_round(kept(leader))[0].tokens == 2 * MANIFEST.tokens_per_step

    run(story())


def test_who_never_signs_is_asked_a_few_times_and_not_blamed(tmp_path: Path):
    async def story() -> None:
        async with group(tmp_path) as (_, leader, member):
            leader.receipt_collector.seen.exchange(1, PeerId(member.id), 1, Attempt(ReplicaId(leader.id), 1))
            asked = 0
            while await leader.receipt_collector.ask():
                asked += 1
            assert asked == RECEIPT_ATTEMPTS - 1
            assert kept(leader) == []
            assert not [event for event in leader.said if isinstance(event, Refused)]

    run(story())


def test_who_starts_again_adds_to_what_was_signed_before(tmp_path: Path):
    async def story() -> None:
        async with group(tmp_path) as (_, leader, member):
            exchange(leader, member, 1, steps=2)
            await member.receipt_collector.ask()
            seen = leader.receipt_collector.seen
            seen.work, seen.since = {}, seen.since + 1  # as in a new process
            exchange(leader, member, 1, steps=1)
            await member.receipt_collector.ask()
            (credit,) = by_round(kept(member))
            assert credit.tokens == 3 * MANIFEST.tokens_per_step

    run(story())


def test_a_peer_that_starts_again_remembers_what_it_has_and_asks_for_the_rest(tmp_path: Path):
    async def story() -> None:
        async with group(tmp_path) as (_, leader, member):
            exchange(leader, member, 1, steps=2)
            await member.receipt_collector.ask()
            before, told = member.receipt_collector, asyncio.Event()

            def emit(event: Event) -> None:
                member.said.append(event)
                told.set()

            again = ReceiptCollector(SeenWork(member.signer, MANIFEST), before.reconciler, before.kept, emit)
            (had,) = credited(member)
            asking = asyncio.create_task(again.keep_asking())
            member.receipt_collector = again
            exchange(leader, member, 1)
            again.ask_soon()
            while len(credited(member)) == 1:
                told.clear()
                await told.wait()
            asking.cancel()
            recalled = [event for event in member.said if isinstance(event, Recalled)]
            assert recalled == [Recalled(1, 0, [(1, had.tokens)])]
            assert credited(member)[-1].tokens == 3 * MANIFEST.tokens_per_step

    run(story())


def test_a_disk_that_errs_costs_receipts_and_nothing_else(tmp_path: Path):
    async def story() -> None:
        async with group(tmp_path) as (_, leader, member):
            (tmp_path / "member" / "credit").write_text("in its place")
            exchange(leader, member, 1)
            await member.receipt_collector.ask()
            said = [event.doing for event in member.said if isinstance(event, Progress)]
            assert len(said) == 1
            assert "cannot keep receipts" in said[0]
            assert credited(member)[0].signers == [leader.id]

    run(story())


async def signed_for(asker: LoopbackPeer, signer: LoopbackPeer, **question: Any) -> list[Work]:
    record = signer.outer.discovery.record
    async with asker.outer.reconciler.contacts.to(record) as channel:
        message = pb.CreditQuestion(**question)
        answer = await credit_pb2_grpc.CreditStub(channel).Sign(
            message, metadata=handshake(signer.manifest), timeout=10
        )
    return [receipts.read_receipt(each, asker.signer.authority) for each in answer.receipts]


def test_a_caller_gets_its_own_receipts_alone_and_so_many_at_a_time(tmp_path: Path):
    async def story() -> None:
        async with group(tmp_path) as (made, leader, member):
            stranger = await made.join("stranger", 1)
            exchange(leader, member, 1)
            assert await signed_for(stranger, leader, worked=[1, 2]) == []
            (work,) = await signed_for(member, leader, worked=[1, 2, 2**32 - 1])
            assert work.receiver == member.id
            with pytest.raises(RefusedError, match="at a time"):
                await signed_for(member, leader, worked=range(ROUNDS_ASKED + 1))

    run(story())


def test_only_the_last_rounds_are_known(tmp_path: Path):
    async def story() -> None:
        async with group(tmp_path) as (_, leader, member):
            for round in range(1, RECEIPT_ROUNDS_KEPT + 3):
                exchange(leader, member, round)
            assert sorted(leader.receipt_collector.seen.work) == list(range(3, RECEIPT_ROUNDS_KEPT + 3))

    run(story())


def test_a_receipt_that_was_not_asked_for_is_a_breach(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    async def story() -> None:
        async with group(tmp_path) as (made, leader, member):
            stranger = await made.join("stranger", 1)
            exchange(leader, member, 1)

            def sign_for_another(signer: Signer, receipt: Work) -> bytes:
                return receipts.sign_credit_receipt(signer, replace(receipt, receiver=PeerId(stranger.id)))

            monkeypatch.setattr(signing, "sign_credit_receipt", sign_for_another)
            await member.receipt_collector.ask()
            assert kept(member) == []
            assert [event.peer for event in member.said if isinstance(event, Refused)] == [leader.id]

    run(story())


def test_what_is_kept_verifies_with_the_runs_id_and_operator_alone(tmp_path: Path):
    async def story() -> None:
        async with group(tmp_path) as (made, leader, member):
            exchange(leader, member, 1, steps=2)
            await leader.receipt_collector.ask()
            verifier = Verifier(made.authority, PeerId(leader.id), tokens=microbatch_tokens(MANIFEST))
            (line,) = (tmp_path / "leader" / "credit" / "00000000.receipts").read_bytes().splitlines(keepends=True)
            assert verifier.check(receipts.receipt_from_line(line)) == kept(leader)[0]
            assert KeptReceipts(tmp_path / "leader" / "credit", made.authority).folder.is_dir()

    run(story())
