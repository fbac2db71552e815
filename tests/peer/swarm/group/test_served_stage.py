"""How the stages of a group agree on a round, and what breaks a group: volunteers whose links are joined in memory, and
who hold what the test says."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from hashlib import sha256
from types import SimpleNamespace
from typing import Any

import pytest

from peer.network.bans import Bans
from peer.network.duplex import BreachError, Duplex
from peer.network.group import Link
from peer.swarm.group import agreement
from peer.swarm.group.agreement import Agreement, SilentError
from peer.swarm.group.compression import KController
from peer.swarm.group.seats import GroupSeats
from peer.swarm.group.served_stage import ServedStage
from peer.swarm.group.stragglers import StepPace, patience_with
from peer.telemetry.events import Event, GroupBroken
from peer.telemetry.group_decisions import Dismissed
from protocol.codec.seating import AnswerFrame as Answer
from protocol.codec.seating import OfferFrame, pack_answer, pack_start
from protocol.errors import LostMemberError
from protocol.identity import EMBEDDING, PeerId, ReplicaId
from protocol.net.tasks import Notifier
from protocol.patience import FIRST_STEP_SECONDS
from tests.reference.admitted import identity
from tests.reference.small_manifest import small_manifest

STAGES = 4
MANIFEST = small_manifest(
    model={"d": 16, "layers": STAGES, "heads": 2, "kv_heads": 2, "ffn": 24, "vocabulary": 300, "context": 16},
    replicas={"groups": 1, "stages": STAGES, "datacenters": 0, "compression": 4},
    inner={"steps": 8},
    outer={"rounds": 9},
)
HELD, OTHER = "ab" * 32, "cd" * 32
SECONDS = 20.0


def named(stage: int) -> PeerId:
    return identity(f"stage {stage}").peer_id


@dataclass
class Here:
    """A stage that trains nothing, and holds what it is told to."""

    index: int
    clock: int = 5
    round: int = 0
    steps: int = 0
    embedding_digest: str = HELD
    compression: int = 4
    goal: int = 8
    pace: StepPace = field(default_factory=StepPace)
    pipeline: Any = None
    waits_for: Link | None = None
    did: list[str] = field(default_factory=list)
    said: list[Event] = field(default_factory=list)
    published: list[str] = field(default_factory=list)
    started_with: str = ""
    """The group digest that all stages began with."""
    learns: str = ""
    """The token embedding that it has once it has compared with a neighbour."""

    def __post_init__(self) -> None:
        async def publish(replica: str) -> None:
            self.published.append(replica)

        async def settle_part(part: str) -> None:
            self.did.append(f"settles {part}")

        record = SimpleNamespace(
            peer_id=named(self.index), slot=2, stage=self.index, round=self.clock - 1, contributed=0
        )
        discovery = SimpleNamespace(
            record=record, peers=list, others=list, news=Notifier(), publish=publish, records={}
        )
        reconciler = SimpleNamespace(
            bans=Bans(self.said.append), discovery=discovery, contacts=SimpleNamespace(manifest=MANIFEST)
        )
        self.trainer = SimpleNamespace(index=self.index)
        self.outer: Any = SimpleNamespace(
            manifest=MANIFEST,
            discovery=discovery,
            reconciler=reconciler,
            emit=self.said.append,
            over=False,
            leaving=False,
            begun=True,
            abandoned_round=0,
            followed=SimpleNamespace(digests={EMBEDDING: self.embedding_digest}),
            settle_part=settle_part,
        )

    async def load(self, round: int, steps: int, compression: int, goal: int | None = None) -> None:
        if self.round != round:
            self.round, self.steps = round, 0
        self.steps = max(self.steps, steps)

    async def follow(self, interrupted: Callable[[], bool], wait: Any) -> None:
        while not interrupted():
            await self.outer.discovery.news.wait(0.05)

    async def finish_up_to(self, round: int, first: PeerId, is_lost: Callable[[], bool]) -> None:
        self.outer.clock = max(self.outer.clock, round + 1)

    async def compare_with(self, peer: PeerId) -> None:
        self.did.append(f"compares with {peer}")
        self.embedding_digest = self.learns or self.embedding_digest

    async def contribute(self) -> None:
        self.did.append("contributes")

    async def abandon(self, reason: str) -> None:
        self.pipeline = None

    def open_pipeline(self, attempt: Any, upstream: Link | None, downstream: Link | None) -> None:
        self.pipeline = attempt

    def group_digest(self, behind: str) -> str:
        return sha256(f"{self.index}{behind}".encode()).hexdigest()

    def start(self, step: int, group_digest: str) -> None:
        self.steps, self.started_with = step, group_digest


def joined(one: PeerId, other: PeerId) -> tuple[Link, Link]:
    """Both ends of a link, joined in memory: what `one` has of `other`, and the other way round."""
    ours: Link = Duplex(other, f"peer {other[-8:]}", 99)
    theirs: Link = Duplex(one, f"peer {one[-8:]}", 99)
    ours._outgoing, theirs._outgoing = theirs._incoming, ours._incoming  # type: ignore[assignment]
    return ours, theirs


class Group:
    """Seats that are taken, and the agreement of each stage."""

    def __init__(self, *heres: Here) -> None:
        self.heres = [*heres] or [Here(stage) for stage in range(STAGES)]
        self.seats: list[GroupSeats] = []
        for here in self.heres:
            here.outer.clock = here.clock
            service: Any = SimpleNamespace(welcome=None)
            seats = GroupSeats(here.outer.reconciler, service, None)  # type: ignore[arg-type]
            seats.replica = ReplicaId(named(0))
            seats.behind = tuple(named(stage) for stage in range(here.index + 1, STAGES))
            self.seats.append(seats)
        for one, other in zip(self.seats, self.seats[1:], strict=False):
            one.downstream, other.upstream = joined(one._me.peer_id, other._me.peer_id)
        first = KController((4,), 2, False, 4)
        self.agreements = [
            Agreement(here, seats, None if here.index else first)  # type: ignore[arg-type]
            for here, seats in zip(self.heres, self.seats, strict=True)
        ]

    async def reach(self) -> list[OfferFrame | None]:
        """What the stages agree on: the first one's word, and the others' until it has that."""
        tasks = [asyncio.create_task(each.reach()) for each in self.agreements]
        await asyncio.wait(tasks[:1])
        await asyncio.sleep(0)
        done, left = await asyncio.wait(tasks, timeout=0.2)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        return [task.result() if task in done else None for task in tasks]

    def volunteer(self, stage: int) -> ServedStage:
        return ServedStage(self.heres[stage], self.seats[stage])  # type: ignore[arg-type]


def play(scene: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(scene(), SECONDS)

    asyncio.run(bounded())


# A round is agreed on


def test_all_begin_the_round_that_the_first_stage_is_at_at_the_step_of_whoever_is_furthest():
    async def scene() -> None:
        group = Group(*(Here(stage, round=5, steps=steps) for stage, steps in enumerate((2, 3, 0, 2))))
        offers = await group.reach()
        (offer,) = {*offers}
        assert offer is not None
        assert (offer.round, offer.goal, offer.compression, offer.slot) == (5, 8, 4, 2)
        assert offer.members == tuple(map(named, range(STAGES)))
        assert [here.steps for here in group.heres] == [3] * STAGES
        assert all(here.pipeline is not None for here in group.heres)
        digest = ""
        for here in reversed(group.heres):
            digest = here.group_digest(digest)
        assert {here.started_with for here in group.heres} == {digest}

    play(scene)


def test_who_is_behind_finishes_the_rounds_before_and_begins_with_the_others():
    async def scene() -> None:
        group = Group(Here(0), Here(1, clock=4), Here(2, clock=2), Here(3))
        assert None not in await group.reach()
        assert [here.outer.clock for here in group.heres] == [5] * STAGES

    play(scene)


@pytest.mark.parametrize("ahead", range(1, STAGES))
def test_where_one_is_ahead_the_first_stage_ends_its_round_and_all_between_learn_from_the_one_behind_them(ahead: int):
    async def scene() -> None:
        group = Group(*(Here(stage, clock=6 if stage == ahead else 5) for stage in range(STAGES)))
        assert await group.reach() == [None] * STAGES
        assert group.agreements[0].is_over
        for here in group.heres[:ahead]:
            assert f"compares with {named(here.index + 1)}" in here.did
        assert not any("compares" in what for here in group.heres[ahead:] for what in here.did)
        assert all(here.pipeline is None for here in group.heres)

    play(scene)


def test_where_one_holds_another_token_embedding_it_asks_the_stage_before_it_and_they_agree():
    async def scene() -> None:
        group = Group(Here(0), Here(1), Here(2, embedding_digest=OTHER, learns=HELD), Here(3))
        assert None not in await group.reach()
        assert group.heres[2].did == ["contributes", f"compares with {named(1)}", f"settles {EMBEDDING}"]

    play(scene)


def test_where_one_keeps_another_token_embedding_the_first_stage_takes_what_it_lacks_and_loads_the_round_anew():
    async def scene() -> None:
        group = Group(Here(0), Here(1), Here(2, embedding_digest=OTHER), Here(3))
        assert await group.reach() == [None] * STAGES
        first = group.heres[0]
        assert first.did == [f"compares with {named(1)}", f"settles {EMBEDDING}"]
        assert first.round == 0
        assert not group.agreements[0].is_over

    play(scene)


def test_an_inner_loop_that_has_begun_ends_where_one_holds_another_state():
    async def scene() -> None:
        group = Group(Here(0, round=5, steps=3), Here(1), Here(2, embedding_digest=OTHER), Here(3))
        await group.reach()
        assert group.agreements[0].is_over

    play(scene)


def test_of_a_silent_stage_the_one_before_it_learns_first(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(agreement, "LONG_WAIT_SECONDS", 0.1)
    monkeypatch.setattr(agreement, "AGREEMENT_TIMEOUT_SECONDS", 0.3)
    monkeypatch.setattr(agreement, "FURTHER_STAGE_SECONDS", 0.3)

    async def scene() -> None:
        group, silent, over, blamed = Group(), 2, list[int](), list[PeerId]()

        async def reach(stage: int) -> None:
            try:
                await group.agreements[stage].reach()
            except SilentError as error:
                over.append(stage)
                blamed.append(error.peer)
                group.seats[stage].hang_up("silent")
            except LostMemberError:
                over.append(stage)

        heard = [asyncio.create_task(reach(stage)) for stage in range(silent)]
        await asyncio.wait(heard, return_when=asyncio.FIRST_COMPLETED)
        assert (over, blamed) == ([silent - 1], [named(silent)])
        for task in heard:
            task.cancel()

    play(scene)


@pytest.mark.parametrize("step", [2, 9], ids=["a step that is done", "a step beyond the goal"])
def test_a_start_that_cannot_be_is_a_breach(step: int):
    async def scene() -> None:
        group = Group(*(Here(stage, round=5, steps=3) for stage in range(STAGES)))
        task = asyncio.create_task(group.agreements[1].reach())
        downstream, behind = group.seats[0].downstream, group.seats[2].upstream
        assert downstream is not None
        assert behind is not None
        offer = await group.agreements[0]._offer()
        downstream.send(agreement.pack_offer(offer))
        await behind.receive()
        behind.send(pack_answer(Answer(5, 3, HELD)))
        await downstream.receive()
        downstream.send(pack_start(step, ""))
        with pytest.raises(BreachError, match="start at step") as error:
            await task
        assert error.value.peer == named(0)

    play(scene)


# A group that does not get on


def test_where_it_is_not_clear_who_lied_the_group_ends_and_nobody_is_avoided():
    async def scene() -> None:
        group = Group()
        await group.reach()
        here, volunteer = group.heres[1], group.volunteer(1)
        volunteer._part(LostMemberError("it is not clear who lied"))
        assert all(link.ended for link in group.seats[1].links)
        assert not any(isinstance(event, Dismissed) for event in here.said)
        assert not here.outer.reconciler.bans.offenders

    play(scene)


def test_who_holds_a_step_up_is_avoided_and_both_neighbours_learn_that_the_group_is_broken():
    async def scene() -> None:
        group = Group()
        (offer, *_) = await group.reach()
        volunteer = group.volunteer(1)
        volunteer.offer, volunteer.stage_round.waits_for = offer, group.seats[1].downstream  # type: ignore[misc]
        patience = patience_with(FIRST_STEP_SECONDS, 2)
        volunteer._watch(patience - 1)
        assert not group.heres[1].said
        volunteer._watch(patience)
        (told,) = [event for event in group.heres[1].said if isinstance(event, Dismissed)]
        assert told.peer == named(2)
        assert "held its group up" in told.reason
        assert group.heres[1].outer.reconciler.bans.objection(named(2))
        assert group.seats[1].upstream.ended  # type: ignore[union-attr]
        assert group.seats[1].downstream.ended  # type: ignore[union-attr]

    play(scene)


def test_nobody_is_to_blame_while_this_stage_itself_is_at_work():
    async def scene() -> None:
        group = Group()
        (offer, *_) = await group.reach()
        volunteer = group.volunteer(1)
        volunteer.offer = offer
        volunteer._watch(100 * FIRST_STEP_SECONDS)
        assert not group.heres[1].said
        assert group.seats[1].lost is None

    play(scene)


def test_what_breaks_a_group_is_told_once_it_has_formed_and_who_broke_the_protocol_is_avoided():
    async def scene() -> None:
        group = Group()
        volunteer, here = group.volunteer(1), group.heres[1]
        await volunteer._break_up(LostMemberError("it is gone"))
        assert not here.said  # it had not formed
        volunteer, here = group.volunteer(2), group.heres[2]
        volunteer.announced_members, here.round, here.steps = (named(1), named(2)), 5, 2
        await volunteer._break_up(BreachError(named(3), "it sent what cannot be"))
        assert next(type(event) for event in here.said) is Dismissed
        (broken,) = [event for event in here.said if isinstance(event, GroupBroken)]
        assert (broken.replica, broken.round, broken.step, broken.reason) == (named(0), 5, 2, "it sent what cannot be")
        assert here.outer.reconciler.bans.objection(named(3))
        assert (group.seats[2].replica, group.seats[2].upstream, volunteer.announced_members) == ("", None, ())

    play(scene)


def test_a_later_stage_is_free_at_once_and_a_first_one_that_has_steps_in_hand_is_waited_for():
    async def scene() -> None:
        group = Group()
        for stage, steps, published in ((0, 0, [""]), (0, 3, []), (2, 3, [""])):
            here, volunteer = group.heres[stage], group.volunteer(stage)
            here.steps, here.published = steps, []
            await volunteer._break_up(LostMemberError("it is gone"))
            assert here.published == published
            assert not here.did

    play(scene)


def test_a_later_stage_that_has_done_all_steps_contributes_when_its_group_breaks():
    async def scene() -> None:
        group = Group()
        group.heres[1].steps = 8
        await group.volunteer(1)._break_up(LostMemberError("it is gone"))
        assert group.heres[1].did == ["contributes"]

    play(scene)


def test_who_did_not_answer_in_time_is_remembered_and_others_are_not():
    async def scene() -> None:
        group = Group()
        await group.volunteer(2)._break_up(LostMemberError("it is gone"))
        assert not group.seats[2].silences.peers
        behind = group.seats[1].downstream
        assert behind is not None
        await group.volunteer(1)._break_up(SilentError(behind, 60.0))
        assert [*group.seats[1].silences.peers] == [named(2)]

    play(scene)
