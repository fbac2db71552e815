"""A newcomer on trial among peers over real sockets: nothing of it counts until it may, and an auditor measures it."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from peer.compute.audit import held_out_loss
from peer.optim.outer import outer_term
from peer.swarm.audit.trial_audits import hold_trials
from peer.telemetry.decisions import Tried
from peer.telemetry.events import Contributed, Event
from protocol.codec.contribution import decode
from protocol.identity import PeerId
from protocol.layout import part_layout
from protocol.trust.membership_card import Card, issue
from tests.peer.swarm.audit.test_auditing import MANIFEST, auditor
from tests.reference.loopback_peers import RUN, LoopbackPeer, Village, village


@dataclass
class Court:
    """An auditor that holds trials, and nothing else."""

    peer: LoopbackPeer

    def __post_init__(self) -> None:
        self.peer.intake.trials = {}
        made, self.place = auditor(self.peer)
        self.evaluator = made.evaluator

    async def hold(self) -> list[Event]:
        self.place.said.clear()
        await hold_trials(self.place, self.evaluator, self.peer.outer)  # type: ignore[arg-type]
        return list(self.place.said)


def play(folder: Path, scene: Callable[[Village, Court, LoopbackPeer], Awaitable[None]]) -> None:
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

    play(tmp_path, scene)


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

    play(tmp_path, scene)


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

    play(tmp_path, scene)


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

    play(tmp_path, scene)


def test_with_its_next_card_it_counts_and_what_did_not_is_in_its_error_feedback_again(tmp_path: Path):
    async def scene(made: Village, court: Court, newcomer: LoopbackPeer) -> None:
        await made.round(1, authors(made))
        slot = newcomer.outer.discovery.record.slot
        newcomer.signer.card = issue(made.operator, RUN, Card(PeerId(newcomer.id), "datacenter", 0, slot))
        newcomer.outer.discovery.tell(on_trial=False)
        made.introduce()
        for round in range(2, 3 + court.peer.outer.followed.parts["embedding"].ledger.window.width):
            await made.round(round, authors(made))
        for peer in made.peers:
            counted = peer.outer.followed.parts["embedding"].ledger
            assert counted.history.has(PeerId(newcomer.id), 2)
            assert not counted.history.has(PeerId(newcomer.id), 1)
            assert peer.digests() == newcomer.digests()
        assert all(1 in each.authored.returned for each in newcomer.outer.followed.parts.values())

    play(tmp_path, scene)


def test_who_audits_nothing_fetches_nothing_of_it(tmp_path: Path):
    async def scene(made: Village, court: Court, newcomer: LoopbackPeer) -> None:
        court.peer.intake.trials = None
        await made.round(1, authors(made))
        sent = newcomer.outer.followed.parts["embedding"].own[1]
        assert court.peer.intake.contribution_store.lookup(sent) is None
        assert await court.hold() == []

    play(tmp_path, scene)
