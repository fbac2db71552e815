"""An auditor among peers over real sockets: whom it measures, when, and what it tells."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from peer.compute.audit import gain, held_out_loss
from peer.compute.evaluation import Evaluator
from peer.data.batches import held_out_batch
from peer.optim.outer import outer_term
from peer.swarm import auditing
from peer.swarm.auditing import Auditor, hold_trials, or_was_misled, overlaps
from peer.swarm.verdicts import HARMFUL_AUDITS
from protocol.codec.contribution import decode
from protocol.events.activity import Contributed
from protocol.events.decisions import Audited, Suspected, Tried
from protocol.events.event import Event
from protocol.identity import EMBEDDING, PeerId, ReplicaId
from protocol.layout import model_layout, part_layout
from protocol.trust.membership_card import Card, issue
from protocol.trust.records import read_record, sign_record
from tests.peer.swarm import test_roles
from tests.reference.boundary import orthonormal
from tests.reference.loopback_peers import RUN, LoopbackPeer, Village, village
from tests.reference.small_lab import text
from tests.reference.small_manifest import small_manifest

MANIFEST = small_manifest(outer={"grace": 2, "liars": 0, "rounds": 50, "chunk_side": 4, "top_k": 2})


def auditor() -> Auditor:
    held_out = torch.from_numpy(held_out_batch(text(1), MANIFEST))
    return Auditor(Evaluator(MANIFEST, orthonormal(MANIFEST.model.d, 0), held_out, torch.device("cpu")))


def audited(peer: LoopbackPeer) -> list[Audited]:
    return [event for event in peer.said if isinstance(event, Audited)]


def play(folder: Path, names: str, scene: Callable[[Village], Awaitable[None]]) -> None:
    async def run() -> None:
        async with village(MANIFEST, folder, *names) as made:
            await asyncio.wait_for(scene(made), 180)

    asyncio.run(run())


def test_every_author_is_measured_once_a_round_by_its_own_contributions(tmp_path: Path):
    async def scene(made: Village) -> None:
        a, b, _ = made.peers
        mine = auditor()
        await made.round(1, made.peers)
        await mine.audit(a.outer)
        (heard,) = audited(a)
        assert heard.round == 1
        assert heard.gains.keys() == {peer.id for peer in made.peers}
        contribution_store, ledgers = a.intake.contribution_store, a.intake.ledgers
        sets = {
            part: [decode(contribution_store.read(sha256), MANIFEST) for sha256 in reversed(ledger.chosen(1).values())]
            for part, ledger in ledgers.items()
        }
        loss = held_out_loss(mine.evaluator, a.outer.followed.grids)
        assert heard.gains[b.id] == gain(mine.evaluator, a.outer.followed.grids, sets, PeerId(b.id), loss)
        await mine.audit(a.outer)
        assert audited(a) == [heard]  # nothing new, nothing told

    play(tmp_path, "abc", scene)


def test_a_contribution_that_comes_late_is_audited_when_it_is_there(tmp_path: Path):
    async def scene(made: Village) -> None:
        a, b, c = made.peers
        mine = auditor()
        made.cut(c)
        await a.contribute(1, 1)
        await b.contribute(1, 2)
        await c.contribute(1, 3)
        await made.calm()
        await a.at(1)
        await mine.audit(a.outer)
        made.introduce()
        await made.compare_all()
        await a.at(2)
        await mine.audit(a.outer)
        assert [(each.round, each.gains.keys()) for each in audited(a)] == [(1, {a.id, b.id}), (1, {c.id})]

    play(tmp_path, "abc", scene)


def test_each_stage_of_a_group_is_another_author(tmp_path: Path):
    async def scene(made: Village) -> None:
        a, *_ = made.peers
        mine = auditor()
        first, second = await made.join("first", stage=0), await made.join("second", stage=1)
        await made.round(1, made.peers)
        fresh = mine.unseen(a.outer.followed)
        assert fresh[1, PeerId(a.id)] == sorted(model_layout(MANIFEST))
        assert fresh[1, PeerId(first.id)] == [EMBEDDING, "stage-0"]
        assert fresh[1, PeerId(second.id)] == ["stage-1"]

    play(tmp_path, "a", scene)


def test_of_many_a_few_are_drawn_and_first_who_did_harm_lately(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    async def scene(made: Village) -> None:
        a, b, *_ = made.peers
        mine = auditor()
        mine.verdicts.add_gains(1, {PeerId(b.id): -0.5})
        await made.round(1, made.peers)
        await mine.audit(a.outer)
        (heard,) = audited(a)
        assert len(heard.gains) == 2
        assert b.id in heard.gains

    monkeypatch.setattr(auditing, "AUDITS_A_ROUND", 2)
    play(tmp_path, "abcd", scene)


def test_scores_go_into_the_record_and_others_can_read_it(tmp_path: Path):
    async def scene(made: Village) -> None:
        a, b = made.peers
        mine = auditor()
        await made.round(1, made.peers)
        await mine.audit(a.outer)
        record = a.outer.discovery.record
        assert read_record(sign_record(a.signer, record), a.id, made.authority).scores == audited(a)[0].gains
        assert record.scores.keys() == {a.id, b.id}

    play(tmp_path, "ab", scene)


def test_who_does_harm_again_and_again_is_told_with_the_round_where_it_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async def scene(made: Village) -> None:
        a, b, c = made.peers
        mine = auditor()
        measured = {a.id: 0.1, b.id: -0.5, c.id: 0.2}
        monkeypatch.setattr(auditing, "gain", lambda evaluator, grids, sets, author, loss: measured[author])
        for round in range(1, HARMFUL_AUDITS + 2):
            await made.round(round, made.peers)
            await mine.audit(a.outer)
        told = [event for event in a.said if isinstance(event, Suspected)]
        assert [(each.peer, each.since) for each in told] == [(b.id, 1)]
        assert "false gradients" not in told[0].reason  # a datacenter computes all of its gradients itself

    play(tmp_path, "abc", scene)


def test_the_suspicion_of_a_volunteer_names_who_sends_it_gradients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    async def scene(made: Village) -> None:
        a, b, c = made.peers
        mine = auditor()
        first, second = await made.join("first", stage=0), await made.join("second", stage=1)
        for peer in first, second:
            peer.outer.discovery.update_record(replica=ReplicaId(first.id))
        made.introduce()
        measured = {a.id: 0.1, b.id: 0.1, c.id: 0.1, first.id: -0.5, second.id: -0.6}
        monkeypatch.setattr(auditing, "gain", lambda evaluator, grids, sets, author, loss: measured[author])
        for round in range(1, HARMFUL_AUDITS + 2):
            await made.round(round, made.peers)
            await mine.audit(a.outer)
        told = {event.peer: event.reason for event in a.said if isinstance(event, Suspected)}
        assert told.keys() == {first.id, second.id}
        assert f"false gradients of peer {second.id[-8:]}, the stage behind it" in told[first.id]
        assert "false gradients" not in told[second.id]  # nobody sends the last stage any

    play(tmp_path, "abc", scene)


def test_nobody_misleads_who_is_in_no_group():
    record = test_roles.peer
    alone = record("a"), record("b", stage=1), record("c", stage=1, replica="d")
    assert [or_was_misled(alone, each.peer_id) for each in alone] == ["", "", ""]
    assert "peer b," in or_was_misled((record("a", replica="a"), record("b", stage=1, replica="a")), PeerId("a"))


def test_who_sends_what_another_sends_overlaps_with_it_wholly(tmp_path: Path):
    async def scene(made: Village) -> None:
        a, b, c = made.peers
        mine = auditor()
        for peer, seed in ((a, 1), (b, 7), (c, 7)):  # what they send follows from the seed
            await peer.contribute(1, seed)
        made.introduce()
        await made.compare_all()
        await a.at(1)
        followed = a.outer.followed
        sets = {part: await followed.read_all(each.settled[1]) for part, each in followed.parts.items()}
        found = overlaps(sets, PeerId(b.id), mine.evaluator)
        assert found[min(b.id, c.id), max(b.id, c.id)] == 1
        assert found[min(a.id, b.id), max(a.id, b.id)] < 0.2

    play(tmp_path, "abc", scene)


def test_who_leaves_stops_auditing(tmp_path: Path):
    async def scene(made: Village) -> None:
        (a,) = made.peers
        mine = auditor()
        await made.round(1, made.peers)
        a.outer.asked_to_leave.set()
        await mine.audit(a.outer)
        assert audited(a) == []

    play(tmp_path, "a", scene)


# A newcomer on trial: nothing of it counts until it may


@dataclass
class Court:
    """An auditor that holds trials, and nothing else."""

    peer: LoopbackPeer

    def __post_init__(self) -> None:
        self.peer.intake.trials = {}
        self.evaluator = auditor().evaluator

    async def hold(self) -> list[Event]:
        self.peer.said.clear()
        await hold_trials(self.evaluator, self.peer.outer)
        return list(self.peer.said)


def hold_court(folder: Path, scene: Callable[[Village, Court, LoopbackPeer], Awaitable[None]]) -> None:
    """Two datacenters, an observer that audits, and a datacenter on trial."""

    async def run() -> None:
        async with village(MANIFEST, folder, "a", "b") as made:
            court = Court(await made.join("auditor", observes=True))
            newcomer = await made.join("newcomer", on_trial=True)
            await asyncio.wait_for(scene(made, court, newcomer), 180)

    asyncio.run(run())


def authors(made: Village) -> list[LoopbackPeer]:
    return [peer for peer in made.peers if peer.outer.discovery.record.role == "datacenter"]


def test_what_it_contributes_counts_nowhere_not_even_with_itself(tmp_path: Path):
    async def scene(made: Village, court: Court, newcomer: LoopbackPeer) -> None:
        await made.round(1, authors(made))
        for peer in made.peers:
            for each in peer.outer.followed.parts.values():
                assert each.ledger.chosen(1).keys() == {peer.id for peer in authors(made) if peer is not newcomer}
            assert peer.digests() == newcomer.digests()
            assert all(isinstance(event, Contributed) for event in peer.said)  # nobody minds

    hold_court(tmp_path, scene)


def test_an_auditor_measures_what_it_would_have_gained(tmp_path: Path):
    async def scene(made: Village, court: Court, newcomer: LoopbackPeer) -> None:
        await made.round(1, authors(made))
        (event,) = await court.hold()
        assert isinstance(event, Tried)
        assert (event.round, event.peer) == (1, newcomer.id)

        def loss(with_it: bool) -> float:
            """With a set of three of which one sent its values, or zeros."""
            grids = {}
            for part, each in court.peer.outer.followed.parts.items():
                counted = [
                    decode(court.peer.intake.contribution_store.read(s), MANIFEST)
                    for s in each.ledger.chosen(1).values()
                ]
                own = decode(
                    newcomer.intake.contribution_store.read(newcomer.outer.followed.parts[part].own[1]), MANIFEST
                )
                if not with_it:
                    for sparse in own.tensors.values():
                        sparse.values[:] = 0
                layout = part_layout(MANIFEST, part)
                was, would_be = outer_term(counted, layout, MANIFEST), outer_term([*counted, own], layout, MANIFEST)
                grids[part] = {
                    name: (grid + was[name] - would_be[name]).to(torch.int32) for name, grid in each.state.grid.items()
                }
            return held_out_loss(court.evaluator, grids)

        assert event.gain == pytest.approx(loss(with_it=False) - loss(with_it=True), abs=1e-9)
        assert await court.hold() == []  # once

    hold_court(tmp_path, scene)


def test_it_is_measured_when_all_its_parts_are_there_and_not_before(tmp_path: Path):
    async def scene(made: Village, court: Court, newcomer: LoopbackPeer) -> None:
        await made.round(1, authors(made))
        trials = court.peer.intake.trials
        assert trials is not None
        key = next(iter(trials))
        withheld = trials.pop(key)
        assert await court.hold() == []
        trials[key] = withheld
        assert len(await court.hold()) == 1

    hold_court(tmp_path, scene)


def test_a_copy_does_not_stand_it(tmp_path: Path):
    async def scene(made: Village, court: Court, newcomer: LoopbackPeer) -> None:
        a, b, *_ = made.peers
        for peer, seed in ((a, 1), (b, 2), (newcomer, 1)):
            await peer.contribute(1, seed)
        await made.compare_all()
        for peer in made.peers:
            await peer.at(1)
        (event,) = await court.hold()
        assert isinstance(event, Tried)
        assert event.objection == "100% of its places are another's"

    hold_court(tmp_path, scene)


def test_with_its_next_card_it_counts_and_what_did_not_is_in_its_error_feedback_again(tmp_path: Path):
    async def scene(made: Village, court: Court, newcomer: LoopbackPeer) -> None:
        await made.round(1, authors(made))
        slot = newcomer.outer.discovery.record.slot
        newcomer.signer.card = issue(made.operator, RUN, Card(PeerId(newcomer.id), "datacenter", 0, slot))
        newcomer.outer.discovery.update_record(on_trial=False)
        made.introduce()
        for round in range(2, 3 + court.peer.outer.followed.parts["embedding"].ledger.window.width):
            await made.round(round, authors(made))
        for peer in made.peers:
            counted = peer.outer.followed.parts["embedding"].ledger
            assert counted.history.has(PeerId(newcomer.id), 2)
            assert not counted.history.has(PeerId(newcomer.id), 1)
            assert peer.digests() == newcomer.digests()
        assert all(1 in each.authored.returned for each in newcomer.outer.followed.parts.values())

    hold_court(tmp_path, scene)


def test_who_audits_nothing_fetches_nothing_of_it(tmp_path: Path):
    async def scene(made: Village, court: Court, newcomer: LoopbackPeer) -> None:
        court.peer.intake.trials = None
        await made.round(1, authors(made))
        sent = newcomer.outer.followed.parts["embedding"].own[1]
        assert court.peer.intake.contribution_store.lookup(sent) is None
        assert await court.hold() == []

    hold_court(tmp_path, scene)
