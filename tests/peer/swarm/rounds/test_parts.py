"""What a peer keeps of the parts it follows, as much as can matter; and what has been read, which all agree on."""

import asyncio
from pathlib import Path

import torch

from peer.optim.outer import outer_term
from peer.store.disk import CHECKPOINTS_KEPT
from peer.store.tensor_file import TensorFile
from peer.swarm.rounds.catch_up import agree, catch_up
from protocol.codec.contribution import Contribution
from protocol.events.activity import Contributed
from protocol.events.decisions import Resynchronised
from protocol.identity import EMBEDDING, Part, PeerId
from protocol.outer.set_difference import KEPT_ROUNDS
from tests.reference.loopback_peers import LoopbackPeer, Village, genesis, moved, village
from tests.reference.small_manifest import small_manifest

MANIFEST = small_manifest(
    model={"layers": 1},
    replicas={"groups": 0, "datacenters": 1, "stages": 1},
    outer={"grace": 2, "liars": 0, "rounds": 200, "chunk_side": 8, "top_k": 2},
)
WIDTH = 4
CLIPPED = small_manifest(
    model={"layers": 1},
    replicas={"groups": 0, "datacenters": 3, "stages": 1},
    outer={"grace": 3, "liars": 0, "rounds": 200, "chunk_side": 8, "top_k": 2, "clip": "median"},
)
CLIPPED_WIDTH = 5


def test_after_many_rounds_a_peer_holds_no_more_than_after_some(tmp_path: Path):
    async def scene() -> None:
        async with village(MANIFEST, tmp_path, "a") as made:
            (peer,) = made.peers
            held = {}
            for round in range(1, KEPT_ROUNDS + 3 * WIDTH):
                await made.round(round, made.peers)
                held[round] = len(list((tmp_path / "a/contributions" / EMBEDDING).iterdir()))
            followed = peer.outer.followed.parts[EMBEDDING]
            assert held[KEPT_ROUNDS + 2 * WIDTH] == held[KEPT_ROUNDS + 3 * WIDTH - 1] <= KEPT_ROUNDS + 1
            assert len(followed.own) == held[round]
            assert followed.authored.sent.keys() <= followed.own.keys()
            assert len(peer.intake.contribution_store.slices) == held[round] * len(peer.intake.ledgers)
            again = await made.start("a")  # and it starts again from that
            assert again.outer.followed.parts[EMBEDDING].own == followed.own
            await again.at(round)
            assert again.digests() == peer.digests()

    asyncio.run(scene())


READERS = small_manifest(
    model={"layers": 1},
    replicas={"groups": 0, "datacenters": 2, "stages": 1},
    inner={"steps": 3},
    outer={"grace": 2, "liars": 0, "rounds": 40, "chunk_side": 8, "top_k": 2},
)


async def several_rounds(made: Village, rounds: range, **steps: int) -> None:
    """Rounds in which these peers, by name, contribute after so many steps."""
    for round in rounds:
        for name, count in steps.items():
            await named(made, name).contribute(round, 100 * round + made.slots[name], count)
        await made.round(round, [])


def named(made: Village, name: str) -> LoopbackPeer:
    return next(peer for peer in made.peers if peer.outer.discovery.record.slot == made.slots[name])


def test_the_state_on_disk_is_the_genesis_less_the_terms_of_the_closed_rounds(tmp_path: Path):
    """Also where one comes after its round was settled without it. The reference: dense terms, from the beginning."""

    async def scene() -> None:
        async with village(CLIPPED, tmp_path, "a", "b", "c") as made:
            a = made.peers[0]
            followed, manifest = a.outer.followed, a.manifest
            sets: dict[tuple[Part, int], list[Contribution]] = {}
            for round in range(1, 9):
                await made.round(round, made.peers[:2] if round == 4 else made.peers)
                if round == 4:
                    await made.peers[2].contribute(4, 99)  # late
                    await made.compare_all()
                    await a.at(4)
                for part, each in followed.parts.items():
                    for at, chosen in each.settled.items():
                        sets[part, at] = await followed.read_all(chosen)
            assert {len(sets[part, 4]) for part in followed.parts} == {3}
            for part, each in followed.parts.items():
                assert each.ledger.folded == 8 - CLIPPED_WIDTH
                assert each.settled.keys() == {*range(9 - CLIPPED_WIDTH, 9)}
                (header, found) = next(followed.snapshots.on_disk(part))
                assert header.round == each.ledger.folded
                for name, start in genesis(manifest, part).items():
                    layout = {name: tuple(start.shape)}
                    terms = [outer_term(sets[part, at], layout, manifest)[name] for at in range(1, 9)]
                    assert torch.equal(torch.from_numpy(found[name]), start - sum(terms[: header.round]))
                    assert torch.equal(each.state.grid[name], start - sum(terms))

    asyncio.run(scene())


def test_adamws_state_is_kept_on_disk_as_it_was_at_the_rounds_end(tmp_path: Path):
    """Whatever the trainer's own tensors become meanwhile, and through checkpoints that no training goes before."""

    async def scene() -> None:
        async with village(MANIFEST, tmp_path, "a") as made:
            (peer,) = made.peers
            moments = {"0.0.exp_avg": torch.rand(5), "0.0.step": torch.tensor(3.0)}
            was = {name: tensor.clone() for name, tensor in moments.items()}
            delta = {part: moved(MANIFEST, 1)[part] for part in peer.outer.followed.parts}
            await peer.outer.contribute(1, 1, delta, moments)
            for tensor in moments.values():
                tensor.zero_()
            for _ in range(CHECKPOINTS_KEPT + 1):
                await peer.outer.save({})
            for kept in (peer.outer.optimizer, (await made.start("a")).outer.optimizer):
                assert isinstance(kept, TensorFile)
                assert kept.keys() == was.keys()
                assert all(torch.equal(kept[name], tensor) for name, tensor in was.items())

    asyncio.run(scene())


def read_for_good(made: Village) -> list[int]:
    """The chunks behind all contributions that count in closed rounds, as their authors said when they made them."""
    history = made.peers[0].intake.ledgers[EMBEDDING].history
    return [
        chunk
        for peer in made.peers
        for event in peer.said
        if isinstance(event, Contributed) and history.has(PeerId(peer.id), event.round)
        for first, end in event.chunks
        for chunk in range(first, end)
    ]


def test_what_counts_is_all_that_was_read_and_nothing_was_read_twice(tmp_path: Path):
    """One is short, one is away, one comes later; who comes, and who starts again, plans as the others do."""

    async def scene() -> None:
        async with village(READERS, tmp_path, "a", "b") as made:
            await several_rounds(made, range(1, 3), a=3, b=2)
            await several_rounds(made, range(3, 5), a=3)
            await several_rounds(made, range(5, 9), a=3, b=3)
            newcomer = await made.join("c")
            await catch_up(newcomer.outer)
            await several_rounds(made, range(9, 30), a=3, b=3, c=1)
            reading = made.peers[0].outer.followed.reading
            assert reading.folded == 29 - WIDTH
            assert [peer.outer.followed.reading for peer in made.peers] == [reading] * 3
            out = [*reading.free, *(span for plan in reading.plans for span in plan.spans)]
            unread = {chunk for first, end in out for chunk in range(first, end)}
            assert sorted(read_for_good(made)) == sorted({*range(reading.fresh)} - unread)
            gaps = sorted({*range(max(read_for_good(made)))} - {*read_for_good(made)})
            assert gaps[0] > 2 * 3 * 8  # all that a and b did not read in the first rounds has been read since
            again = await made.start("a")
            await again.at(29)
            assert again.outer.followed.reading == reading

    asyncio.run(scene())


def test_who_takes_the_others_state_over_takes_what_they_have_read_with_it(tmp_path: Path):
    async def scene() -> None:
        async with village(READERS, tmp_path, "a", "b", "c", "d") as made:
            everybody = made.peers
            *most, cut_off = everybody
            await several_rounds(made, range(1, 3), a=3, b=3, c=3, d=3)
            made.cut(cut_off)
            for made.peers, names in ([cut_off], {"d": 3}), (most, {"a": 3, "b": 3, "c": 2}):
                await several_rounds(made, range(3, 12), **names)
            assert cut_off.outer.followed.reading != most[0].outer.followed.reading
            made.peers = everybody
            made.introduce()
            await made.compare_all()
            await agree(cut_off.outer)
            assert any(isinstance(event, Resynchronised) and event.part == EMBEDDING for event in cut_off.said)
            await several_rounds(made, range(12, 14), a=3, b=3, c=3, d=3)
            assert len({peer.outer.followed.reading for peer in made.peers}) == 1

    asyncio.run(scene())
