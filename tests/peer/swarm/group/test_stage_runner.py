"""How the stages of a group agree on a round, and what breaks a group: volunteers whose links are joined in memory, and
who hold what the test says."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from types import SimpleNamespace
from typing import Any

import pytest

from peer.network.bans import Bans
from peer.network.duplex import BreachError, Duplex
from peer.network.group import Link
from peer.swarm.group import agreement
from peer.swarm.group.agreement import SilentError
from peer.swarm.group.compression import KController
from peer.swarm.group.first_stage import FirstStage
from peer.swarm.group.later_stage import LaterStage
from peer.swarm.group.seats import GroupSeats
from peer.swarm.group.session import GroupAction, GroupEvent, GroupSession, GroupState
from peer.swarm.group.stage_runner import StageRunner, StateEnd
from peer.swarm.group.stragglers import StepPace, patience_with
from protocol.codec.seating import AnswerFrame as Answer
from protocol.codec.seating import pack_answer, pack_offer, pack_start
from protocol.errors import LostMemberError
from protocol.events.activity import GroupBroken, GroupFormed
from protocol.events.event import Event
from protocol.events.group_decisions import Dismissed
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
TRAINING = [GroupState.TRAINING] * STAGES
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
    loop: Any = None
    """The inner loop that is open."""
    in_step: bool = False
    slow: Callable[[Any], None] = lambda overdue: None
    """What happens while an inner step lasts: it is given the function that is told for how long."""
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
            record_arrivals=lambda: None,
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

    def close_loop(self) -> None:
        self.loop = None

    async def abandon(self, reason: str) -> None:
        self.loop = None

    def open_loop(self, attempt: Any, upstream: Link | None, downstream: Link | None) -> Any:
        pipeline = SimpleNamespace(upstream=upstream, downstream=downstream)
        self.loop = SimpleNamespace(pipeline=pipeline, received=None, attempt=attempt)
        return self.loop

    async def step(self, loop: Any, source: Any, overdue: Any) -> Any:
        self.slow(overdue)
        raise LostMemberError("the step has ended")

    def forget(self) -> None:
        self.round = 0

    def group_digest(self, behind: str) -> str:
        return sha256(f"{self.index}{behind}".encode()).hexdigest()

    def start(self, loop: Any, step: int, group_digest: str) -> None:
        self.steps, self.started_with = step, group_digest


def joined(one: PeerId, other: PeerId) -> tuple[Link, Link]:
    """Both ends of a link, joined in memory: what `one` has of `other`, and the other way round."""
    ours: Link = Duplex(other, f"peer {other[-8:]}", 99)
    theirs: Link = Duplex(one, f"peer {one[-8:]}", 99)
    ours._outgoing, theirs._outgoing = theirs._incoming, ours._incoming  # type: ignore[assignment]
    return ours, theirs


class Unchecked:
    """Spot checks that never check."""

    @contextmanager
    def checking(self, *_: Any) -> Any:
        yield SimpleNamespace(step_taken=lambda steps: None)


class Group:
    """Seats that are taken, and a runner for each stage."""

    def __init__(self, *heres: Here) -> None:
        self.heres = [*heres] or [Here(stage) for stage in range(STAGES)]
        self.seats: list[GroupSeats] = []
        for here in self.heres:
            here.outer.clock = here.clock
            service: Any = SimpleNamespace(answer_calls=lambda welcome: None)
            seats = GroupSeats(here.outer.reconciler, service, None)  # type: ignore[arg-type]
            seats.replica = ReplicaId(named(0))
            seats.behind = tuple(named(stage) for stage in range(here.index + 1, STAGES))
            self.seats.append(seats)
        for one, other in zip(self.seats, self.seats[1:], strict=False):
            one.downstream, other.upstream = joined(one._me.peer_id, other._me.peer_id)
        self.runners = [self._runner(here, seats) for here, seats in zip(self.heres, self.seats, strict=True)]

    def _runner(self, here: Here, seats: GroupSeats) -> StageRunner:
        parts: Any = here, seats, Unchecked()
        runner = LaterStage(*parts) if here.index else FirstStage(*parts, None, KController((4,), 2, False, 4))
        runner.session = GroupSession(GroupState.WHOLE)
        return runner

    async def agree(self) -> list[GroupState]:
        """Have the stages agree on a round. Returns the states that they are in then: the first one's, and the others'
        a moment later."""
        tasks = [asyncio.create_task(agree(runner)) for runner in self.runners]
        await asyncio.wait(tasks[:1])
        await asyncio.sleep(0)
        _, left = await asyncio.wait(tasks, timeout=0.2)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        return [runner.session.state for runner in self.runners]

    async def lose(self, stage: int, error: LostMemberError | BreachError, state: GroupState) -> None:
        """Let the group of a stage break while it is in this state."""
        runner = self.runners[stage]
        runner.session = GroupSession(state)
        await runner._acts[runner.session.take(GroupEvent.LOST)](error)
        assert runner.session.state is GroupState.FREE


async def agree(runner: StageRunner) -> StateEnd:
    """Run a session from WHOLE until an inner loop has started, or it is known that none does. Returns the event that
    ended it."""
    outcome = await runner.advance(None)
    while runner.session.state in (GroupState.LOADING, GroupState.ASKING, GroupState.COMPARING, GroupState.READY):
        outcome = await runner.advance(outcome.brought)
    return outcome


def play(scene: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(scene(), SECONDS)

    asyncio.run(bounded())


# A round is agreed on


def test_all_begin_the_round_that_the_first_stage_is_at_at_the_step_of_whoever_is_furthest():
    async def scene() -> None:
        group = Group(*(Here(stage, round=5, steps=steps) for stage, steps in enumerate((2, 3, 0, 2))))
        assert await group.agree() == TRAINING
        for here, runner in zip(group.heres, group.runners, strict=True):
            (formed,) = [event for event in here.said if isinstance(event, GroupFormed)]
            assert (formed.replica, formed.slot) == (named(0), 2)
            assert runner.agreed_members == tuple(formed.members) == tuple(map(named, range(STAGES)))
        assert [here.steps for here in group.heres] == [3] * STAGES
        assert all(here.loop is not None for here in group.heres)
        digest = ""
        for here in reversed(group.heres):
            digest = here.group_digest(digest)
        assert {here.started_with for here in group.heres} == {digest}

    play(scene)


def test_who_is_behind_finishes_the_rounds_before_and_begins_with_the_others():
    async def scene() -> None:
        group = Group(Here(0), Here(1, clock=4), Here(2, clock=2), Here(3))
        assert await group.agree() == TRAINING
        assert [here.outer.clock for here in group.heres] == [5] * STAGES

    play(scene)


@pytest.mark.parametrize("ahead", range(1, STAGES))
def test_where_one_is_ahead_the_first_stage_ends_its_round_and_all_between_learn_from_the_one_behind_them(ahead: int):
    async def scene() -> None:
        group = Group(*(Here(stage, clock=6 if stage == ahead else 5) for stage in range(STAGES)))
        assert await group.agree() == [GroupState.ENDING, *[GroupState.WHOLE] * (STAGES - 1)]
        for here in group.heres[:ahead]:
            assert f"compares with {named(here.index + 1)}" in here.did
        assert not any("compares" in what for here in group.heres[ahead:] for what in here.did)
        assert all(here.loop is None for here in group.heres)

    play(scene)


def test_where_one_holds_another_token_embedding_it_asks_the_stage_before_it_and_they_agree():
    async def scene() -> None:
        group = Group(Here(0), Here(1), Here(2, embedding_digest=OTHER, learns=HELD), Here(3))
        assert await group.agree() == TRAINING
        assert group.heres[2].did == ["contributes", f"compares with {named(1)}", f"settles {EMBEDDING}"]

    play(scene)


def test_where_one_keeps_another_token_embedding_the_first_stage_takes_what_it_lacks_and_loads_the_round_anew():
    async def scene() -> None:
        group = Group(Here(0), Here(1), Here(2, embedding_digest=OTHER), Here(3))
        assert await group.agree() == [GroupState.WHOLE] * STAGES
        first = group.heres[0]
        assert first.did == [f"compares with {named(1)}", f"settles {EMBEDDING}"]
        assert first.round == 0

    play(scene)


def test_an_inner_loop_that_has_begun_ends_where_one_holds_another_state():
    async def scene() -> None:
        group = Group(Here(0, round=5, steps=3), Here(1), Here(2, embedding_digest=OTHER), Here(3))
        assert (await group.agree())[0] is GroupState.ENDING

    play(scene)


def test_of_a_silent_stage_the_one_before_it_learns_first(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(agreement, "LONG_WAIT_SECONDS", 0.1)
    monkeypatch.setattr(agreement, "AGREEMENT_TIMEOUT_SECONDS", 0.3)
    monkeypatch.setattr(agreement, "FURTHER_STAGE_SECONDS", 0.3)

    async def scene() -> None:
        group, silent = Group(), 2
        agreeing = [asyncio.create_task(agree(runner)) for runner in group.runners[:silent]]
        over, _ = await asyncio.wait(agreeing, return_when=asyncio.FIRST_COMPLETED)
        assert over == {agreeing[silent - 1]}
        outcome = agreeing[silent - 1].result()
        assert outcome.event is GroupEvent.LOST
        assert isinstance(outcome.brought, SilentError)
        assert outcome.brought.peer == named(silent)
        assert [*group.seats[silent - 1].silences.peers] == [named(silent)]
        for task in agreeing:
            task.cancel()

    play(scene)


@pytest.mark.parametrize("step", [2, 9], ids=["a step that is done", "a step beyond the goal"])
def test_a_start_that_cannot_be_is_a_breach(step: int):
    async def scene() -> None:
        group = Group(*(Here(stage, round=5, steps=3) for stage in range(STAGES)))
        task = asyncio.create_task(agree(group.runners[1]))
        downstream, behind = group.seats[0].downstream, group.seats[2].upstream
        assert downstream is not None
        assert behind is not None
        offer = (await group.runners[0]._load(None)).brought
        downstream.send(pack_offer(offer))
        await behind.receive()
        behind.send(pack_answer(Answer(5, 3, HELD)))
        await downstream.receive()
        downstream.send(pack_start(step, ""))
        outcome = await task
        assert outcome.event is GroupEvent.LOST
        assert isinstance(outcome.brought, BreachError)
        assert "start at step" in str(outcome.brought)
        assert outcome.brought.peer == named(0)
        assert behind.ended is False  # both ends were joined in memory: nobody carries the end over

    play(scene)


# A group that does not get on


def test_where_it_is_not_clear_who_lied_the_group_ends_and_nobody_is_avoided():
    async def scene() -> None:
        group = Group()
        await group.agree()
        here, runner = group.heres[1], group.runners[1]
        runner._end_group(LostMemberError("it is not clear who lied"))
        assert all(link.ended for link in group.seats[1].links)
        assert not any(isinstance(event, Dismissed) for event in here.said)
        assert not here.outer.reconciler.bans.offenders

    play(scene)


def test_who_holds_a_step_up_is_avoided_and_both_neighbours_learn_that_the_group_is_broken():
    async def scene() -> None:
        group = Group()
        here, seats, runner = group.heres[1], group.seats[1], group.runners[1]
        downstream, upstream = seats.downstream, seats.upstream
        assert downstream is not None
        assert upstream is not None
        patience, dismissed = patience_with(FIRST_STEP_SECONDS, 2), list[int]()

        def slow(overdue: Callable[[float, Link], None]) -> None:
            for seconds in (patience - 1, patience):
                overdue(seconds, downstream)
                dismissed.append(sum(isinstance(event, Dismissed) for event in here.said))

        here.slow = slow
        tasks = [asyncio.create_task(agree(runner)) for runner in group.runners]
        outcome = await tasks[1]
        await runner.advance(outcome.brought)
        assert dismissed == [0, 1]
        (told,) = [event for event in here.said if isinstance(event, Dismissed)]
        assert told.peer == named(2)
        assert "held its group up" in told.reason
        assert here.outer.reconciler.bans.objection(named(2))
        assert upstream.ended
        assert downstream.ended
        assert runner.session.state is GroupState.FREE
        for task in tasks:
            task.cancel()

    play(scene)


def test_what_breaks_a_group_is_told_once_it_has_formed_and_who_broke_the_protocol_is_avoided():
    async def scene() -> None:
        group = Group()
        await group.lose(1, LostMemberError("it is gone"), GroupState.WHOLE)
        assert not group.heres[1].said  # it had not formed
        runner, here = group.runners[2], group.heres[2]
        runner.announced_members, here.round, here.steps, here.in_step = (named(1), named(2)), 5, 2, True
        await group.lose(2, BreachError(named(3), "it sent what cannot be"), GroupState.TRAINING)
        assert next(type(event) for event in here.said) is Dismissed
        (broken,) = [event for event in here.said if isinstance(event, GroupBroken)]
        assert (broken.replica, broken.round, broken.step, broken.reason) == (named(0), 5, 2, "it sent what cannot be")
        assert here.outer.reconciler.bans.objection(named(3))
        assert (group.seats[2].replica, group.seats[2].upstream, runner.announced_members) == ("", None, ())

    play(scene)


def test_a_later_stage_is_free_at_once_and_a_first_one_that_has_steps_in_hand_is_waited_for():
    async def scene() -> None:
        group = Group()
        for stage, steps, published in ((0, 0, [""]), (0, 3, []), (2, 3, [""])):
            here = group.heres[stage]
            here.steps, here.published, group.runners[stage].failures = steps, [], 0
            await group.lose(stage, LostMemberError("it is gone"), GroupState.TRAINING)
            assert here.published == published
            assert not here.did

    play(scene)


def test_a_step_is_rolled_back_only_where_one_is_in_flight():
    async def scene() -> None:
        group = Group()
        runner, here = group.runners[2], group.heres[2]
        runner.announced_members, here.round, here.steps = (named(1), named(2)), 5, 2
        await group.lose(2, LostMemberError("it is gone"), GroupState.ASKING)
        (broken,) = [event for event in here.said if isinstance(event, GroupBroken)]
        assert (broken.round, broken.step) == (0, 0)
        assert "No step was in flight" in (broken.words or "")

    play(scene)


@pytest.mark.parametrize(("goal", "did"), [(8, ["contributes"]), (16, [])], ids=["all of H", "half of twice H"])
def test_a_later_stage_that_has_done_all_steps_contributes_when_its_group_breaks(goal: int, did: list[str]):
    async def scene() -> None:
        group = Group()
        here = group.heres[1]
        here.steps, here.goal = 8, goal
        await group.lose(1, LostMemberError("it is gone"), GroupState.ENDING)
        assert here.did == did

    play(scene)


def test_who_did_not_answer_in_time_is_remembered_and_others_are_not():
    async def scene() -> None:
        group = Group()
        await group.lose(2, LostMemberError("it is gone"), GroupState.ASKING)
        assert not group.seats[2].silences.peers
        behind = group.seats[1].downstream
        assert behind is not None
        await group.lose(1, SilentError(behind, 60.0), GroupState.ASKING)
        assert [*group.seats[1].silences.peers] == [named(2)]

    play(scene)


def test_what_was_said_still_goes_out_where_no_inner_loop_was_open_and_else_the_neighbours_learn_it_at_once():
    async def scene() -> None:
        for state in GroupState:
            if state is GroupState.LEFT:
                continue
            group = Group()
            links = group.seats[1].links
            await group.lose(1, LostMemberError("it is gone"), state)
            hung_up = state in (GroupState.READY, GroupState.TRAINING)
            assert [link.ended for link in links] == [hung_up] * 2, state
            assert all(link.unsent for link in links)  # the end, in its turn

    play(scene)


def test_a_first_stage_pauses_after_its_second_failure_in_a_row_and_a_later_one_never_does():
    async def scene() -> None:
        for stage, pauses in ((0, 1), (1, 0)):
            group, paused = Group(), list[float]()
            news = group.heres[stage].outer.discovery.news

            async def wait(seconds: float, paused: list[float] = paused) -> None:
                paused.append(seconds)

            news.wait = wait
            for _ in range(2):
                await group.lose(stage, LostMemberError("it is gone"), GroupState.SEATED)
            assert len(paused) == pauses
            await group.runners[stage]._close_loop(None)
            await group.lose(stage, LostMemberError("it is gone"), GroupState.SEATED)
            assert len(paused) == pauses  # it had trained meanwhile

    play(scene)


def test_who_leaves_between_two_rounds_contributes_and_takes_no_more_calls():
    async def scene() -> None:
        group = Group()
        runner, seats = group.runners[1], group.seats[1]
        seats.open_for_calls()
        group.heres[1].outer.leaving = True
        assert (await runner.advance(None)).event is GroupEvent.LEAVING
        assert runner.session.state is GroupState.LEFT
        assert group.heres[1].did == ["contributes"]
        assert not seats.open

    play(scene)


def test_both_kinds_of_runners_have_work_for_every_state_but_the_last_and_an_act_for_every_action():
    async def scene() -> None:
        for runner in Group().runners[:2]:
            assert runner._work.keys() == {*GroupState} - {GroupState.LEFT}
            assert runner._acts.keys() == {*GroupAction}

    play(scene)
