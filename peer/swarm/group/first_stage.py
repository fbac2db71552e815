"""The first stage of a group: it forms the group, reads the text, and offers each round."""

from collections.abc import Callable

from peer.swarm import waits
from peer.swarm.group.compression import KController
from peer.swarm.group.inner_step import StepTaken
from peer.swarm.group.seats import GroupSeats
from peer.swarm.group.session import GroupEvent
from peer.swarm.group.spot_checks import StageSpotChecks
from peer.swarm.group.stage_round import RoundText, StageRound
from peer.swarm.group.stage_runner import StageRunner, StateEnd
from peer.swarm.rounds import round_policy
from peer.swarm.rounds.round_end import wait_for_round
from peer.swarm.rounds.round_view import why_end_steps
from peer.swarm.text_reader import Reader
from protocol.codec.seating import AnswerFrame, OfferFrame
from protocol.events.group_decisions import CompressionChosen
from protocol.identity import EMBEDDING


class FirstStage(StageRunner):
    """Stage 0 in one group after another, of which it has formed `attempts`."""

    def __init__(
        self,
        stage_round: StageRound,
        seats: GroupSeats,
        spot_checks: StageSpotChecks,
        reader: Reader,
        k_controller: KController,
    ) -> None:
        super().__init__(stage_round, seats, spot_checks)
        self.reader = reader
        self.k_controller = k_controller
        self.attempts = 0

    async def _resume(self) -> None:
        await super()._resume()
        while self.outer.contributed and not self.ends:
            await self.stage_round.finish()  # without doing a round twice

    # Seats

    async def _look_for_group(self, _: object) -> StateEnd:
        return StateEnd(GroupEvent.CALLED)

    async def _take_seat(self, _: object) -> None:
        self.seats.lead()
        self.attempts += 1

    async def _follow_until(self, filled: Callable[[], bool]) -> None:
        outer, stage_round = self.outer, self.stage_round

        def interrupted() -> bool:
            return filled() or stage_round.handover.has_offer or outer.leaving

        while not (filled() or self.ends):
            await stage_round.handover.accept_handover()
            outer.emit(self._wait_for_members())
            if stage_round.round and why_end_steps(outer, stage_round.round, stage_round.steps):
                await self._finish(stage_round.round)
            elif stage_round.round:
                await outer.discovery.news.wait(1.0)
            elif await wait_for_round(outer, outer.clock, interrupted, self._wait_for_members) or outer.is_behind:
                await self._finish(outer.clock)

    async def _announce(self, _: object) -> None:
        self._emit_formed(self.seats.members, self.outer.discovery.record.slot, "each other stage has a volunteer now")
        await self.outer.discovery.publish(replica=self.seats.replica)

    # Rounds

    async def _await_offer(self, _: object) -> StateEnd:
        """Wait until the run has begun: it does when all the replicas of its manifest have formed.

        Raises:
            LostMemberError: a member leaves before.
        """
        outer = self.outer
        while not (outer.begun or self.ends):
            outer.emit(waits.for_the_beginning(outer.discovery.peers(), outer.manifest))
            self.seats.require_neighbours()
            await outer.discovery.news.wait(1.0)
        return StateEnd(GroupEvent.LEAVING if self.ends else GroupEvent.OFFERED)

    async def _load(self, _: object) -> StateEnd:
        """Load the round that this first stage is at, and offer it."""
        self.seats.require_neighbours()
        stage_round, slot = self.stage_round, self.outer.discovery.record.slot
        await stage_round.load(stage_round.round or self.outer.clock, stage_round.steps, self.k_controller.current)
        offer = OfferFrame(
            stage_round.round,
            stage_round.steps,
            self.seats.members,
            self.attempts,
            slot,
            stage_round.embedding_digest,
            stage_round.compression,
            stage_round.goal,
            stage_round.pace.bound(),
        )
        return StateEnd(GroupEvent.LOADED, offer)

    async def _after_comparing(self, answer: AnswerFrame) -> StateEnd:
        """End the round with the inner steps that there are of it, or begin it anew."""
        outer, stage_round = self.outer, self.stage_round
        if round_policy.is_abandoned(outer.discovery.record, [answer.round], outer.discovery.others()):
            outer.abandon_round(outer.clock)
        if stage_round.steps or answer.round > outer.clock:
            return StateEnd(GroupEvent.OVERTAKEN)
        await outer.settle_part(EMBEDDING)
        stage_round.forget()
        return StateEnd(GroupEvent.RETRIED)

    @property
    def _source(self) -> RoundText:
        return RoundText(self.stage_round, self.reader)

    def _note_step(self, outcome: StepTaken) -> None:
        self.k_controller.note(outcome.seconds, outcome.sums.passes)

    async def _end_round(self, _: object) -> StateEnd:
        """Choose k for the next round, and end this one."""
        if chosen := self.k_controller.decide():
            self.outer.emit(CompressionChosen(self.k_controller.current, chosen))
        return await super()._end_round(_)
