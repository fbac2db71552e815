"""A volunteer's stage in one group after another: it takes its seat, agrees on a round with the stages beside it,
trains, and contributes. The table of its states is in `peer/swarm/group/session.py`.

No stage leads. The first one (`first_stage.py`) reads the text and offers each round; what is offered goes from stage
to stage, and the answers come back. Whoever finds a neighbour lost hangs up on the other one, too, so all learn that
the group is broken, are free, and seat themselves anew.
"""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from peer.network.duplex import BreachError
from peer.network.group import Attempt, Link
from peer.swarm import waits
from peer.swarm.departures import Departures
from peer.swarm.group.agreement import Agreed, SilentError, Start, receive_in_time
from peer.swarm.group.inner_step import Source, StepTaken
from peer.swarm.group.plan import better_group
from peer.swarm.group.seats import GroupSeats, pause_before_regrouping
from peer.swarm.group.session import GroupAction, GroupEvent, GroupSession, GroupState
from peer.swarm.group.slow_members import SlowMembers
from peer.swarm.group.spot_checks import StageSpotChecks
from peer.swarm.group.stage_round import StageRound
from peer.swarm.group.stragglers import patience_with
from peer.swarm.rounds.outer_round import OuterLoop
from protocol.codec.seating import (
    AnswerFrame,
    OfferFrame,
    pack_answer,
    pack_offer,
    pack_start,
    unpack_answer,
    unpack_start,
)
from protocol.errors import HetpeerError, LostMemberError, PeerError
from protocol.events.activity import GroupBroken, GroupFormed
from protocol.events.group_decisions import Dismissed, MemberChanged, Released
from protocol.events.waiting import Waiting
from protocol.identity import PeerId
from protocol.net.tasks import Children

REGROUP_ROUNDS = 4
"""The number of rounds, after the first, between two looks at whether groups with other members would be quicker."""


@dataclass(frozen=True, slots=True)
class StateEnd:
    """The event that ended a state's work, and what the next state's work is given: an offer, an answer, an error."""

    event: GroupEvent
    brought: Any = None


async def do_nothing(_: object) -> None:
    """Do nothing between two states."""


class StageRunner(ABC):
    """The tasks of one stage around its `session`: the work of each state, which ends with an event, and the act that
    follows by the table. `failures` of its groups, or of their agreements, have failed in a row."""

    def __init__(self, stage_round: StageRound, seats: GroupSeats, spot_checks: StageSpotChecks) -> None:
        self.session = GroupSession()
        self.stage_round = stage_round
        self.seats = seats
        self.spot_checks = spot_checks
        self.slow_members = SlowMembers(stage_round.outer, seats)
        self.departures = Departures()
        self.failures = 0
        self.agreed_members: tuple[PeerId, ...] = ()
        """The members that have agreed on a round last; empty: none, or their group is broken."""
        self.announced_members: tuple[PeerId, ...] = ()
        """The members of the group that was told of last; empty: none, or it is broken."""
        self._work: Mapping[GroupState, Callable[[Any], Awaitable[StateEnd]]] = {
            GroupState.FREE: self._look_for_group,
            GroupState.SEATED: self._fill_seats,
            GroupState.WHOLE: self._await_offer,
            GroupState.LOADING: self._load,
            GroupState.ASKING: self._ask_behind,
            GroupState.COMPARING: self._compare,
            GroupState.READY: self._await_start,
            GroupState.TRAINING: self._train,
            GroupState.ENDING: self._end_round,
        }
        self._acts: Mapping[GroupAction, Callable[[Any], Awaitable[None]]] = {
            GroupAction.NOTHING: do_nothing,
            GroupAction.TAKE_SEAT: self._take_seat,
            GroupAction.ANNOUNCE: self._announce,
            GroupAction.REFUSE: self._refuse,
            GroupAction.RETRY: self._retry,
            GroupAction.START: self._start,
            GroupAction.CLOSE_LOOP: self._close_loop,
            GroupAction.SWITCH: self._switch,
            GroupAction.PART: self._part,
            GroupAction.HANG_UP: self._hang_up,
            GroupAction.LEAVE: self._leave,
        }

    @property
    def outer(self) -> OuterLoop:
        """The outer rounds of this peer."""
        return self.stage_round.outer

    @property
    def index(self) -> int:
        """The index of the stage."""
        return self.stage_round.trainer.index

    @property
    def ends(self) -> bool:
        """Whether this peer leaves, or the run is over."""
        return self.outer.over or self.outer.leaving

    async def serve(self) -> None:
        """Train in one group after another, until the run is over or this peer leaves."""
        await self._resume()
        self.seats.open_for_calls()
        brought: Any = None
        while self.session.state is not GroupState.LEFT:
            brought = (await self.advance(brought)).brought

    async def advance(self, brought: Any) -> StateEnd:
        """Do the work of the session's state, and the act that follows. Returns the event between them, and what it
        brings to the next state's work."""
        end = await self._work_on(brought)
        await self._acts[self.session.take(end.event)](end.brought)
        return end

    async def _work_on(self, brought: Any) -> StateEnd:
        """Do the work of the state. Between two groups, and between two rounds, this peer may leave."""
        state = self.session.state
        if state in (GroupState.FREE, GroupState.WHOLE) and self.ends:
            return StateEnd(GroupEvent.LEAVING)
        try:
            return await self._work[state](brought)
        except (LostMemberError, PeerError) as error:
            return StateEnd(GroupEvent.LEAVING) if self.ends else StateEnd(GroupEvent.LOST, error)

    # What the first stage does otherwise

    async def _resume(self) -> None:
        """Go on as this peer's folder has it."""
        await self.stage_round.resume_from_checkpoint()

    @abstractmethod
    async def _look_for_group(self, _: object) -> StateEnd:
        """Wait until this stage may take a seat in a group: CALLED."""

    @abstractmethod
    async def _take_seat(self, _: object) -> None:
        """Take the seat."""

    @abstractmethod
    async def _follow_until(self, filled: Callable[[], bool]) -> None:
        """Go through the rounds of the others, until the seats behind are filled, or there is no group to fill."""

    @abstractmethod
    async def _announce(self, _: object) -> None:
        """Tell that every stage has a volunteer."""

    @abstractmethod
    async def _await_offer(self, _: object) -> StateEnd:
        """Wait for the next round's offer: OFFERED."""

    @abstractmethod
    async def _load(self, brought: Any) -> StateEnd:
        """Load the round: LOADED with the offer to pass on, or LACKING with an answer."""

    @abstractmethod
    async def _after_comparing(self, answer: AnswerFrame) -> StateEnd:
        """Decide how to go on after a stage behind has answered that it holds something else."""

    @property
    def _source(self) -> Source | None:
        """The text of the round, where this stage reads it."""
        return None

    @abstractmethod
    def _note_step(self, outcome: StepTaken) -> None:
        """Note the outcome of an inner step."""

    # Seats

    async def _fill_seats(self, _: object) -> StateEnd:
        """Wait until every stage behind has a volunteer. The rounds of the others go on meanwhile, and so do ours.

        Raises:
            LostMemberError: a neighbour is gone, meanwhile.
        """
        async with Children() as children:
            filling = children.spawn(self.seats.fill())
            filling.add_done_callback(lambda _: self.outer.discovery.news.ring())
            await self._follow_until(filling.done)
            if filling.done():
                filling.result()
        self.seats.require_neighbours()
        return StateEnd(GroupEvent.LEAVING if self.ends else GroupEvent.FILLED)

    def _emit_formed(self, members: tuple[PeerId, ...], slot: int, reason: str) -> None:
        if members != self.announced_members:
            self.announced_members = members
            self.outer.emit(GroupFormed(self.seats.replica, slot, [*map(str, members)], reason))

    # A round

    async def _ask_behind(self, offer: OfferFrame) -> StateEnd:
        """Pass an offer on, and receive what the stages behind this one answer.

        Raises:
            LostMemberError, BreachError: the one behind it is gone, or says nothing, or something else.
        """
        downstream = self.seats.downstream
        answer = AnswerFrame(offer.round, self.stage_round.steps, offer.embedding_digest)
        if downstream is not None:
            downstream.send(pack_offer(offer))
            behind = len(self.seats.behind)
            frame = await receive_in_time(downstream, self.index + 1, behind, offer.round, self.outer.emit)
            with downstream.blamed():
                answer = unpack_answer(frame, self.outer.manifest)
        agreed = answer.holds(offer)
        return StateEnd(GroupEvent.AGREED, Agreed(offer, answer)) if agreed else StateEnd(GroupEvent.DIFFERS, answer)

    async def _compare(self, answer: AnswerFrame) -> StateEnd:
        """Fetch from the stage behind, which is ahead of this one or holds contributions that this one has not, what is
        lacking here."""
        if self.seats.downstream is not None:
            await self.stage_round.compare_with(self.seats.downstream.peer)
        return await self._after_comparing(answer)

    async def _refuse(self, answer: AnswerFrame) -> None:
        """Answer the stage before that this one, or one behind it, holds something else."""
        if self.seats.upstream is not None:
            self.seats.upstream.send(pack_answer(answer))

    async def _await_start(self, agreed: Agreed) -> StateEnd:
        """Answer the stage before that all from here on are ready, and wait for the start.

        Raises:
            LostMemberError, BreachError: the stage before is gone, or says nothing, or something else.
        """
        stage_round, seats, offer = self.stage_round, self.seats, agreed.offer
        loop = stage_round.open_loop(Attempt(seats.replica, offer.attempt), seats.upstream, seats.downstream)
        step = max(stage_round.steps, agreed.answer.step)
        digest = stage_round.group_digest(agreed.answer.group_digest)
        if seats.upstream is not None:
            seats.upstream.send(pack_answer(AnswerFrame(offer.round, step, offer.embedding_digest, digest)))
            frame = await receive_in_time(seats.upstream, self.index - 1, self.index, offer.round, self.outer.emit)
            with seats.upstream.blamed():
                step, digest = unpack_start(frame, step, offer.goal)
        if seats.downstream is not None:
            seats.downstream.send(pack_start(step, digest))
        return StateEnd(GroupEvent.STARTED, Start(offer, loop, step, digest))

    async def _start(self, start: Start) -> None:
        self.stage_round.start(start.loop, start.step, start.group_digest)
        self.agreed_members = start.offer.members
        self._emit_formed(start.offer.members, start.offer.slot, "the stage before it called this peer")

    async def _train(self, start: Start) -> StateEnd:
        """Take inner steps until the round's end.

        Raises:
            LostMemberError, BreachError: a neighbour is gone, broke the protocol, holds a step up for longer than any,
                or is slow while another volunteer of its stage is free.
        """
        stage_round, loop = self.stage_round, start.loop
        source, last = self._source, stage_round.steps >= stage_round.goal
        neighbours = loop.pipeline.upstream, loop.pipeline.downstream

        def give_up_overdue(seconds: float, link: Link) -> None:
            """Hang up on a neighbour that has been waited for so long, if that is too long."""
            stages = len(self.seats.behind) if link is self.seats.downstream else self.index
            if seconds >= patience_with(stage_round.pace.bound_in(start.offer.patience), stages):
                self._end_group(link.breach(f"held its group up: an inner step has not ended in {seconds:.0f} s"))

        with self.spot_checks.checking(loop.received, stage_round.round, *neighbours, self._end_group) as checks:
            while not last:
                self.slow_members.require_quick()
                outcome, times = await stage_round.step(loop, source, give_up_overdue)
                checks.step_taken(stage_round.steps)
                self._note_step(outcome)
                self.slow_members.step_taken(start.offer, stage_round.step_kind, times)
                last = outcome.last
                if self.outer.leaving and not last:
                    return StateEnd(GroupEvent.LEAVING)
        return StateEnd(GroupEvent.STEPS_DONE)

    async def _close_loop(self, _: object) -> None:
        self.stage_round.close_loop()
        self.failures = 0

    async def _finish(self, round: int) -> None:
        """Finish all rounds up to this one. The first stage does so whoever is gone. Raises as
        `StageRound.finish_up_to` does."""
        await self.stage_round.finish_up_to(round, PeerId(self.seats.replica), lambda: self.seats.before_is_gone)

    async def _end_round(self, _: object) -> StateEnd:
        """Contribute, finish the round, and see whether groups change members."""
        round = self.stage_round.round or self.outer.clock
        better = self._better_group(round)
        await self._finish(round)
        regroups = better is not None and not self.ends
        return StateEnd(GroupEvent.REGROUPED, better) if regroups else StateEnd(GroupEvent.ROUND_OVER)

    def _better_group(self, round: int) -> list[PeerId] | None:
        """Return the group in which this peer shall be after this round, decided before it contributes; None: the
        present one. Nobody changes groups before all expected contributions are in, so nearly always all peers see the
        same groups; one whose members see different ones breaks, and forms anew. Where all take H steps the slowest
        group decides how long a round takes, and no change makes it quicker."""
        outer = self.outer
        if round % REGROUP_ROUNDS != 1 or not outer.manifest.inner.most_steps or not self.agreed_members:
            return None
        better = better_group(outer.discovery.peers(), outer.discovery.record, outer.manifest.replicas.stages)
        return None if better is None or tuple(better) == self.agreed_members else [*better]

    # Parting

    async def _switch(self, better: list[PeerId]) -> None:
        """Leave this group between two rounds, for one that suits better."""
        outer, stage, members = self.outer, self.index, self.agreed_members
        behind = better[stage + 1] if better and stage + 1 < len(members) else None
        if behind is not None and behind != members[stage + 1]:
            outer.emit(MemberChanged(members[stage + 1], behind, stage + 1, outer.clock))
        if stage and (not better or better[stage - 1] != members[stage - 1]):
            outer.emit(Released(self.seats.replica))
        self.announced_members = self.agreed_members = ()
        self.slow_members.leave_group()
        self.seats.leave()
        self.seats.wait_for(behind)
        if stage:
            await outer.discovery.publish(replica="")

    async def _part(self, error: HetpeerError) -> None:
        """Be free for another group, and go on in it where this round was left. What there is of the round is
        contributed when the others end it, or at once if that is all."""
        outer, stage_round, reason = self.outer, self.stage_round, self.slow_members.why_parted(error)
        if isinstance(error, BreachError):
            self._dismiss(error)
        if self.announced_members:
            rolled_back = (stage_round.round, stage_round.steps) if stage_round.in_step else (0, 0)
            outer.emit(GroupBroken(self.seats.replica, *rolled_back, reason))
        self.announced_members = self.agreed_members = ()  # should the same peers form it again, that is told
        self.slow_members.leave_group()
        if isinstance(error, SilentError):
            self.seats.note_silence(error.peer)
        await stage_round.abandon(reason)
        self.seats.leave()
        if self.index or not stage_round.steps:  # else others wait for the steps that the first stage contributes
            await outer.discovery.publish(replica="")
        if self.index and stage_round.steps >= stage_round.goal:
            await stage_round.contribute()  # a group that has to do this round again may call all the same
        await self._retry(error)

    async def _retry(self, _: object) -> None:
        """Pause before a first stage forms a group, or offers a round, anew: longer after more failures in a row."""
        if self.failures and not self.index:
            await pause_before_regrouping(self.outer.discovery.news, self.failures)
        self.failures += 1

    async def _hang_up(self, error: HetpeerError) -> None:
        """Hang up on both neighbours, who learn that the group is broken, and be free for another."""
        self.seats.hang_up(str(error))
        await self._part(error)

    def _end_group(self, error: BreachError | LostMemberError) -> None:
        """End the group in the midst of an inner step, which fails then."""
        if isinstance(error, BreachError):
            self._dismiss(error)
        self.seats.hang_up(str(error))

    def _dismiss(self, error: BreachError) -> None:
        """Do not talk to a neighbour for a while: it broke the protocol."""
        self.outer.emit(Dismissed(error.peer, self.stage_round.round, self.stage_round.steps, str(error)))
        self.outer.reconciler.bans.note(error.peer, error)

    async def _leave(self, _: object) -> None:
        await self.stage_round.abandon("this peer leaves")
        self.seats.close()
        await self.stage_round.contribute()

    # Waits

    def _wait_for_members(self) -> Waiting:
        """The wait of this peer for members at the stages behind it that have none."""
        outer, peers, me = self.outer, self.outer.discovery.peers(), self.outer.discovery.record
        if outer.lost_state:
            return outer.lost_state
        self.departures.look(peers, me)
        missing = range(me.stage + len(self.seats.members), outer.manifest.replicas.stages)
        if not missing:
            return self._wait_for_its_group()
        return waits.for_members(peers, me, outer.manifest, outer.begun, missing, self.departures)

    def _wait_for_its_group(self) -> Waiting:
        """The wait of a member of a group in which this stage has nobody to look for."""
        outer, peers, first = self.outer, self.outer.discovery.peers(), PeerId(self.seats.replica)
        return waits.for_its_group(peers, outer.discovery.record, outer.manifest, outer.begun, first)
