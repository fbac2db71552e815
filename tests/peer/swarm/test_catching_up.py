"""What a newcomer takes from others' word, where one of them may lie: only what enough of them say, and all of that."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from peer.network.gossip import Reconciler
from peer.network.intake import Intake
from peer.swarm.rounds.catch_up import catch_up
from protocol.codec.contribution import contribution_digest
from protocol.events.activity import Progress
from protocol.events.decisions import CaughtUp
from protocol.identity import EMBEDDING, Part
from protocol.outer.history import Claim
from protocol.outer.ledger import Entry
from protocol.trust.proofs import sign_contribution
from protocol.trust.records import PeerRecord
from tests.reference.loopback_peers import RUN, LoopbackPeer, Village, moved, village
from tests.reference.small_manifest import small_manifest

MANIFEST = small_manifest(outer={"grace": 2, "liars": 1, "rounds": 50, "chunk_side": 4, "top_k": 2, "values": "bf16"})
"""The window is 6 rounds wide, and one of those that follow a part may lie."""


def play(folder: Path, names: str, scene: Callable[[Village], Awaitable[None]]) -> None:
    async def run() -> None:
        async with village(MANIFEST, folder, *names) as made:
            await asyncio.wait_for(scene(made), 120)

    asyncio.run(run())


async def keep_secret(author: LoopbackPeer, round: int, seed: int) -> Entry:
    """A contribution to the embedding that its author accepts, and tells nobody of."""
    state, me = author.outer.followed.parts[EMBEDDING].state, author.outer.followed.me
    blob, _ = state.contribute(RUN, round, me, 1, moved(MANIFEST, seed)[EMBEDDING], author.outer.discovery.record.slot)
    entry = sign_contribution(author.signer, EMBEDDING, round, contribution_digest(blob), len(blob))
    author.intake.contribution_store.put(entry, blob)
    return entry


def took(peer: LoopbackPeer, author: LoopbackPeer, round: int) -> bool:
    return author.id in peer.intake.ledgers[EMBEDDING].accepted.get(round, {})


def waits(peer: LoopbackPeer) -> bool:
    """Whether it has said that it cannot catch up, and has not."""
    behind = any("cannot catch up with round" in event.doing for event in peer.said if isinstance(event, Progress))
    return behind and not any(isinstance(event, CaughtUp) for event in peer.said)


def test_a_newcomer_takes_no_contribution_by_one_peers_word(tmp_path: Path):
    async def scene(made: Village) -> None:
        *honest, liar = made.peers
        for round in range(1, 6):
            await made.round(round, honest)
        late = await keep_secret(liar, 1, 77)
        ledger = liar.intake.ledgers[EMBEDDING]
        assert ledger.take(late, vouched=True).name == "ACCEPTED"  # as if it had come in time
        newcomer = await made.join("n")
        await catch_up(newcomer.outer)
        assert [event for event in newcomer.said if isinstance(event, CaughtUp)] == [CaughtUp(5)]
        assert not took(newcomer, liar, 1)
        assert newcomer.digests() == honest[0].digests()

    play(tmp_path, "abx", scene)


def test_a_newcomer_takes_no_state_by_one_peers_word_while_others_have_not_spoken_of_it(tmp_path: Path):
    """The liar names a round that nobody else has closed yet: there none speaks against it."""

    async def scene(made: Village) -> None:
        *honest, liar = made.peers
        for round in range(1, 9):
            await made.round(round, made.peers)
        await liar.at(10)  # two more rounds closed than the others have: a state that is its own
        liar.outer.discovery.update_record(round=8)
        made.introduce()
        newcomer = await made.join("n")
        await catch_up(newcomer.outer)
        folded = newcomer.intake.ledgers[EMBEDDING].folded
        assert folded == honest[0].intake.ledgers[EMBEDDING].folded < liar.intake.ledgers[EMBEDDING].folded

    play(tmp_path, "abx", scene)


def test_a_state_that_counts_otherwise_than_its_holders_say_is_not_taken(tmp_path: Path):
    async def scene(made: Village) -> None:
        for round in range(1, 9):
            await made.round(round, made.peers)
        for peer in made.peers:
            for part, claims in peer.outer.reconciler.claims.items():
                peer.outer.reconciler.claims[part] = [
                    Claim(each.folded, each.digest, each.contributions + 1, True) for each in claims
                ]
        newcomer = await made.join("n")
        await catch_up(newcomer.outer)
        assert any("contributions, not" in event.doing for event in newcomer.said if isinstance(event, Progress))
        assert newcomer.intake.ledgers[EMBEDDING].folded == 0

    play(tmp_path, "ab", scene)


Answers = Callable[[PeerRecord], bool]


def whole_answers(monkeypatch: pytest.MonkeyPatch, newcomer: LoopbackPeer, answers: Answers) -> None:
    """From when the newcomer asks what counts, only these name all that they hold. The others go on living."""
    begin, compare = Intake.catch_up, Reconciler.compare
    asking: list[Part] = []

    def catch_up(self: Intake, part: Part, target: int, witnesses: int, least: int) -> None:
        asking.append(part)
        begin(self, part, target, witnesses, least)

    async def compare_with(self: Reconciler, peer: PeerRecord, whole: bool = False) -> bool:
        mine = self is newcomer.outer.reconciler
        return False if mine and asking and not answers(peer) else await compare(self, peer, whole)

    monkeypatch.setattr(Intake, "catch_up", catch_up)
    monkeypatch.setattr(Reconciler, "compare", compare_with)


@pytest.mark.parametrize("speaking", [0, 1, 2])
def test_a_newcomer_has_not_caught_up_before_enough_have_named_what_they_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, speaking: int
):
    async def scene(made: Village) -> None:
        for round in range(1, 4):
            await made.round(round, made.peers)
        newcomer = await made.join("n")
        heard = {peer.id for peer in made.peers[:speaking]}
        whole_answers(monkeypatch, newcomer, lambda peer: peer.peer_id in heard)
        await catch_up(newcomer.outer)
        assert waits(newcomer) == (speaking < 2)
        assert newcomer.outer.clock == (4 if speaking == 2 else 1)

    play(tmp_path, "abc", scene)


def test_who_spoke_of_what_a_peer_missed_before_has_not_spoken_of_what_it_misses_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async def scene(made: Village) -> None:
        for round in range(1, 4):
            await made.round(round, made.peers)
        asleep = await made.join("n")
        await catch_up(asleep.outer)
        assert asleep.outer.clock == 4
        asleep.said.clear()
        made.cut(asleep)
        awake = made.peers = [peer for peer in made.peers if peer is not asleep]
        for round in range(4, 7):
            await made.round(round, awake)
        made.peers = [*awake, asleep]
        made.introduce()
        whole_answers(monkeypatch, asleep, lambda peer: False)
        await catch_up(asleep.outer)
        assert waits(asleep)
        assert asleep.outer.clock == 4

    play(tmp_path, "abc", scene)


def test_a_newcomer_has_not_caught_up_while_what_enough_vouch_for_is_missing(tmp_path: Path):
    async def scene(made: Village) -> None:
        for round in range(1, 4):
            await made.round(round, made.peers)
        lost = made.peers[0].intake.ledgers[EMBEDDING].chosen(2)[made.peers[1].outer.followed.me]
        for peer in made.peers:  # all name it, and nobody has its bytes any more
            peer.intake.contribution_store.slices.pop(lost)
        newcomer = await made.join("n")
        await catch_up(newcomer.outer)
        assert waits(newcomer)
        assert newcomer.outer.clock == 1

    play(tmp_path, "abc", scene)
