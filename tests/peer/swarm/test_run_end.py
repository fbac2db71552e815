"""The end of a run, over real sockets: whoever goes first, all hold one state."""

import asyncio
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from peer.swarm import run_end
from peer.swarm.rounds.outer_round import OuterLoop
from peer.swarm.rounds.round_end import finish_round, wait_for_round
from peer.swarm.run_end import (
    ask_whether_over,
    keep_asking_the_node,
    serve_the_end,
    serve_until_all_finished,
    stay,
    stay_until_known,
    take_last_state,
)
from protocol.codec.contribution import contribution_digest
from protocol.errors import UnreachableError
from protocol.events.activity import Contributed, Finished, Progress
from protocol.events.waiting import Waiting
from protocol.identity import EMBEDDING
from protocol.monitor import NodeWord
from protocol.patience import IDLE_RUN_SECONDS, NODE_POLL_SECONDS
from protocol.trust.proofs import sign_contribution
from tests.reference.loopback_peers import RUN, LoopbackPeer, Village, village
from tests.reference.small_manifest import small_manifest

MANIFEST = small_manifest(outer={"rounds": 1})


async def shown(author: LoopbackPeer, seed: int, victim: LoopbackPeer) -> None:
    """One of an author's contributions to the last round, which it shows to one peer alone."""
    state = author.outer.followed.parts[EMBEDDING].state
    moved = {name: torch.linspace(0, seed * 1e-7, each.numel()).view_as(each) for name, each in state.grid.items()}
    record = author.outer.discovery.record
    blob = state.contribute(RUN, 1, record.peer_id, 1, moved, record.slot)[0]
    entry = sign_contribution(author.signer, EMBEDDING, 1, contribution_digest(blob), len(blob))
    author.intake.contribution_store.put(entry, blob)
    await victim.intake.take(entry.proof, [], author.outer.discovery.record)


def test_two_contributions_that_an_author_shows_at_the_end_leave_one_state_whoever_goes_first(tmp_path: Path):
    comparing: dict[str, asyncio.Task[None]] = {}

    async def leave(made: Village, peer: LoopbackPeer) -> str:
        await serve_until_all_finished(peer.outer)
        comparing.pop(peer.id).cancel()
        state = peer.digests()[EMBEDDING]
        await made.leave(peer)
        return state

    async def scene() -> None:
        async with village(MANIFEST, tmp_path, "a", "b", "c", "liar") as made:
            a, b, c, liar = made.peers
            await shown(liar, 5, a)
            await shown(liar, 6, b)
            await made.leave(liar)
            for peer in (a, b, c):
                await peer.at(1)
            made.introduce()
            assert len({peer.digests()[EMBEDDING] for peer in (a, b, c)}) == 3
            for peer in (a, b, c):
                comparing[peer.id] = asyncio.create_task(peer.outer.reconciler.keep_comparing())
            first = await leave(made, a)
            assert {first} == {*await asyncio.gather(leave(made, b), leave(made, c))}

    asyncio.run(asyncio.wait_for(scene(), 60))


LONGER = small_manifest(outer={"grace": 2, "liars": 1, "rounds": 3})


async def finished() -> NodeWord:
    """What the operator's node says at the end."""
    return NodeWord(3)


def test_who_has_slept_over_the_end_takes_the_last_state_from_who_has_it_and_contributes_nothing(tmp_path: Path):
    async def scene() -> None:
        async with village(LONGER, tmp_path, "a", "b", "asleep", "late") as made:
            observer = await made.join("observer", observes=True)
            a, b, asleep, late = made.peers[:4]
            await made.round(1, made.peers[:4])
            made.cut(asleep, late)
            made.peers = [a, b, observer]
            for round in (2, 3):
                await made.round(round, [a, b])
            await made.leave(a)
            await made.leave(b)
            made.peers = [observer, asleep, late]
            made.introduce()
            waiting = asyncio.create_task(wait_for_round(asleep.outer, 2))
            await ask_whether_over(asleep.outer, finished)
            assert not await waiting
            await asleep.contribute(2, 9)
            assert 2 not in asleep.outer.followed.parts[EMBEDDING].own
            assert not await finish_round(asleep.outer, 2)
            assert asleep.outer.clock == 2
            await take_last_state(asleep.outer)
            assert asleep.outer.finished
            assert asleep.digests() == observer.digests()
            assert asleep.digests() != late.digests()

    asyncio.run(asyncio.wait_for(scene(), 60))


def test_who_comes_late_to_the_end_takes_what_those_who_have_finished_still_take(tmp_path: Path):
    async def scene() -> None:
        async with village(LONGER, tmp_path, "first", "slow", "late") as made:
            first, slow, late = made.peers
            for round in (1, 2):
                await made.round(round, made.peers)
            made.cut(slow)
            await first.contribute(3, 7)
            await made.calm()
            await first.outer.finish(3)
            late.outer.discovery.meet(first.outer.discovery.record, in_person=True)
            await ask_whether_over(late.outer, finished)
            ending = asyncio.create_task(take_last_state(late.outer))
            while not ending.done() and "settled" not in str(late.said[-1]):  # it waits for those who settle it
                await late.outer.discovery.news.wait(0.05)
            assert late.digests() == first.digests() == (early := first.digests())
            first.outer.discovery.meet(slow.outer.discovery.record, in_person=True)
            slow.outer.discovery.meet(first.outer.discovery.record, in_person=True)
            await slow.contribute(3, 8)
            await made.calm()
            await first.outer.settle()
            first.outer.discovery.update_record(ending=False)
            assert first.digests() != early
            late.outer.discovery.meet(first.outer.discovery.record, in_person=True)
            await ending
            assert late.digests() == first.digests()

    asyncio.run(asyncio.wait_for(scene(), 60))


async def last_round_without(made: Village, first: LoopbackPeer, late: LoopbackPeer) -> dict[str, str]:
    """One finishes the run while it does not hear the other, which is in the last round. Returns the state."""
    for round in (1, 2):
        await made.round(round, made.peers)
    made.cut(first)
    await first.contribute(3, 7)
    await first.outer.finish(3)
    return first.digests()


async def bring(made: Village, first: LoopbackPeer, late: LoopbackPeer) -> None:
    """The other is back, with its contribution to the last round, and finishes it."""
    made.introduce()
    await late.contribute(3, 8)
    await made.compare_all()
    await late.outer.finish(3)
    made.introduce()


def test_what_comes_while_the_node_is_asked_is_in_the_last_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(run_end, "SETTLE_PATIENCE_SECONDS", 0.01)
    monkeypatch.setattr(run_end, "END_KNOWN_POLL_SECONDS", 0.01)
    asked, brought = asyncio.Event(), asyncio.Event()

    async def takes_meanwhile() -> NodeWord:
        asked.set()
        return NodeWord(3, taking=not brought.is_set())

    async def scene() -> None:
        async with village(LONGER, tmp_path, "first", "late") as made:
            first, late = made.peers
            early = await last_round_without(made, first, late)
            node = SimpleNamespace(settings=SimpleNamespace(stay=False, hold=False), ask_node=takes_meanwhile)
            serving = asyncio.create_task(serve_the_end(node, first.outer))  # type: ignore[arg-type]
            await asked.wait()
            await bring(made, first, late)
            assert first.digests() == early
            brought.set()
            await serving
            assert first.digests() == late.digests() != early

    asyncio.run(asyncio.wait_for(scene(), 60))


def test_what_others_bring_to_a_peer_that_stays_is_in_its_last_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(run_end, "STAY_POLL_SECONDS", 0.05)

    async def scene() -> None:
        async with village(LONGER, tmp_path, "first", "late") as made:
            first, late = made.peers
            early = await last_round_without(made, first, late)
            staying = asyncio.create_task(stay(first.outer))
            await bring(made, first, late)
            async with asyncio.timeout(10):
                while first.digests() == early:
                    await first.outer.discovery.news.wait(0.05)
            first.outer.asked_to_leave.set()
            first.outer.discovery.news.ring()
            await staying
            assert first.digests() == late.digests()

    asyncio.run(asyncio.wait_for(scene(), 60))


def test_the_word_of_others_that_are_late_makes_no_last_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(run_end, "LAST_STATE_SECONDS", 0.01)

    async def scene() -> None:
        async with village(LONGER, tmp_path, "a", "b", "c") as made:
            await made.round(1, made.peers)
            a = made.peers[0]
            await ask_whether_over(a.outer, finished)
            await take_last_state(a.outer)
            assert a.outer.over
            assert not a.outer.finished
            assert isinstance(a.said[-1], Progress)
            assert "nobody who is there holds the last state" in a.said[-1].doing

    asyncio.run(asyncio.wait_for(scene(), 60))


def test_who_has_contributed_to_the_last_round_and_slept_over_its_end_does_not_take_what_it_has_of_it_for_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(run_end, "LAST_STATE_SECONDS", 0.01)

    async def scene() -> None:
        async with village(LONGER, tmp_path, "a", "b", "asleep") as made:
            neighbour = await made.join("neighbour", stage=1)  # holds the embedding, and not stage 0
            a, b, asleep = made.peers[:3]
            for round in (1, 2):
                await made.round(round, made.peers[:3])
            await asleep.contribute(3, 9)
            await made.calm()
            made.cut(asleep)
            made.peers = [a, b, neighbour]
            await made.round(3, [a, b])
            await made.leave(a)
            await made.leave(b)
            made.peers = [neighbour, asleep]
            made.introduce()
            await ask_whether_over(asleep.outer, finished)
            await take_last_state(asleep.outer)
            assert not asleep.outer.finished
            asleep.outer.announce_finish()
            assert not any(isinstance(each, Finished) for each in asleep.said)

    asyncio.run(asyncio.wait_for(scene(), 60))


def test_who_is_told_that_the_run_is_over_while_it_saves_its_contribution_publishes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async def scene() -> None:
        async with village(LONGER, tmp_path, "a", "slow") as made:
            slow, save = made.peers[1], OuterLoop.save

            async def saved(outer: OuterLoop, *given: Any) -> None:
                await save(outer, *given)
                outer.mark_run_over()

            monkeypatch.setattr(OuterLoop, "save", saved)
            await slow.contribute(1, 5)
            await made.calm()
            assert [peer.intake.ledgers[EMBEDDING].chosen(1) for peer in made.peers] == [{}, {}]
            assert not any(isinstance(each, Contributed) for each in slow.said)

    asyncio.run(asyncio.wait_for(scene(), 60))


def test_whoever_is_stopped_before_it_has_compared_the_last_state_goes_at_once_and_does_not_say_that_it_has(
    tmp_path: Path,
):
    async def scene() -> None:
        async with village(LONGER, tmp_path, "a", "late") as made:
            a, late = made.peers
            for round in (1, 2):
                await made.round(round, made.peers)
            await a.contribute(3, 1)
            await a.at(3)
            leaving = asyncio.create_task(serve_until_all_finished(a.outer))
            while not any(isinstance(each, Waiting) for each in a.said):
                await a.outer.discovery.news.wait(0.05)
            a.outer.asked_to_leave.set()
            a.outer.discovery.news.ring()
            await leaving
            a.outer.announce_finish()
            assert not any(isinstance(each, Finished) for each in a.said)
            a.outer.asked_to_leave.clear()  # started again, it does it now
            await made.leave(late)
            await serve_until_all_finished(a.outer)
            a.outer.announce_finish()
            assert isinstance(a.said[-1], Finished)

    asyncio.run(asyncio.wait_for(scene(), 60))


def test_who_comes_back_to_the_end_looks_for_others_first(tmp_path: Path):
    """It was killed before a last contribution came, and has met nobody when it starts again."""

    async def scene() -> None:
        async with village(LONGER, tmp_path, "a", "b") as made:
            a, b = made.peers
            for round in (1, 2):
                await made.round(round, made.peers)
            made.cut(a)
            await b.contribute(3, 7)
            for peer in (a, b):
                await peer.at(3)
            assert a.digests() != b.digests()
            again = await made.start("a")
            assert again.outer.finished
            made.cut(again)
            leaving = asyncio.create_task(serve_until_all_finished(again.outer))
            await again.outer.discovery.news.wait(0.05)
            again.outer.discovery.meet(b.outer.discovery.record, in_person=True)
            await leaving
            assert again.digests() == b.digests()

    asyncio.run(asyncio.wait_for(scene(), 60))


def test_when_somebody_comes_back_at_the_end_others_may_hold_something_else_for_as_long_as_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    together, compared = iter([True, False, True, True]), list[bool]()

    async def have_all(outer: OuterLoop) -> bool:
        compared.append(True)
        return False

    monkeypatch.setattr(run_end, "all_at", lambda peers, rounds: next(together))
    monkeypatch.setattr(run_end, "_have_all", have_all)
    monkeypatch.setattr(run_end, "SETTLE_PATIENCE_SECONDS", 0.02)

    async def ring(outer: OuterLoop) -> None:
        while True:
            await asyncio.sleep(0.05)
            outer.discovery.news.ring()

    async def scene() -> None:
        async with village(LONGER, tmp_path, "a") as made:
            ringing = asyncio.create_task(ring(made.peers[0].outer))
            await serve_until_all_finished(made.peers[0].outer)
            ringing.cancel()
            assert len(compared) == 3

    asyncio.run(asyncio.wait_for(scene(), 60))


def test_who_has_finished_is_not_told_that_it_is_late(tmp_path: Path):
    async def scene() -> None:
        async with village(LONGER, tmp_path, "a", "b") as made:
            for round in (1, 2, 3):
                await made.round(round, made.peers)
            await ask_whether_over(made.peers[0].outer, finished)
            assert not made.peers[0].outer.missed_end
            await made.leave(made.peers[0])
            again = await made.start("a")  # it need not finish the last round again
            assert again.outer.finished
            assert again.digests() == made.peers[0].digests()

    asyncio.run(asyncio.wait_for(scene(), 60))


def test_the_node_is_asked_after_a_sleep_while_no_round_ends_and_often_while_nobody_else_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(run_end, "CLOCK_POLL_SECONDS", 0.01)
    asked: list[float] = []
    now, over_after = 0.0, 1000
    looked_often = asyncio.Event()

    def clock() -> float:
        nonlocal now
        now += 7.0 if now == 6.0 else 1.0  # a look that comes late: the machine has slept
        if now >= 60:
            looked_often.set()
        return now

    async def ask() -> NodeWord:
        asked.append(now)
        return NodeWord(3 if len(asked) >= over_after else 0)

    async def scene() -> None:
        nonlocal over_after
        async with village(LONGER, tmp_path, "a", "b") as made:
            a, b = made.peers
            asking = asyncio.create_task(keep_asking_the_node(a.outer, ask, clock))
            await looked_often.wait()
            assert asked == [13.0, 43.0]  # while others train here: after a sleep, and as no round ends
            await made.leave(b)
            over_after = len(asked) + 2
            await asking
            assert asked[-1] - asked[-2] == 5.0  # alone
            assert a.outer.missed_end

    asyncio.run(asyncio.wait_for(scene(), 60))


def test_the_node_is_asked_while_those_that_were_rounds_ahead_are_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(run_end, "CLOCK_POLL_SECONDS", 0.001)

    async def scene() -> None:
        async with village(LONGER, tmp_path, "slow", "spare", "a", "b") as made:
            slow, _, a, b = made.peers
            slow.intake.shown |= {a.outer.discovery.record.peer_id: 3, b.outer.discovery.record.peer_id: 3}
            await made.leave(a)
            await made.leave(b)
            await keep_asking_the_node(slow.outer, finished)
            assert slow.outer.missed_end

    asyncio.run(asyncio.wait_for(scene(), 60))


def test_the_node_is_asked_once_somebody_who_had_finished_the_last_round_has_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """As when a group that could not form for a minute still trains in the last round with others: it asks long before
    it would ask because no round ends."""
    monkeypatch.setattr(run_end, "CLOCK_POLL_SECONDS", 0.001)
    looks = count()

    async def scene() -> None:
        async with village(LONGER, tmp_path, "slow", "other", "first") as made:
            slow, _, first = made.peers
            for round in (1, 2):
                await made.round(round, made.peers)
            await first.at(3)
            made.introduce()
            await made.leave(first)
            slow.outer.discovery.update_record(round=1)
            assert not run_end._somebody_has_ended(slow.outer)  # anybody can say so
            slow.outer.discovery.update_record(round=2)
            await keep_asking_the_node(slow.outer, finished, lambda: float(next(looks)))
            assert slow.outer.missed_end
            assert next(looks) - 1 == NODE_POLL_SECONDS < IDLE_RUN_SECONDS

    asyncio.run(asyncio.wait_for(scene(), 60))


def test_who_has_finished_stays_until_the_node_knows_it_and_not_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(run_end, "END_KNOWN_POLL_SECONDS", 0.01)
    asked: list[int] = []

    async def asks() -> NodeWord:
        asked.append(len(asked))
        if len(asked) == 1:
            raise UnreachableError("nobody answers")
        return NodeWord(MANIFEST.outer.rounds if len(asked) >= 4 else 0, taking=len(asked) == 4)

    async def away() -> NodeWord:
        raise UnreachableError("nobody answers")

    async def takes_for_ever() -> NodeWord:
        return NodeWord(MANIFEST.outer.rounds, taking=True)

    async def never_over() -> NodeWord:
        return NodeWord(0)

    async def scene() -> None:
        async with village(MANIFEST, tmp_path, "a") as made:
            outer = made.peers[0].outer
            await stay_until_known(outer, asks)
            assert len(asked) == 5
            told = [each.what for each in made.peers[0].said if isinstance(each, Waiting)]
            assert list(dict.fromkeys(told)) == [
                "the operator's node to know that the run is over",
                "the operator's node to take the run's last state",
            ]
            with monkeypatch.context() as patch:
                patch.setattr(run_end, "NODE_AWAY_SECONDS", 0.1)
                await stay_until_known(outer, away)
            monkeypatch.setattr(run_end, "END_KNOWN_SECONDS", 0.1)
            await stay_until_known(outer, takes_for_ever)
            await stay_until_known(outer, never_over)
            outer.asked_to_leave.set()
            await stay_until_known(outer, away)

    asyncio.run(asyncio.wait_for(scene(), 60))
