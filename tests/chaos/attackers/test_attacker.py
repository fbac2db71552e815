"""Attackers break the rules that they are to break, and no others: or what they show would be something else."""

import asyncio
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from peer.network.gossip import Reconciler
from peer.optim.bounds import check_magnitudes, largest_value
from protocol.codec.contribution import Contribution, decode
from protocol.errors import FormatError
from protocol.identity import EMBEDDING, Part
from protocol.layout import EMBEDDING_TENSOR, part_layout
from protocol.trust.records import PeerRecord
from tests.chaos.attackers import attacker
from tests.chaos.faults import CONTRIBUTING, AttackKind
from tests.reference.loopback_peers import LoopbackPeer, Village, village
from tests.reference.small_manifest import small_manifest

MANIFEST = small_manifest()


def test_each_kind_has_its_attack_and_those_of_a_datacenter_are_some_of_them():
    assert attacker.ATTACKS.keys() == set(get_args(AttackKind))
    assert set(CONTRIBUTING) <= attacker.ATTACKS.keys()


def poisoned(
    publish: attacker.Publish, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[str, list[Contribution]]:
    """The attacker, and what it gives away in its name instead of its contribution to the embedding in round 1."""
    given: list[bytes] = []

    async def give(reconciler: Reconciler, part: Part, round: int, blob: bytes, peers: list[PeerRecord]) -> None:
        given.append(blob)

    async def honest_publish(reconciler: Reconciler, part: Part, round: int, blob: bytes) -> None:
        given.append(blob)

    monkeypatch.setattr(attacker, "give", give)
    monkeypatch.setattr(attacker, "honest_publish", honest_publish)

    async def scene(made: Village) -> str:
        honest, hostile = made.peers
        await honest.contribute(1, 1)
        reconciler = hostile.outer.reconciler
        await reconciler.discovery.news.until(lambda: honest.id in hostile.intake.ledgers[EMBEDDING].chosen(1))
        usual = largest_value(MANIFEST, EMBEDDING_TENSOR, part_layout(MANIFEST, EMBEDDING)[EMBEDDING_TENSOR], 1) // 100
        blob = attacker.changed(blob_of(honest), reconciler, lambda _, values: np.sign(values) * usual)
        await publish(reconciler, EMBEDDING, 1, blob)
        return hostile.id

    async def run() -> str:
        async with village(MANIFEST, folder, "h", "a") as made:
            return await asyncio.wait_for(scene(made), 30)

    return asyncio.run(run()), [decode(blob, MANIFEST) for blob in given]


def blob_of(peer: LoopbackPeer) -> bytes:
    """Its contribution to the embedding in round 1."""
    (entry,) = peer.intake.ledgers[EMBEDDING].entries(1)
    return peer.intake.contribution_store.read(entry.sha256)


@pytest.mark.parametrize("publish", [attacker.anothers, attacker.against_all])
def test_what_follows_the_rules_is_a_valid_contribution_in_the_attackers_name(
    publish: attacker.Publish, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    author, (given,) = poisoned(publish, tmp_path, monkeypatch)
    assert given.name.author == author
    check_magnitudes(given, MANIFEST)


def test_a_thousandfold_is_more_than_the_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    _, (given,) = poisoned(attacker.a_thousandfold, tmp_path, monkeypatch)
    with pytest.raises(FormatError, match="more than learning rate and error feedback allow"):
        check_magnitudes(given, MANIFEST)


def test_an_equivocator_gives_two_contributions_of_one_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    _, (one, other) = poisoned(attacker.two_of_one_name, tmp_path, monkeypatch)
    assert (one.name.part, one.name.round) == (other.name.part, other.name.round)
    values = [{name: each.values.tolist() for name, each in made.tensors.items()} for made in (one, other)]
    assert values[0] != values[1]
