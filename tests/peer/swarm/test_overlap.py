"""`overlap = true`: no round waits for its own contributions; they come into θ one boundary later, and none is left."""

import asyncio
from pathlib import Path

import pytest
import torch

from peer.optim.outer import outer_term
from peer.swarm.rounds.round_end import finish_round
from protocol.identity import EMBEDDING
from protocol.layout import part_layout
from tests.peer.swarm.rounds.test_outer_round import agreed, play
from tests.reference.loopback_peers import Village
from tests.reference.small_manifest import small_manifest

OVERLAP = small_manifest(outer={"overlap": True, "liars": 0, "rounds": 3, "chunk_side": 4, "top_k": 2})


async def finish_together(made: Village, round: int) -> list[dict[str, int]]:
    """Everybody finishes a round at the same time, waiting for the others as in a swarm."""
    made.introduce()
    finished = await asyncio.gather(*(finish_round(peer.outer, round) for peer in made.peers))
    made.introduce()
    return finished


def test_with_overlap_nobody_waits_for_the_round_that_ends_but_for_the_one_before(tmp_path: Path):
    async def scene(made: Village) -> None:
        a, *others = made.peers
        genesis = a.digests()
        await a.contribute(1, 1)
        assert set((await finish_round(a.outer, 1)).values()) == {0}
        assert a.digests() == genesis
        await a.contribute(2, 2)
        finishing = asyncio.create_task(finish_round(a.outer, 2))
        for peer in others:
            await asyncio.sleep(0)
            assert not finishing.done()
            await peer.contribute(1, 3)
            made.introduce()
        assert set((await finishing).values()) == {3}
        assert a.digests() != genesis

    play(tmp_path, "abc", scene, OVERLAP)


def test_with_overlap_the_last_round_brings_in_all_that_is_left(tmp_path: Path):
    async def scene(made: Village) -> None:
        expected = {
            name: tensor.to(torch.int64) for name, tensor in made.peers[0].outer.followed.grids[EMBEDDING].items()
        }
        for round, applied in ((1, 0), (2, 3), (3, 6)):
            for number, peer in enumerate(made.peers):
                await peer.contribute(round, 10 * round + number)
            counts = await finish_together(made, round)
            assert all(set(each.values()) == {applied} for each in counts)
            assert agreed(made)
        followed = made.peers[0].outer.followed
        for round in (1, 2, 3):
            sent = await followed.read_all(followed.parts[EMBEDDING].ledger.chosen(round))
            term = outer_term(sent, part_layout(OVERLAP, EMBEDDING), OVERLAP)
            expected = {name: tensor - term[name] for name, tensor in expected.items()}
        for peer in made.peers:
            assert peer.outer.over
            assert all(
                torch.equal(tensor, expected[name]) for name, tensor in peer.outer.followed.grids[EMBEDDING].items()
            )

    play(tmp_path, "abc", scene, OVERLAP)


@pytest.mark.parametrize("finished", [1, 2, 3])
def test_with_overlap_a_peer_that_starts_again_holds_what_it_held(tmp_path: Path, finished: int):
    async def scene(made: Village) -> None:
        for round in range(1, finished + 1):
            for number, peer in enumerate(made.peers):
                await peer.contribute(round, 10 * round + number)
            await made.compare_all()
            if round < finished:
                await finish_together(made, round)
        a = made.peers[0]
        again = await made.start("a")  # the power fails between contribution and boundary
        assert again.digests() == a.digests()
        assert again.outer.clock == finished
        assert again.outer.contributed
        await finish_together(made, finished)
        assert await finish_round(again.outer, finished) == dict.fromkeys(again.intake.ledgers, (0, 3, 6)[finished - 1])
        assert again.digests() == a.digests()
        before, after = await a.outer.followed.ahead(finished + 1), await again.outer.followed.ahead(finished + 1)
        assert before.keys() == after.keys() == (again.intake.ledgers.keys() if finished < 3 else set())
        assert all(torch.equal(before[part][name], after[part][name]) for part in before for name in before[part])

    play(tmp_path, "abc", scene, OVERLAP)


def test_with_overlap_a_replica_starts_as_if_its_own_contribution_were_all(tmp_path: Path):
    async def scene(made: Village) -> None:
        for round in (1, 2):
            for number, peer in enumerate(made.peers):
                await peer.contribute(round, 10 * round + number)
            await finish_together(made, round)
        for peer in made.peers:
            followed = peer.outer.followed
            each = followed.parts[EMBEDDING]
            [own] = await followed.read_all({peer.outer.discovery.record.peer_id: each.own[2]})
            term = outer_term([own], part_layout(OVERLAP, EMBEDDING), OVERLAP)
            ahead = (await followed.ahead(3))[EMBEDDING]
            assert all(torch.equal(ahead[name].long(), each.state.grid[name] - term[name]) for name in ahead)
        assert agreed(made)

    play(tmp_path, "abc", scene, OVERLAP)


def test_with_overlap_nobody_waits_for_a_round_that_those_ahead_of_it_have_left_out(tmp_path: Path):
    async def scene(made: Village) -> None:
        a, *others = made.peers
        for round in (1, 2):
            await a.contribute(round, round)
            if round == 1:
                for peer in others:
                    await peer.contribute(1, 7)
            await made.compare_all()
            await finish_round(a.outer, round)
        for peer in others:  # as after a power cut: they go on from where `a` is
            await peer.at(2)
        for number, peer in enumerate(made.peers):
            await peer.contribute(3, 30 + number)
        finished = await asyncio.wait_for(finish_together(made, 3), 20)
        assert {count for counts in finished for count in counts.values()} == {4}  # one of round 2, three of round 3
        assert agreed(made)

    play(tmp_path, "abc", scene, OVERLAP)


def test_with_overlap_nobody_waits_for_a_round_of_nobody(tmp_path: Path):
    async def scene(made: Village) -> None:
        for peer in made.peers:
            await peer.contribute(1, 7)
        await made.compare_all()
        for peer in made.peers:
            await peer.at(2)
        made.introduce()
        for number, peer in enumerate(made.peers):
            await peer.contribute(3, 30 + number)
        await asyncio.wait_for(finish_together(made, 3), 20)
        assert agreed(made)

    play(tmp_path, "abc", scene, OVERLAP)
