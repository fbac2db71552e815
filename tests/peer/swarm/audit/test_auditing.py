"""An auditor among peers over real sockets: whom it measures, when, and what it tells."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from peer.compute.audit import gain, held_out_loss
from peer.compute.evaluation import Evaluator
from peer.data.batches import held_out_batch
from peer.swarm.audit import auditing
from peer.swarm.audit.auditing import Auditor, overlaps
from peer.swarm.audit.verdicts import HARMFUL_AUDITS
from peer.telemetry.decisions import Audited, Suspected
from peer.telemetry.events import Event
from peer.torch_thread import TorchThread
from protocol.codec.contribution import decode
from protocol.identity import EMBEDDING, PeerId
from protocol.layout import model_layout
from protocol.trust.records import read_record, sign
from tests.reference.boundary import orthonormal
from tests.reference.loopback_peers import LoopbackPeer, Village, village
from tests.reference.small_lab import text
from tests.reference.small_manifest import small_manifest

MANIFEST = small_manifest(outer={"grace": 2, "liars": 0, "rounds": 50, "chunk_side": 4, "top_k": 2})


@dataclass
class Place:
    """Of a node, what an auditor needs."""

    peer: LoopbackPeer
    leaving: bool = False
    said: list[Event] = field(default_factory=list)

    @property
    def torch_thread(self) -> TorchThread:
        return self.peer.outer.followed.torch_thread

    def emit(self, event: Event) -> None:
        self.said.append(event)

    async def publish(self, **changes: Any) -> None:
        await self.peer.outer.discovery.publish(**changes)

    def audited(self) -> list[Audited]:
        return [event for event in self.said if isinstance(event, Audited)]


def auditor(peer: LoopbackPeer) -> tuple[Auditor, Place]:
    held_out = torch.from_numpy(held_out_batch(text(1), MANIFEST))
    evaluator = Evaluator(MANIFEST, orthonormal(MANIFEST.model.d, 0), held_out, torch.device("cpu"))
    place = Place(peer)
    return Auditor(place, evaluator), place  # type: ignore[arg-type]


def play(folder: Path, names: str, scene: Callable[[Village], Awaitable[None]]) -> None:
    async def run() -> None:
        async with village(MANIFEST, folder, *names) as made:
            await asyncio.wait_for(scene(made), 180)

    asyncio.run(run())


def test_every_author_is_measured_once_a_round_by_its_own_contributions(tmp_path: Path):
    async def scene(made: Village) -> None:
        a, b, _ = made.peers
        mine, place = auditor(a)
        await made.round(1, made.peers)
        await mine.audit(a.outer)
        (heard,) = place.audited()
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
        assert place.audited() == [heard]  # nothing new, nothing told

    play(tmp_path, "abc", scene)


def test_a_contribution_that_comes_late_is_audited_when_it_is_there(tmp_path: Path):
    async def scene(made: Village) -> None:
        a, b, c = made.peers
        mine, place = auditor(a)
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
        assert [(each.round, each.gains.keys()) for each in place.audited()] == [(1, {a.id, b.id}), (1, {c.id})]

    play(tmp_path, "abc", scene)


def test_each_stage_of_a_group_is_another_author(tmp_path: Path):
    async def scene(made: Village) -> None:
        a, *_ = made.peers
        mine, _ = auditor(a)
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
        mine, place = auditor(a)
        mine.verdicts.hear(1, {PeerId(b.id): -0.5})
        await made.round(1, made.peers)
        await mine.audit(a.outer)
        (heard,) = place.audited()
        assert len(heard.gains) == 2
        assert b.id in heard.gains

    monkeypatch.setattr(auditing, "AUDITS_A_ROUND", 2)
    play(tmp_path, "abcd", scene)


def test_scores_go_into_the_record_and_others_can_read_it(tmp_path: Path):
    async def scene(made: Village) -> None:
        a, b = made.peers
        mine, place = auditor(a)
        await made.round(1, made.peers)
        await mine.audit(a.outer)
        record = a.outer.discovery.record
        assert read_record(sign(a.signer, record), a.id, made.authority).scores == place.audited()[0].gains
        assert record.scores.keys() == {a.id, b.id}

    play(tmp_path, "ab", scene)


def test_who_does_harm_again_and_again_is_told_with_the_round_where_it_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async def scene(made: Village) -> None:
        a, b, c = made.peers
        mine, place = auditor(a)
        measured = {a.id: 0.1, b.id: -0.5, c.id: 0.2}
        monkeypatch.setattr(auditing, "gain", lambda evaluator, grids, sets, author, loss: measured[author])
        for round in range(1, HARMFUL_AUDITS + 2):
            await made.round(round, made.peers)
            await mine.audit(a.outer)
        told = [event for event in place.said if isinstance(event, Suspected)]
        assert [(each.peer, each.since) for each in told] == [(b.id, 1)]

    play(tmp_path, "abc", scene)


def test_who_sends_what_another_sends_overlaps_with_it_wholly(tmp_path: Path):
    async def scene(made: Village) -> None:
        a, b, c = made.peers
        mine, _ = auditor(a)
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
        mine, place = auditor(a)
        await made.round(1, made.peers)
        place.leaving = True
        await mine.audit(a.outer)
        assert place.said == []

    play(tmp_path, "a", scene)
