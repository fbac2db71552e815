"""A volunteer that leaves hands over what it alone has: exactly once, whatever breaks, and only what is valid."""

import asyncio
import random
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load, save

from peer.compute.trainer import StageTrainer
from peer.network import handover_service as network
from peer.network.handover_service import offer_handover
from peer.optim.bounds import largest_value
from peer.optim.grid import to_units
from peer.optim.handover_state import HandoverState, pack_state
from peer.swarm.group import handover as swarm
from peer.swarm.group.handover import Handover
from protocol.codec.chunks import chunk_grid
from protocol.codec.contribution import decode
from protocol.errors import HetpeerError, RefusedError, UnreachableError
from protocol.events.activity import HandedOver, Inherited, Progress
from protocol.identity import EMBEDDING, Part, PeerId, stage_part
from protocol.layout import part_layout
from protocol.outer.ledger import Revocation
from protocol.trust.handovers import HandoverOffer
from protocol.trust.proofs import sign_revocation
from protocol.trust.records import PeerRecord
from tests.reference.loopback_peers import LoopbackPeer, Village, moved, village
from tests.reference.small_manifest import small_manifest

MANIFEST = small_manifest(outer={"grace": 2, "liars": 0, "rounds": 50, "chunk_side": 4, "top_k": 2, "beta": 1.0})
PARTS = [EMBEDDING, stage_part(0)]
Sums = dict[tuple[Part, str], torch.Tensor]


@dataclass
class Volunteer:
    """A peer of stage 0, its trainer, and its loop while it stands by."""

    name: str
    peer: LoopbackPeer
    handover: Handover

    @property
    def id(self) -> PeerId:
        return PeerId(self.peer.id)

    def error_feedback(self) -> Sums:
        parts = self.peer.outer.followed.parts
        return {
            (part, name): t.to(torch.int64) for part in PARTS for name, t in parts[part].state.error_feedback.items()
        }

    async def stand_by(self) -> None:
        while True:
            await self.handover.accept_handover()
            await self.peer.outer.discovery.news.until(lambda: self.handover.has_offer)


async def volunteer(made: Village, name: str, steps: int = 0) -> Volunteer:
    """With an optimizer that has taken so many steps."""
    peer = await made.join(name, 0)
    return Volunteer(name, peer, opened(peer, steps))


def opened(peer: LoopbackPeer, steps: int = 0) -> Handover:
    basis = torch.linalg.qr(torch.randn(16, 16, generator=torch.Generator().manual_seed(1)))[0]
    trainer = StageTrainer(MANIFEST, 0, "group", basis, torch.device("cpu"))
    trainer.load_optimizer(peer.outer.optimizer)
    chance = torch.Generator().manual_seed(len(peer.id) + steps)
    for step in range(steps):
        for parameter in trainer.parameters:
            parameter.grad = 1e-3 * torch.randn(parameter.shape, generator=chance)  # as if it had been clipped
        trainer.update(1.0, step)
    handover = Handover(peer.outer, peer.handover, trainer)
    handover.open()
    return handover


async def start_again(made: Village, was: Volunteer) -> Volunteer:
    """Another process with the folder that this one had."""
    made.peers.remove(was.peer)
    peer = await made.start(was.name, 0)
    made.peers.append(peer)
    made.introduce()
    return Volunteer(was.name, peer, opened(peer))


@asynccontextmanager
async def standing_by(*successors: Volunteer) -> AsyncIterator[None]:
    loops = [asyncio.create_task(successor.stand_by()) for successor in successors]
    yield
    for loop in loops:
        loop.cancel()
        with suppress(asyncio.CancelledError):
            await loop


def applied(volunteers: list[Volunteer]) -> Sums:
    """The sum of all contributions of these."""
    sums = zeros()
    for each in volunteers:
        for part in PARTS:
            for sha256 in each.peer.outer.followed.parts[part].own.values():
                contribution = decode(each.peer.intake.contribution_store.read(sha256), MANIFEST)
                for name, sparse in contribution.tensors.items():
                    places = chunk_grid(part_layout(MANIFEST, part)[name], 4, 2).positions(sparse.offsets)
                    sums[part, name].view(-1)[torch.from_numpy(places)] += torch.from_numpy(sparse.values).long()
    return sums


def zeros() -> Sums:
    return {
        (part, name): torch.zeros(shape, dtype=torch.int64)
        for part in PARTS
        for name, shape in part_layout(MANIFEST, part).items()
    }


def plus(*all_sums: Sums) -> Sums:
    return {key: sum((sums[key] for sums in all_sums), torch.zeros_like(all_sums[0][key])) for key in all_sums[0]}


def computed(*seeds: int) -> Sums:
    """The sum of these pseudo-gradients, in units."""
    return plus(*({key: to_units(moved(MANIFEST, seed)[key[0]][key[1]]) for key in zeros()} for seed in seeds))


def set_aside(each: Volunteer) -> Sums:
    """What it has set aside for a successor that has not answered."""
    if not each.handover.handovers.blob:
        return zeros()
    tensors = load(each.handover.handovers.blob)
    return {(part, name): tensors[f"error_feedback.{part}.{name}"].long() for part, name in zeros()}


def equal(one: Sums, other: Sums) -> bool:
    return all(torch.equal(one[key], other[key]) for key in one)


def copied(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in tensors.items()}


def play(folder: Path, scene: Callable[[Village], Awaitable[None]]) -> None:
    async def run() -> None:
        async with village(MANIFEST, folder) as made:
            await asyncio.wait_for(scene(made), 60)

    asyncio.run(run())


def test_what_counts_and_what_is_left_is_what_was_computed_before_and_after(tmp_path: Path):
    async def scene(made: Village) -> None:
        a, b, successor = [await volunteer(made, name, 3) for name in ("a", "b")] + [await volunteer(made, "successor")]
        for round in (1, 2):
            await a.peer.contribute(round, 10 + round)
            await b.peer.contribute(round, 20 + round)
            await made.compare_all()
            for peer in made.peers:
                await peer.at(round)
        before = a.error_feedback()
        assert before[EMBEDDING, "model.embed_tokens.weight"].any()
        b.peer.outer.discovery.update_record(replica=b.id)  # trains: no successor
        made.introduce()
        async with standing_by(successor):
            await a.handover.hand_over()
        assert HandedOver(successor.id) in a.peer.said
        assert Inherited(a.id, True) in successor.peer.said
        assert equal(a.error_feedback(), zeros())
        assert equal(successor.error_feedback(), before)
        assert successor.handover.trainer.optimizer_tensors().keys() == a.handover.trainer.optimizer_tensors().keys()
        await successor.peer.contribute(3, 33)
        everybody = [a, b, successor]
        total = computed(11, 12, 21, 22, 33)
        assert equal(plus(applied(everybody), *(each.error_feedback() for each in everybody)), total)
        a, successor = await start_again(made, a), await start_again(made, successor)  # and all of it is on disk
        everybody = [a, b, successor]
        assert equal(plus(applied(everybody), *(each.error_feedback() for each in everybody)), total)
        assert successor.handover.handovers.taken == {a.id: 1}

    play(tmp_path, scene)


@pytest.mark.parametrize("seed", range(4))
def test_it_counts_once_wherever_giver_and_heir_are_killed_or_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
):
    """Each attempt breaks before the offer, after it, or not; between attempts either may be started again."""
    chance = random.Random(seed)

    async def breaking(*arguments: object) -> str:
        kind = chance.choice(["before", "after", "never"])
        if kind == "before":
            raise UnreachableError("cut off")
        reason = await offer_handover(*arguments)  # type: ignore[arg-type]
        if kind == "after":
            raise UnreachableError("cut off")
        return reason

    monkeypatch.setattr(swarm, "offer_handover", breaking)

    async def scene(made: Village) -> None:
        giver, successor = await volunteer(made, "giver", 2), await volunteer(made, "successor")
        seeds = [1]
        await giver.peer.contribute(1, 1)
        for number in range(2, 7):
            async with standing_by(successor):
                await giver.handover.hand_over()
            everybody = [giver, successor]
            held = [each.error_feedback() for each in everybody]
            once = Counter({giver.id: giver.handover.handovers.given})
            if not once - Counter(successor.handover.handovers.taken):
                held.append(zeros())  # taken, whether the giver knows or not
            else:
                held.append(set_aside(giver))
            assert equal(plus(applied(everybody), *held), computed(*seeds))
            if chance.random() < 0.7:
                giver = await start_again(made, giver)
            if chance.random() < 0.7:
                successor = await start_again(made, successor)
            giver.handover.open()
            await giver.handover.settle() if not chance.random() < 0.5 else None
            author = chance.choice([giver, successor])
            await author.peer.contribute(number, number)
            seeds.append(number)

    play(tmp_path, scene)


def test_an_heir_that_declines_leaves_it_to_the_next_and_to_nobody(tmp_path: Path):
    async def scene(made: Village) -> None:
        a, b, c = [await volunteer(made, name, 1) for name in "abc"]
        giver, *successors = sorted((a, b, c), key=lambda each: each.id)
        await giver.peer.contribute(1, 1)
        before = giver.error_feedback()
        for successor in successors:
            successor.handover.close()
        await giver.handover.hand_over()
        assert equal(giver.error_feedback(), before)
        assert any(str(giver.peer.outer.folder) in e.doing for e in giver.peer.said if isinstance(e, Progress))
        successors[1].handover.open()
        async with standing_by(*successors):
            await giver.handover.hand_over()
        assert HandedOver(successors[1].id) in giver.peer.said
        assert equal(successors[1].error_feedback(), before)
        assert equal(successors[0].error_feedback(), zeros())

    play(tmp_path, scene)


def test_an_heir_that_never_comes_to_it_declines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(network, "HANDOVER_TIMEOUT_SECONDS", 0.1)

    async def scene(made: Village) -> None:
        giver, successor = await volunteer(made, "giver"), await volunteer(made, "successor")
        await giver.peer.contribute(1, 1)
        before = giver.error_feedback()
        await giver.handover.hand_over()
        assert any("busy" in event.doing for event in giver.peer.said if isinstance(event, Progress))
        await successor.handover.accept_handover()
        assert equal(successor.error_feedback(), zeros())
        assert equal(giver.error_feedback(), before)

    play(tmp_path, scene)


def test_without_an_heir_it_stays_in_the_folder(tmp_path: Path):
    async def scene(made: Village) -> None:
        giver = await volunteer(made, "giver", 2)
        await made.join("datacenter")
        await made.join("another stage", 1)
        await giver.peer.contribute(1, 1)
        before = giver.error_feedback()
        await giver.handover.hand_over()
        assert any("nobody to hand" in event.doing for event in giver.peer.said if isinstance(event, Progress))
        again = await start_again(made, giver)
        assert equal(again.error_feedback(), before)

    play(tmp_path, scene)


def test_who_has_nothing_asks_nobody(tmp_path: Path):
    async def scene(made: Village) -> None:
        giver, _ = await volunteer(made, "giver"), await volunteer(made, "successor")
        await giver.handover.hand_over()
        assert giver.peer.said == []

    play(tmp_path, scene)


@pytest.mark.parametrize(
    ("steps", "takes", "optimizer"), [(0, True, "adamw"), (19, True, "muon"), (20, False, "adamw"), (20, False, "muon")]
)
def test_an_optimizers_state_is_taken_only_by_who_has_none_that_is_warmed_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int, takes: bool, optimizer: str
):
    inner = MANIFEST.inner.model_copy(update={"optimizer": optimizer})
    monkeypatch.setattr(sys.modules[__name__], "MANIFEST", MANIFEST.model_copy(update={"inner": inner}))

    async def scene(made: Village) -> None:
        giver, successor = await volunteer(made, "giver", 30), await volunteer(made, "successor", steps)
        own = copied(successor.handover.trainer.optimizer_tensors())
        async with standing_by(successor):
            await giver.handover.hand_over()
        now, theirs = (each.handover.trainer.optimizer_tensors() for each in (successor, giver))
        expected = theirs if takes else own
        assert all(torch.equal(now[key], tensor) for key, tensor in expected.items())
        assert Inherited(giver.id, takes) in successor.peer.said

    play(tmp_path, scene)


def changed(handed_over: HandoverState, key: str, tensor: torch.Tensor | None) -> bytes:
    tensors = load(pack_state(handed_over))
    tensors[key] = tensor if tensor is not None else tensors[key]
    if tensor is None:
        del tensors[key]
    return bytes(save(tensors))


NORM = "error_feedback.stage-0.model.layers.0.input_layernorm.weight"
MEAN = "optimizer.0.0.exp_avg"
HOSTILE = {
    "no safetensors": (lambda handed_over: b"x" * 500, "no safetensors file"),
    "empty": (lambda handed_over: b"", "no safetensors file"),
    "a tensor missing": (lambda handed_over: changed(handed_over, NORM, None), "without the error feedback"),
    "another shape": (
        lambda handed_over: changed(handed_over, NORM, torch.zeros(17, dtype=torch.int32)),
        "without the error",
    ),
    "another type": (lambda handed_over: changed(handed_over, NORM, torch.zeros(16)), "without the error feedback"),
    "larger than honest": (
        lambda handed_over: changed(handed_over, NORM, torch.full((16,), 2**30, dtype=torch.int32)),
        "larger than honest work",
    ),
    "the smallest integer": (
        lambda handed_over: changed(handed_over, NORM, torch.full((16,), -(2**31), dtype=torch.int32)),
        "larger than honest work",
    ),
    "a tensor of nothing": (
        lambda handed_over: changed(handed_over, "error_feedback.stage-9.w", torch.zeros(1)),
        "no part",
    ),
    "moments that are no numbers": (
        lambda handed_over: changed(
            handed_over, MEAN, torch.full_like(load(pack_state(handed_over))[MEAN], float("nan"))
        ),
        "no gradients make",
    ),
    "moments that make leaps": (
        lambda handed_over: changed(handed_over, MEAN, torch.full_like(load(pack_state(handed_over))[MEAN], 1e6)),
        "no gradients make",
    ),
    "moments of other parameters": (lambda handed_over: changed(handed_over, MEAN, None), "other parameters"),
    "too large": (lambda handed_over: b"x" * 2**20, "more than a stage can have"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_what_is_not_valid_is_declined_and_changes_nothing(tmp_path: Path, kind: str):
    make, why = HOSTILE[kind]

    async def scene(made: Village) -> None:
        giver, successor = await volunteer(made, "giver", 2), await volunteer(made, "successor", 1)
        before = copied(successor.handover.trainer.optimizer_tensors())
        blob = make(giver.handover._state_to_hand_over())
        giver.handover.handovers.set_aside(successor.id, blob)
        async with standing_by(successor):
            reason = await offer_handover(offer_of(giver, successor), record_of(successor), giver.peer.outer.reconciler)
        assert why in reason
        assert equal(successor.error_feedback(), zeros())
        assert successor.handover.handovers.taken == {}
        now = successor.handover.trainer.optimizer_tensors()
        assert all(torch.equal(before[key], tensor) for key, tensor in now.items())

    play(tmp_path, scene)


def test_what_is_handed_over_is_bounded_by_the_round_that_its_heir_is_in(tmp_path: Path):
    """What honest peers have kept back grows with the rounds; in the first it would have been refused."""
    tensor = NORM.removeprefix("error_feedback.stage-0.")
    first, now = (largest_value(MANIFEST, tensor, (16,), round) // 2 for round in (1, 6))

    async def scene(made: Village) -> None:
        giver, successor = await volunteer(made, "giver", 2), await volunteer(made, "successor")
        for round in range(1, 6):
            await giver.peer.contribute(round, round)
            await made.compare_all()
            for peer in made.peers:
                await peer.at(round)
        made.introduce()
        assert successor.peer.outer.clock == 6
        for value, taken in ((now + 1, False), (now, True)):
            blob = changed(giver.handover._state_to_hand_over(), NORM, torch.full((16,), value, dtype=torch.int32))
            giver.handover.handovers.set_aside(successor.id, blob)
            async with standing_by(successor):
                reason = await offer_handover(
                    offer_of(giver, successor), record_of(successor), giver.peer.outer.reconciler
                )
            assert (reason == "") == taken
        assert now > first
        assert successor.error_feedback()[stage_part(0), tensor].tolist() == [now] * 16

    play(tmp_path, scene)


def offer_of(giver: Volunteer, successor: Volunteer) -> HandoverOffer:
    handovers = giver.handover.handovers
    return HandoverOffer(giver.id, successor.id, handovers.given, 0, handovers.sha256, len(handovers.blob))


def record_of(successor: Volunteer) -> PeerRecord:
    return successor.peer.outer.discovery.record


def test_who_does_not_know_yet_or_is_another_gives_no_answer_that_counts(tmp_path: Path):
    async def scene(made: Village) -> None:
        giver, successor, other = [await volunteer(made, name, 1) for name in ("giver", "successor", "other")]
        await giver.peer.contribute(1, 1)
        giver.handover.handovers.set_aside(successor.id, pack_state(giver.handover._state_to_hand_over()))
        offer, reconciler = offer_of(giver, successor), giver.peer.outer.reconciler
        with pytest.raises(RefusedError, match="this is not peer"):
            await offer_handover(offer, record_of(other), reconciler)
        successor.peer.handover.handovers = None
        with pytest.raises(RefusedError, match="does not know yet"):
            await offer_handover(offer, record_of(successor), reconciler)

    play(tmp_path, scene)


def test_a_second_call_waits_for_the_end_of_the_first(tmp_path: Path):
    async def scene(made: Village) -> None:
        giver, successor = await volunteer(made, "giver", 1), await volunteer(made, "successor")
        await giver.peer.contribute(1, 1)
        before = giver.error_feedback()
        await giver.handover._set_aside(successor.peer.outer.discovery.record)
        offer, reconciler = offer_of(giver, successor), giver.peer.outer.reconciler
        first = asyncio.create_task(offer_handover(offer, record_of(successor), reconciler))
        await successor.peer.outer.discovery.news.until(lambda: successor.handover.has_offer)
        first.cancel()  # the giver hangs up
        with suppress(asyncio.CancelledError, HetpeerError):
            await first
        second = asyncio.create_task(offer_handover(offer, record_of(successor), reconciler))
        async with standing_by(successor):
            assert await second == ""
            assert await offer_handover(offer, record_of(successor), reconciler) == ""
        assert equal(successor.error_feedback(), before)

    play(tmp_path, scene)


def test_nobody_takes_over_from_whom_the_operator_has_taken_out(tmp_path: Path):
    async def scene(made: Village) -> None:
        giver, successor = await volunteer(made, "giver", 1), await volunteer(made, "successor")
        await giver.peer.contribute(1, 1)
        before = giver.error_feedback()
        successor.peer.intake.revoke(sign_revocation(made.operator, made.authority, Revocation(giver.id, 1, 1)))
        async with standing_by(successor):
            await giver.handover.hand_over()
        assert equal(successor.error_feedback(), zeros())
        assert equal(giver.error_feedback(), before)

    play(tmp_path, scene)
