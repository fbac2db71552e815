"""Who was not there learns what was: from what the operator's observer attests, or it is told whose word it takes."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from peer.network.blob_fetcher import BlobFetcher
from peer.swarm.rounds import catch_up as catching_up
from peer.swarm.rounds.catch_up import agree, catch_up
from peer.swarm.rounds.outer_round import OuterLoop
from peer.swarm.rounds.states import take_later_states
from protocol.events.activity import Progress, Refused
from protocol.events.decisions import Adopted, CaughtUp, Resynchronised
from protocol.identity import EMBEDDING, PeerId, stage_part
from protocol.outer.ledger import Entry, Revocation
from protocol.outer.phases import RunPhase
from protocol.trust.attestations import GRANTED, grant
from protocol.trust.keys import load_or_create
from protocol.trust.membership_card import Authority
from protocol.trust.proofs import sign_revocation
from protocol.trust.records import PeerRecord
from tests.reference.loopback_peers import RUN, LoopbackPeer, Village, village
from tests.reference.small_manifest import small_manifest

MANIFEST = small_manifest(outer={"grace": 2, "liars": 1, "rounds": 50, "chunk_side": 4, "top_k": 2, "values": "bf16"})
"""The window is 6 rounds wide. Three liars are more than the run takes for granted, and most of its authors."""

HONEST, LIARS = ("a", "b"), ("x", "y", "z")


def play(folder: Path, scene: Callable[[Village], Awaitable[None]]) -> None:
    async def run() -> None:
        async with village(MANIFEST, folder) as made:
            await asyncio.wait_for(scene(made), 180)

    asyncio.run(run())


def named(made: Village, name: str) -> None:
    """The operator names this peer, which is not there yet, as one that attests."""
    operator, folder = made.operator, made.folder / name
    word = grant(operator, Authority(RUN, operator.peer_id), load_or_create(folder).peer_id)
    (folder / GRANTED).write_bytes(word)


async def join(made: Village, *names: str) -> list[LoopbackPeer]:
    return [await made.join(name, observes=name == "o") for name in names]


async def two_pasts(made: Village, observed: bool) -> tuple[list[LoopbackPeer], list[LoopbackPeer]]:
    """A few honest peers, with the operator's observer or without, and a majority that holds another history, other
    digests and states of all rounds but the first: consistent, and shown to whoever asks. Its rounds are its own."""
    if observed:
        named(made, "o")
    honest = await join(made, *(("o",) if observed else ()), *HONEST)
    liars = await join(made, *LIARS)
    everybody = made.peers
    await made.round(1, [*honest[-2:], *liars])
    made.cut(*liars)
    for side, authors in ((honest, honest[-2:]), (liars, liars)):
        made.peers = side
        for round in range(2, 9):
            await made.round(round, authors)
    made.peers = everybody
    made.introduce()
    return honest, liars


def digests(peers: list[LoopbackPeer]) -> set[str]:
    """Of the closed rounds of all parts."""
    return {each.claims[-1].digest for peer in peers for each in peer.outer.followed.parts.values()}


def begun(peer: LoopbackPeer) -> list[Adopted]:
    return [event for event in peer.said if isinstance(event, Adopted)]


def test_a_majority_of_lying_donors_does_not_give_a_newcomer_another_past_than_the_attested_one(tmp_path: Path):
    async def scene(made: Village) -> None:
        honest, liars = await two_pasts(made, observed=True)
        assert digests(honest).isdisjoint(digests(liars))
        [newcomer] = await join(made, "n")
        await catch_up(newcomer.outer)
        assert digests([newcomer]) == digests(honest)
        assert newcomer.outer.clock == 9
        assert [(event.attested, event.since, event.words) for event in begun(newcomer)] == [
            (True, 0, "Began with the state after round 2, which the operator's observer attests.")
        ]
        refused = {event.peer for event in newcomer.said if isinstance(event, Refused) and "attests" in event.reason}
        assert refused == {liar.id for liar in liars}
        await made.compare_all()
        for peer in (newcomer, *honest):  # whatever most of them claim
            await agree(peer.outer)
            await peer.at(8)
        assert digests([newcomer]) == digests(honest)
        assert newcomer.digests() == honest[0].digests() == honest[1].digests()

    play(tmp_path, scene)


def test_who_meets_nobody_but_liars_waits_if_the_door_has_told_it_better(tmp_path: Path):
    async def scene(made: Village) -> None:
        honest, liars = await two_pasts(made, observed=True)
        made.peers = [*liars]
        [newcomer] = await join(made, "n")
        newcomer.outer.reconciler.attested.receive(honest[0].outer.reconciler.attested.signed, PeerId(honest[0].id))
        await catch_up(newcomer.outer)
        assert newcomer.outer.clock == 1
        assert newcomer.outer.followed.parts[EMBEDDING].ledger.folded == 0
        assert begun(newcomer) == []
        newcomer.intake.catch_up(EMBEDDING, 8, 2)
        for liar in liars:  # what they name, and that they have spoken, says nothing
            await newcomer.outer.reconciler.compare(liar.outer.discovery.record, whole=True)
        assert newcomer.intake.vouched[EMBEDDING] == {}
        assert newcomer.intake.spoken[EMBEDDING] == set()
        made.peers = [*honest, *liars, newcomer]  # until it meets one that holds the attested state
        made.introduce()
        await catch_up(newcomer.outer)
        assert digests([newcomer]) == digests(honest)

    play(tmp_path, scene)


def test_where_nobody_attests_a_newcomer_is_told_whose_word_it_takes(tmp_path: Path):
    async def scene(made: Village) -> None:
        _, liars = await two_pasts(made, observed=False)
        [newcomer] = await join(made, "n")
        await catch_up(newcomer.outer)
        assert digests([newcomer]) == digests(liars)  # more lie than the run takes for granted
        state = f"Began with the state after round 2, which {len(liars)} peers hold alike"
        assert [event.words for event in begun(newcomer)] == [f"{state}; no observer of the operator's attests it."]

    play(tmp_path, scene)


def test_who_holds_the_attested_past_is_not_outvoted_and_who_holds_another_takes_it(tmp_path: Path):
    async def scene(made: Village) -> None:
        honest, others = await two_pasts(made, observed=True)
        before = digests(honest)
        for peer in honest:
            await agree_after_comparing(peer)
            assert not [event for event in peer.said if isinstance(event, Resynchronised)]
        assert digests(honest) == before
        misled = others[0]  # it did not know better
        await agree_after_comparing(misled)
        assert digests([misled]) == before
        assert {event.attested for event in misled.said if isinstance(event, Resynchronised)} == {True}

    play(tmp_path, scene)


async def agree_after_comparing(peer: LoopbackPeer) -> None:
    for other in peer.outer.discovery.others():
        await peer.outer.reconciler.compare(other)
    await agree(peer.outer)


def test_an_attestation_outlives_a_restart_and_that_of_who_is_revoked_does_not_stand(tmp_path: Path):
    async def scene(made: Village) -> None:
        named(made, "o")
        observer, *honest = await join(made, "o", *HONEST)
        for round in range(1, 8):
            await made.round(round, honest)
        await made.compare_all()
        [a, _] = honest
        assert a.outer.reconciler.attested.round == 1
        again = await made.start("a")
        assert again.outer.reconciler.attested.signed == a.outer.reconciler.attested.signed
        assert again.outer.reconciler.attested.since == 1  # who starts again does not know how it came by that
        attests = await made.start("o")
        assert attests.outer.reconciler.attested.since == 0  # who attested does
        again.intake.revoke(sign_revocation(made.operator, made.authority, Revocation(PeerId(observer.id), 1, 1)))
        assert again.outer.reconciler.attested.round == 0
        assert again.outer.reconciler.attested.claim(EMBEDDING) is None

    play(tmp_path, scene)


def test_an_attester_that_came_late_attests_nothing_of_what_it_took_from_others(tmp_path: Path):
    """It came when most lied, and could not know better."""

    async def scene(made: Village) -> None:
        _, liars = await two_pasts(made, observed=False)
        named(made, "o")
        [late] = await join(made, "o")
        await catch_up(late.outer)
        assert digests([late]) == digests(liars)
        await late.at(9)  # closes a round of which it took others' word
        assert late.outer.followed.parts[EMBEDDING].ledger.folded == 3
        assert late.outer.reconciler.attested.round == 0
        assert late.outer.reconciler.attested.since == 8

    play(tmp_path, scene)


def test_an_attested_state_that_nobody_gives_keeps_nobody_out(tmp_path: Path):
    """The observer has gone, and the others have left its last word behind, but for one that says it holds it still."""

    async def scene(made: Village) -> None:
        named(made, "o")
        observer, *honest = await join(made, "o", *HONEST)
        for round in range(1, 8):
            await made.round(round, honest)
        await made.compare_all()
        await made.leave(observer)
        for round in range(8, 13):
            await made.round(round, honest)
        [liar] = await join(made, "x")
        attested = honest[0].outer.reconciler.attested
        assert attested.newest is not None
        liar.outer.reconciler.claims = {part: [attested.newest.claim(part)] for part in attested.newest.states}
        [newcomer] = await join(made, "n")
        await catch_up(newcomer.outer)
        assert newcomer.outer.clock == 1
        assert any("cannot catch up yet" in event.doing for event in newcomer.said if isinstance(event, Progress))
        while newcomer.outer.clock == 1:  # one part after the other
            await catch_up(newcomer.outer)
        assert digests([newcomer]) == digests(honest)
        assert {(event.round, event.attested) for event in begun(newcomer)} == {(6, False)}

    play(tmp_path, scene)


def test_a_state_whose_holders_go_while_another_is_fetched_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Its own contribution alone does not make a round that the others have finished: theirs to stage 0 have not come
    before they go."""

    async def none_of_stage_0(fetcher: BlobFetcher, entry: Entry, holder: PeerRecord) -> bytes | None:
        return None if entry.name.part == stage_part(0) else await bring(fetcher, entry, holder)

    bring = BlobFetcher.bring

    async def scene(made: Village) -> None:
        holders, [away] = await join(made, *HONEST), await join(made, "away")
        neighbour = await made.join("neighbour", stage=1)  # holds the embedding, and not stage 0
        for round in (1, 2):
            await made.round(round, [*holders, away])
        made.cut(away)
        await away.contribute(3, 9)
        made.peers = [*holders, neighbour]
        await made.round(3, holders)
        back = await made.start("away")
        made.peers.append(back)
        made.introduce()

        async def gone_meanwhile(outer: OuterLoop) -> None:
            await take_later_states(outer)
            for peer in holders:
                await made.leave(peer)

        monkeypatch.setattr(catching_up, "take_later_states", gone_meanwhile)
        monkeypatch.setattr(BlobFetcher, "bring", none_of_stage_0)
        assert await catch_up(back.outer) is RunPhase.AWAITING_STATE
        assert back.outer.clock == 3
        assert not any(isinstance(event, CaughtUp) for event in back.said)

    play(tmp_path, scene)
