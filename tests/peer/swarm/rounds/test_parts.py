"""What a peer keeps of the parts it follows, as much as can matter; and what has been read, which all agree on."""

import asyncio
from pathlib import Path

from peer.swarm.rounds.catch_up import agree, catch_up
from peer.telemetry.decisions import Resynchronised
from peer.telemetry.events import Contributed
from protocol.identity import EMBEDDING, PeerId
from protocol.outer.set_difference import KEPT_ROUNDS
from tests.reference.loopback_peers import LoopbackPeer, Village, village
from tests.reference.small_manifest import small_manifest

MANIFEST = small_manifest(
    model={"layers": 1},
    replicas={"groups": 0, "datacenters": 1, "stages": 1},
    outer={"grace": 2, "liars": 0, "rounds": 200, "chunk_side": 8, "top_k": 2},
)
WIDTH = 4


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
