"""Acceptance: a receipt is on disk before anybody can see it, and what was accepted is accepted again after a crash."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from peer.network.blob_fetcher import BlobFetcher
from protocol.codec.contribution import contribution_digest, max_bytes
from protocol.errors import FormatError
from protocol.identity import EMBEDDING, PeerId
from protocol.outer.ledger import Entry, Revocation
from protocol.schemas import reconciliation_pb2 as pb
from protocol.trust.membership_card import Card, Signer, issue
from protocol.trust.proofs import sign_contribution, sign_revocation
from protocol.trust.records import PeerRecord
from tests.reference.loopback_peers import RUN, LoopbackPeer, Village, village
from tests.reference.small_manifest import small_manifest

MANIFEST = small_manifest(outer={"grace": 2, "liars": 1, "rounds": 50, "chunk_side": 4, "top_k": 2})


def play(folder: Path, names: str, scene: Callable[[Village], Awaitable[None]]) -> None:
    async def run() -> None:
        async with village(MANIFEST, folder, *names) as made:
            await asyncio.wait_for(scene(made), 30)

    asyncio.run(run())


async def written(author: LoopbackPeer, seed: int) -> Entry:
    """A contribution to the embedding that its author keeps, and has told nobody of."""
    state = author.outer.followed.parts[EMBEDDING].state
    moved = {name: torch.full_like(tensor, seed * 1e-7, dtype=torch.float32) for name, tensor in state.grid.items()}
    record = author.outer.discovery.record
    blob, _ = state.contribute(RUN, 1, record.peer_id, 1, moved, record.slot)
    entry = sign_contribution(author.signer, EMBEDDING, 1, contribution_digest(blob), len(blob))
    author.intake.contribution_store.put(entry, blob)
    return entry


def test_a_receipt_is_on_disk_before_anybody_can_see_it_and_in_one_write(tmp_path: Path, monkeypatch):
    async def scene(made: Village) -> None:
        a, b = made.peers
        entry, ledger, contribution_store, writes = (
            await written(a, 1),
            b.intake.ledgers[EMBEDDING],
            b.intake.contribution_store,
            [],
        )
        put = type(contribution_store).put

        def watched(self: object, kept: Entry, blob: bytes = b"") -> None:
            assert b.id in kept.receipts
            assert ledger.entries(1) == []
            put(contribution_store, kept, blob)
            writes.append(kept.sha256)

        monkeypatch.setattr(type(contribution_store), "put", watched)
        (accepted,) = await b.intake.take(entry.proof, [], a.outer.discovery.record)
        assert writes == [entry.sha256]
        ((proof, receipts, whole),) = contribution_store.found()
        assert (proof, whole) == (entry.proof, True)
        assert receipts == [accepted.receipts[b.signer.identity.peer_id]]

    play(tmp_path, "ab", scene)


def test_what_is_void_is_void_after_a_crash_though_its_bytes_never_came(tmp_path: Path):
    async def scene(made: Village) -> None:
        a, b = made.peers
        one, other = await written(a, 1), await written(a, 2)
        for entry in (one, other):
            await b.intake.take(entry.proof, [], a.outer.discovery.record)
        assert b.intake.contribution_store.lookup(other.sha256) is None
        again = await made.start("b")
        ledger = again.intake.ledgers[EMBEDDING]
        assert {entry.sha256 for entry in ledger.entries(1)} == {one.sha256, other.sha256}
        assert all(b.id in entry.receipts for entry in ledger.entries(1))
        assert ledger.chosen(1) == {}

    play(tmp_path, "ab", scene)


def test_who_signs_two_contributions_of_one_name_is_avoided_and_who_passes_them_on_is_not(tmp_path: Path):
    async def scene(made: Village) -> None:
        a, b, c = made.peers
        first, second = await written(a, 1), await written(a, 2)
        for peer in (c, b):  # b may fetch the bytes from c, too
            await peer.intake.take(first.proof, [], a.outer.discovery.record)
        assert b.intake.fetcher.bans.objection(a.id) == ""
        await b.intake.take(second.proof, [], c.outer.discovery.record)
        assert "signed two contributions" in b.intake.fetcher.bans.objection(a.id)
        assert b.intake.fetcher.bans.objection(c.id) == ""

    play(tmp_path, "abc", scene)


def test_a_contribution_that_is_written_down_twice_at_once_keeps_its_bytes(tmp_path: Path):
    async def scene(made: Village) -> None:
        a, b = made.peers
        entry = await written(a, 1)
        blob = a.intake.contribution_store.read(entry.sha256)
        await asyncio.gather(*(b.intake._keep(entry, each) for each in (blob, b"", blob, b"")))
        assert b.intake.contribution_store.read(entry.sha256) == blob

    play(tmp_path, "ab", scene)


@pytest.mark.parametrize("first", ["the old card", "the new card"])
def test_a_contribution_is_valid_by_the_card_that_gives_its_author_the_place_it_names(tmp_path: Path, first: str):
    """Whose text was read follows from it. Peers that are shown one author's contribution with different cards of its
    agree in the end, and pass on the card that it is valid by."""

    async def scene(made: Village) -> None:
        a, b, c = made.peers
        entry = await written(c, 1)
        another = issue(made.operator, RUN, Card(c.signer.identity.peer_id, "datacenter", 0, 7))
        moved = sign_contribution(
            Signer(c.signer.identity, made.authority, another), EMBEDDING, 1, entry.sha256, entry.size
        )
        proofs = [entry.proof, moved.proof] if first == "the old card" else [moved.proof, entry.proof]
        for proof in proofs:
            with suppress(FormatError):
                await a.intake.take(proof, [], c.outer.discovery.record)
        (accepted,) = a.intake.ledgers[EMBEDDING].entries(1)
        assert accepted.proof == entry.proof
        with pytest.raises(FormatError, match="names place 2, and its author's card 7"):
            await b.intake.take(moved.proof, [], c.outer.discovery.record)
        assert b.intake.ledgers[EMBEDDING].entries(1) == []
        (found,) = await b.intake.take(accepted.proof, list(accepted.receipts.values()), a.outer.discovery.record)
        assert found.sha256 == entry.sha256

    play(tmp_path, "abc", scene)


def test_what_was_made_in_another_place_is_not_published_and_comes_back(tmp_path: Path):
    """Its author died before anybody heard of it, and has another slot by now."""

    async def scene(made: Village) -> None:
        a = made.peers[0]
        made.cut(a)
        a.outer.discovery.update_record(slot=5)  # as its last card said
        a.signer.card = issue(made.operator, RUN, Card(a.signer.identity.peer_id, "datacenter", 0, 6))
        await a.contribute(1, 1)
        assert a.intake.ledgers[EMBEDDING].entries(1) == []
        assert list(a.outer.followed.parts[EMBEDDING].authored.sent) == [1]
        again = await made.start("a")
        assert again.intake.ledgers[EMBEDDING].entries(1) == []
        for round in range(1, 8):
            await again.at(round)
        assert list(again.outer.followed.parts[EMBEDDING].authored.returned) == [1]

    play(tmp_path, "ab", scene)


def test_what_is_invalid_is_its_authors_fault_and_not_that_of_who_passes_it_on(tmp_path: Path):
    """Two versions void each other without their bytes, so who passes them on need not have looked at these."""

    async def scene(made: Village) -> None:
        author, between, third = made.peers
        blob = b"no contribution"
        entry = sign_contribution(author.signer, EMBEDDING, 1, contribution_digest(blob), len(blob))
        between.intake.contribution_store.put(entry, blob)
        passed_on = pb.Entry(proof=entry.proof)
        assert await third.outer.reconciler.learner.receive([passed_on], between.outer.discovery.record)
        accused = third.outer.reconciler.bans
        assert accused.objection(PeerId(author.id))
        assert not accused.objection(PeerId(between.id))

    play(tmp_path, "abc", scene)


def test_who_was_taken_out_is_out_after_a_restart_too(tmp_path: Path):
    async def scene(made: Village) -> None:
        a, b = made.peers
        entry = await written(a, 1)
        await b.intake.take(entry.proof, [], a.outer.discovery.record)
        signed = sign_revocation(made.operator, made.authority, Revocation(PeerId(a.id), 1, 1))
        assert b.intake.revoke(signed)
        assert not b.intake.revoke(signed)
        again = await made.start("b")
        assert list(again.intake.revocations.values()) == [signed]
        assert again.intake.ledgers[EMBEDDING].entries(1)
        assert again.intake.ledgers[EMBEDDING].chosen(1) == {}
        assert again.intake.has_revoked(PeerId(a.id))
        assert not again.intake.has_revoked(PeerId(b.id))

    play(tmp_path, "ab", scene)


def test_what_is_invalid_or_larger_than_possible_is_not_fetched_again_or_at_all(tmp_path: Path, monkeypatch):
    fetched: list[str] = []
    bring = BlobFetcher.bring

    async def watched(self: BlobFetcher, entry: Entry, sender: PeerRecord) -> bytes | None:
        fetched.append(entry.sha256)
        return await bring(self, entry, sender)

    async def scene(made: Village) -> None:
        a, b = made.peers
        monkeypatch.setattr(BlobFetcher, "bring", watched)
        blob = b"no contribution"
        wrong = sign_contribution(a.signer, EMBEDDING, 1, contribution_digest(blob), len(blob))
        a.intake.contribution_store.put(wrong, blob)
        with pytest.raises(FormatError):
            await b.intake.take(wrong.proof, [], a.outer.discovery.record)
        assert await b.intake.take(wrong.proof, [], a.outer.discovery.record) == []
        assert fetched == [wrong.sha256]
        large = sign_contribution(a.signer, EMBEDDING, 2, "ab" * 32, max_bytes(MANIFEST, EMBEDDING) + 1)
        with pytest.raises(FormatError, match="more than possible"):
            await b.intake.take(large.proof, [], a.outer.discovery.record)
        assert fetched == [wrong.sha256]

    play(tmp_path, "ab", scene)


def test_after_having_been_away_one_peers_word_keeps_nothing(tmp_path: Path):
    async def scene(made: Village) -> None:
        a, b, c, d = made.peers
        entry = await written(a, 1)
        await b.intake.take(entry.proof, [], a.outer.discovery.record)
        for enough in (True, False):
            b.intake.ledgers[EMBEDDING].advance(6)  # too late for it by now, without receipts
            b.intake.catch_up(EMBEDDING, 5, 2)
            for peer in (c, d) if enough else (c, c):
                b.intake.vouch(EMBEDDING, entry.key, PeerId(peer.id), 0)
            b.intake.reconsider(EMBEDDING)
            assert bool(b.intake.ledgers[EMBEDDING].chosen(1)) == enough

    play(tmp_path, "abcd", scene)


@pytest.mark.parametrize("late", [False, True])
def test_an_own_contribution_that_the_others_have_not_accepted_stays_dropped_after_a_restart(
    tmp_path: Path, late: bool
):
    async def scene(made: Village) -> None:
        a = made.peers[0]
        entry = await written(a, 1)
        blob = a.intake.contribution_store.read(entry.sha256)
        if not late:
            assert await a.intake.own(EMBEDDING, 1, blob)
        a.intake.ledgers[EMBEDDING].advance(6)  # the others have gone on without it
        if late:
            assert await a.intake.own(EMBEDDING, 1, blob) is None
        a.intake.catch_up(EMBEDDING, 5, 2)
        a.intake.reconsider(EMBEDDING)
        a.intake.discard_dropped(())
        made.cut(a)
        again = await made.start("a")
        assert not again.intake.ledgers[EMBEDDING].chosen(1)
        assert again.intake.contribution_store.read(entry.sha256) == blob  # for the error feedback

    play(tmp_path, "ab", scene)


def test_the_word_of_others_is_for_rounds_that_are_over_and_given_anew_each_time(tmp_path: Path):
    async def scene(made: Village) -> None:
        a, b, c, d = made.peers
        entry = await written(a, 1)
        cases = (0, 2, False, False), (5, 2, True, False), (5, 1, False, False), (5, 2, False, True)
        for target, words, again, taken in cases:
            b.intake.ledgers[EMBEDDING].advance(6)
            b.intake.catch_up(EMBEDDING, target, 2)
            for peer in (c, d)[:words]:
                b.intake.vouch(EMBEDDING, entry.key, PeerId(peer.id), 0)
            if again:
                b.intake.catch_up(EMBEDDING, target, 2)
            await b.intake.take(entry.proof, [], a.outer.discovery.record)
            assert bool(b.intake.ledgers[EMBEDDING].chosen(1)) == taken

    play(tmp_path, "abcd", scene)


def test_who_has_not_finished_a_round_has_not_spoken_of_what_counts_in_it(tmp_path: Path):
    async def scene(made: Village) -> None:
        peer, *others = made.peers
        peer.intake.catch_up(EMBEDDING, 5, 2, least=5)
        for other, round in zip(others, (4, 5, 5), strict=True):
            assert not peer.intake.caught_up(EMBEDDING)
            peer.intake.note_spoken(EMBEDDING, PeerId(other.id), round)
        assert peer.intake.caught_up(EMBEDDING)
        for other, round in zip(others, (4, 4, 5), strict=True):
            peer.intake.vouch(EMBEDDING, b"an entry", PeerId(other.id), round)
        assert peer.intake.vouched[EMBEDDING] == {b"an entry": {PeerId(others[2].id)}}
        assert peer.intake.spoken[EMBEDDING] == {PeerId(other.id) for other in others[1:]}

    play(tmp_path, "abcd", scene)
