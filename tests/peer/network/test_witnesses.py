"""Where the run is follows from what counts: who may not contribute, or has not, moves nobody's time by its word."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from peer.network.witnesses import LATELY
from peer.swarm.rounds import round_policy
from peer.swarm.rounds.catch_up import agree, catch_up
from peer.swarm.rounds.round_view import see_round, why_end_steps
from protocol.errors import FormatError
from protocol.identity import EMBEDDING
from protocol.outer.window import SKEW
from protocol.trust.proofs import sign_contribution
from tests.reference.loopback_peers import LoopbackPeer, Village, village
from tests.reference.small_manifest import small_manifest

MANIFEST = small_manifest(outer={"grace": 2, "liars": 1, "rounds": 2000, "chunk_side": 4, "top_k": 2})
LAST = MANIFEST.outer.rounds

Scene = Callable[[Village], Awaitable[None]]


def play(folder: Path, names: str, scene: Scene) -> None:
    async def run() -> None:
        async with village(MANIFEST, folder, *names) as made:
            await asyncio.wait_for(scene(made), 120)

    asyncio.run(run())


async def liars(made: Village, kind: str) -> list[LoopbackPeer]:
    """Two names, one more than may lie; the village's rounds go on without them."""
    two = []
    for name in ("x", "y"):
        match kind:
            case "observers":
                two.append(await made.join(name, observes=True))
            case "peers on trial":
                two.append(await made.join(name, on_trial=True))
            case "volunteers without contributions":
                two.append(await made.join(name, stage=0))
                two[-1].outer.discovery.update_record(replica=two[-1].id)
    made.peers = made.peers[:-2]
    return two


async def say(two: list[LoopbackPeer], honest: list[LoopbackPeer], round: int) -> None:
    """Each tells everybody that it has finished a round, in person."""
    for liar in two:
        liar.outer.discovery.update_record(round=round, contributed=round)
        for peer in honest:
            liar.outer.discovery.meet(peer.outer.discovery.record, in_person=True)
            await liar.outer.reconciler.compare(peer.outer.discovery.record)


KINDS = ("observers", "peers on trial", "volunteers without contributions")


@pytest.mark.parametrize("kind", KINDS)
def test_two_names_that_say_a_round_stop_nobody(tmp_path: Path, kind: str):
    async def scene(made: Village) -> None:
        await made.round(1, made.peers)
        two = await liars(made, kind)
        for round, said in ((2, LAST), (3, LAST - 1), (4, 4 + 5), (5, 5)):
            await say(two, made.peers, said)
            for peer in made.peers:
                assert not why_end_steps(peer.outer, round)
                assert not round_policy.is_complete(see_round(peer.outer, round, trains=True))
                assert {ledger.clock for ledger in peer.intake.ledgers.values()} == {round}
            await made.round(round, made.peers)
            for peer in made.peers:
                await agree(peer.outer)
                assert peer.outer.clock == round + 1
        again = made.peers[0] = await made.start("a")
        made.introduce()
        await say(two, made.peers, LAST)
        await catch_up(again.outer)
        assert again.outer.clock == 6
        await made.round(6, made.peers)
        assert len({tuple(sorted(peer.digests().items())) for peer in made.peers}) == 1
        assert len(again.intake.ledgers[EMBEDDING].chosen(6)) == 3

    play(tmp_path, "abc", scene)


def test_authors_are_believed_one_round_beyond_what_they_have_contributed(tmp_path: Path):
    async def scene(made: Village) -> None:
        await made.round(1, made.peers)
        two, made.peers = made.peers[3:], made.peers[:3]
        await say(two, made.peers, 1 + LATELY)
        assert {peer.outer.others_at() for peer in made.peers} == {2}
        await say(two, made.peers, LAST)  # further than they have contributed: they are no witnesses any more
        assert {peer.outer.others_at() for peer in made.peers} == {1}
        await made.round(2, made.peers)
        await say(two, made.peers, LAST - 1)
        for peer in made.peers:
            assert peer.outer.others_at() == 2
            assert not why_end_steps(peer.outer, 3)
            assert {ledger.clock for ledger in peer.intake.ledgers.values()} == {3}

    play(tmp_path, "abcxy", scene)


def test_a_round_that_the_run_does_not_have_is_a_breach(tmp_path: Path):
    async def scene(made: Village) -> None:
        one, other = made.peers
        for said in (LAST + 1, 2**31 - 2):
            for field in ("round", "contributed"):
                other.outer.discovery.update_record(**{"round": 0, "contributed": 0, field: said})
                with pytest.raises(FormatError, match=f"speaks of round {said}, and the run has {LAST}"):
                    one.outer.reconciler.receive_statement(other.outer.reconciler.statement(), other.id)
        assert one.outer.discovery.records[other.outer.discovery.record.peer_id].round == 0
        while not one.outer.reconciler.bans.objection(other.id):  # a question may take too long on a busy machine
            await other.outer.reconciler.compare(one.outer.discovery.record)
        far = sign_contribution(other.signer, EMBEDDING, LAST + 1, "ab" * 32, 100)
        with pytest.raises(FormatError, match="the run ends with round"):
            await one.intake.take(far.proof, [], other.outer.discovery.record)

    play(tmp_path, "ab", scene)


def test_signed_contributions_that_nobody_can_show_move_nobody(tmp_path: Path):
    """Two of them sign for far rounds: that is looked into once, and then not for a while."""

    async def scene(made: Village) -> None:
        for round in (1, 2, 3):
            await made.round(round, made.peers)
        two = await liars(made, "volunteers without contributions")
        await say(two, made.peers, LAST)
        for peer in made.peers:
            for liar in two:
                far = sign_contribution(liar.signer, EMBEDDING, LAST, "ab" * 32, 100)
                assert not await peer.intake.take(far.proof, [], liar.outer.discovery.record)
            witnesses = peer.outer.reconciler.witnesses
            assert witnesses.shown_at() == LAST
            assert witnesses.others_at() == 3
            assert not why_end_steps(peer.outer, 4)
            await agree(peer.outer)
            assert witnesses.shown_at() == 3
            assert peer.outer.clock == 4
            assert {ledger.clock for ledger in peer.intake.ledgers.values()} == {4}
        await made.round(4, made.peers)
        assert len({tuple(sorted(peer.digests().items())) for peer in made.peers}) == 1

    play(tmp_path, "abc", scene)


def test_the_clock_follows_contributions_a_little_ahead_and_falls_back_when_their_authors_go(tmp_path: Path):
    async def scene(made: Village) -> None:
        slow, *others = made.peers
        await made.round(1, made.peers)
        for round in (2, 3, 4):
            for number, peer in enumerate(others):
                await peer.contribute(round, 10 * round + number)
            await made.compare_all()
            for peer in others:
                await peer.at(round)
            made.introduce()
        await made.compare_all()
        ledger = slow.intake.ledgers[EMBEDDING]
        assert slow.outer.others_at() == 4
        assert why_end_steps(slow.outer, 2)
        assert ledger.clock == slow.outer.clock + SKEW == 4
        made.cut(slow)
        slow.outer.reconciler.witnesses.follow()
        assert slow.outer.others_at() == 0
        assert ledger.clock == slow.outer.clock == 2

    play(tmp_path, "abc", scene)


@pytest.mark.parametrize("knows", [False, True])
def test_who_may_have_slept_gives_no_receipts_until_it_has_caught_up(tmp_path: Path, knows: bool):
    """What an author kept to itself and tells a sleeper alone would else come back with an honest peer's receipt."""

    async def scene(made: Village) -> None:
        asleep, *others, hidden = made.peers
        await made.round(1, made.peers)
        made.cut(asleep)
        made.cut(hidden)
        await hidden.contribute(2, 5)
        made.peers = others
        for round in range(2, 8):
            await made.round(round, others)
        made.peers = [asleep, *others]
        made.introduce()
        for other in others * knows:
            await asleep.outer.reconciler.compare(other.outer.discovery.record)
        await made.calm()
        (late,) = hidden.intake.ledgers[EMBEDDING].entries(2)
        await asleep.intake.take(late.proof, [], hidden.outer.discovery.record)
        accepted = asleep.intake.ledgers[EMBEDDING].versions(late.name)[late.sha256]
        assert (asleep.id in accepted.receipts) == (not knows)
        await agree(asleep.outer)
        assert asleep.outer.clock == (8 if knows else 2)
        if knows:
            assert asleep.intake.attests
            assert hidden.id not in asleep.intake.ledgers[EMBEDDING].chosen(2)

    play(tmp_path, "sabh", scene)


def test_whoever_was_ahead_and_has_gone_is_remembered_if_more_said_so_than_may_lie(tmp_path: Path):
    async def scene(made: Village) -> None:
        behind, a, b = made.peers
        witnesses = behind.outer.reconciler.witnesses
        made.cut(behind)
        for gone, ahead in ((a, False), (b, True)):
            assert not witnesses.were_ahead(1)
            behind.intake.shown[gone.outer.discovery.record.peer_id] = 1 + SKEW
            assert witnesses.were_ahead(1) == ahead
        assert not witnesses.were_ahead(2)  # a round less is no more than a message takes
        for one in (a, b):
            one.outer.discovery.update_record(round=1 + SKEW)
            behind.outer.discovery.meet(one.outer.discovery.record, in_person=True)
        assert not witnesses.were_ahead(1)  # they are here, and show it themselves

    play(tmp_path, "zab", scene)
