"""What a peer is told of its own contributions: what counts, what does not, and why. Real peers and ledgers."""

from pathlib import Path

import pytest

from peer.swarm.rounds import round_policy
from peer.swarm.rounds.own_credit import IDLE, ON_TRIAL, REVOKED, TOO_LATE, TWICE, VOID
from peer.swarm.rounds.round_end import finish_round
from peer.swarm.rounds.round_view import why_end_steps
from protocol.codec.contribution import contribution_digest
from protocol.events.activity import Progress
from protocol.events.decisions import Avoided, Counted, NotCounted, WentOn
from protocol.events.event import Event
from protocol.identity import EMBEDDING
from protocol.outer.ledger import Revocation
from protocol.trust.proofs import sign_contribution, sign_revocation
from tests.peer.swarm.rounds.test_outer_round import honest, play, publish
from tests.reference.loopback_peers import LoopbackPeer, Village


def of(kind: type, peer: LoopbackPeer) -> list[Event]:
    return [event for event in peer.said if isinstance(event, kind)]


def look(peer: LoopbackPeer, round: int) -> None:
    outer = peer.outer
    outer.credited.look(round, outer.discovery.record)


async def lateness(peer: LoopbackPeer) -> str:
    """Why it is to end its first inner loop, as soon as it is."""
    while not (why := why_end_steps(peer.outer, 1)):
        await peer.outer.discovery.news.wait(0.05)
    return why


def reasons(peer: LoopbackPeer, round: int) -> set[str]:
    return {event.reason for event in of(NotCounted, peer) if event.round == round}


def test_what_counts_is_not_spoken_of(tmp_path: Path):
    async def scene(made: Village) -> None:
        for number, peer in enumerate(made.peers):
            await peer.contribute(1, number)
        made.introduce()
        await made.compare_all()
        for peer in made.peers:
            await finish_round(peer.outer, 1)
            assert of(NotCounted, peer) == of(WentOn, peer) == []

    play(tmp_path, "ab", scene)


def test_who_comes_when_the_round_is_over_is_told_that_nothing_is_credited(tmp_path: Path):
    async def scene(made: Village) -> None:
        late, other = made.peers
        await other.contribute(1, 1)
        await made.calm()
        await late.at(1)
        await late.contribute(1, 2)
        (told,) = of(NotCounted, late)
        assert (told.round, told.reason) == (1, TOO_LATE)
        assert set(told.parts) == set(map(str, late.outer.followed.parts))
        look(late, 1)
        assert len(of(NotCounted, late)) == 1  # once

    play(tmp_path, "ab", scene)


def test_who_contributes_a_second_time_is_told_what_becomes_of_it(tmp_path: Path):
    async def scene(made: Village) -> None:
        (peer,) = made.peers
        await peer.contribute(1, 1)
        await peer.contribute(1, 2)
        assert [event.doing for event in of(Progress, peer) if event.doing.endswith(TWICE)]
        look(peer, 1)
        assert of(NotCounted, peer) == of(Counted, peer) == []  # the first one stands, as it did

    play(tmp_path, "a", scene)


def test_who_is_on_trial_is_told_so(tmp_path: Path):
    async def scene(made: Village) -> None:
        newcomer = await made.join("newcomer", on_trial=True)
        await newcomer.contribute(1, 1)
        look(newcomer, 1)
        assert reasons(newcomer, 1) == {ON_TRIAL}

    play(tmp_path, "a", scene)


def test_two_contributions_of_one_name_are_told_to_be_void(tmp_path: Path):
    async def scene(made: Village) -> None:
        liar, other = made.peers
        await publish(liar, await honest(liar, 5))
        second = await honest(liar, 6)
        entry = sign_contribution(liar.signer, EMBEDDING, 1, contribution_digest(second), len(second))
        liar.intake.contribution_store.put(entry, second)
        liar.intake.ledgers[EMBEDDING].take(entry)
        liar.outer.followed.parts[EMBEDDING].own[1] = entry.sha256
        look(liar, 1)
        assert VOID in reasons(liar, 1)
        await made.compare_all()
        assert any(event.peer == liar.id for event in of(Avoided, other))

    play(tmp_path, "la", scene)


def test_who_is_revoked_is_told_from_which_round_on(tmp_path: Path):
    async def scene(made: Village) -> None:
        for round in (1, 2, 3):
            await made.round(round, made.peers)
        peer, _ = made.peers
        look(peer, 3)
        assert of(NotCounted, peer) == []
        revocation = Revocation(peer.outer.discovery.record.peer_id, 3, 4)
        peer.intake.revoke(sign_revocation(made.operator, made.authority, revocation))
        look(peer, 3)
        assert reasons(peer, 3) == {REVOKED}
        assert reasons(peer, 2) == set()

    play(tmp_path, "ab", scene)


def test_a_round_goes_on_without_who_is_late_and_says_so_to_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    async def scene(made: Village) -> None:
        a, b, late = made.peers
        await a.contribute(1, 1)
        await b.contribute(1, 2)
        made.introduce()
        await made.compare_all()
        await finish_round(a.outer, 1)
        (told,) = of(WentOn, a)
        assert (told.round, told.without) == (1, [late.id])
        assert of(NotCounted, a) == []
        assert "the others are done" in await lateness(late)  # it is to end its inner loop, and why
        await finish_round(late.outer, 1)
        assert reasons(late, 1) == {IDLE}

    monkeypatch.setattr(round_policy, "SHORTEST_WAIT_SECONDS", 0.05)
    play(tmp_path, "abl", scene)


def test_a_spare_is_told_once_that_nothing_of_it_counts_and_again_after_it_has_worked(tmp_path: Path):
    async def scene(made: Village) -> None:
        spare, other = made.peers
        for round in (1, 2, 3):
            await made.round(round, [other])
            look(spare, round)
        assert [event.round for event in of(NotCounted, spare)] == [1]
        await made.round(4, [spare, other])
        look(spare, 4)
        for round in (5, 6):
            await made.round(round, [other])
            look(spare, round)
        assert [event.round for event in of(NotCounted, spare)] == [1, 5]

    play(tmp_path, "ab", scene)
