"""A later stage of a group: the stage before it calls it, and offers each round."""

import asyncio
from collections.abc import Callable

from peer.network.group import Link
from peer.swarm import waits
from peer.swarm.group.inner_step import StepTaken
from peer.swarm.group.session import GroupEvent
from peer.swarm.group.stage_round import STEP_POLL_SECONDS, LeavingError
from peer.swarm.group.stage_runner import StageRunner, StateEnd
from peer.swarm.rounds import round_policy
from protocol.codec.seating import AnswerFrame, OfferFrame, unpack_offer
from protocol.events.waiting import Waiting
from protocol.identity import EMBEDDING, PeerId
from protocol.net.tasks import Children
from protocol.patience import FURTHER_STAGE_SECONDS
from protocol.schemas import pipeline_pb2 as pb


class LaterStage(StageRunner):
    """A stage from 1 on in one group after another."""

    # Seats

    async def _look_for_group(self, _: object) -> StateEnd:
        """Follow the rounds of the others until a stage before this one calls."""
        seats, outer = self.seats, self.outer
        await self.stage_round.follow(lambda: seats.is_called or outer.leaving, self._wait_for_a_group)
        return StateEnd(GroupEvent.LEAVING if self.ends else GroupEvent.CALLED)

    async def _take_seat(self, _: object) -> None:
        self.seats.sit_down()
        await self.outer.discovery.publish(replica=self.seats.replica)

    async def _follow_until(self, filled: Callable[[], bool]) -> None:
        await self.stage_round.follow(
            lambda: filled() or self.seats.before_is_gone or self.outer.leaving, self._wait_for_members
        )

    async def _announce(self, _: object) -> None:
        """Leave the telling to the first stage."""

    def _wait_for_a_group(self) -> Waiting:
        outer, peers, me = self.outer, self.outer.discovery.peers(), self.outer.discovery.record
        self.departures.look(peers, me)
        return waits.for_a_seat(peers, me, outer.manifest, outer.begun, self.departures)

    # Rounds

    async def _await_offer(self, _: object) -> StateEnd:
        """Receive the next offer of the stage before. It may have to wait for others, whose rounds go on meanwhile.

        Raises:
            LostMemberError: the stage before is gone, or this peer leaves.
            BreachError: it offers what cannot be, or has offered nothing for so long that it means to hold this peer.
        """
        self.seats.require_neighbours()
        upstream = self.seats.require_upstream()
        frame = await self._receive_offer(upstream)
        with upstream.blamed():
            offer = unpack_offer(
                frame, self.outer.manifest, self.index, self.outer.discovery.record.peer_id, upstream.peer
            )
        if offer.members[0] != PeerId(self.seats.replica):
            raise upstream.breach("offers a round to another group than it has called for")
        return StateEnd(GroupEvent.OFFERED, offer)

    async def _receive_offer(self, upstream: Link) -> pb.Frame:
        async with Children() as children:
            receiving, holding = children.spawn(upstream.receive()), children.spawn(self._is_held())
            for waiting_task in (receiving, holding):
                waiting_task.add_done_callback(lambda _: self.outer.discovery.news.ring())
            await self.stage_round.follow(
                lambda: receiving.done() or holding.done() or self.seats.lost is not None or self.outer.leaving,
                self._wait_for_its_group,
            )
            frame = receiving.result() if receiving.done() else None
            if self.ends:
                raise LeavingError("this peer leaves")
            self.seats.require_neighbours()
            if frame is None:
                raise upstream.breach(f"has offered its group no round for {holding.result():.0f} s")
            return frame

    async def _is_held(self) -> float:
        """Wait until the group has stood still for too long. Returns for how many seconds. Polls are counted, since no
        clock tells how long the machine itself stood still. The neighbour of the silent stage is the first to time
        out."""
        looks, patience = 0, 0.0
        while looks * STEP_POLL_SECONDS <= patience:
            await asyncio.sleep(STEP_POLL_SECONDS)
            looks += self.outer.begun
            patience = 2 * round_policy.patience_with_those_behind(self.outer.pace)  # the first stage may wait for them
            patience += FURTHER_STAGE_SECONDS * self.index
        return looks * STEP_POLL_SECONDS

    async def _load(self, offer: OfferFrame) -> StateEnd:
        """Load the offered round, or go on with it if it is loaded.

        Raises:
            LostMemberError: the group is broken before this peer has finished the rounds before.
        """
        outer, stage_round = self.outer, self.stage_round
        await self._finish(offer.round - 1)
        if outer.clock > offer.round:
            return StateEnd(GroupEvent.LACKING, AnswerFrame(outer.clock))
        if stage_round.round != offer.round or offer.embedding_digest not in ("", stage_round.embedding_digest):
            await self._prepare_state(offer.embedding_digest)
        await stage_round.load(offer.round, offer.step, offer.compression, offer.goal)
        if offer.embedding_digest not in ("", stage_round.embedding_digest):
            return StateEnd(GroupEvent.LACKING, AnswerFrame(offer.round, 0, stage_round.embedding_digest))
        return StateEnd(GroupEvent.LOADED, offer)

    async def _prepare_state(self, embedding_digest: str) -> None:
        """Get ready to load another round, or this one from the token embedding that the group has: contribute the
        steps that this stage has done, and take what it lacks of that embedding."""
        await self.stage_round.contribute()
        if embedding_digest not in ("", self.outer.followed.digests.get(EMBEDDING)):
            await self.stage_round.compare_with(self.seats.require_upstream().peer)
            await self.outer.settle_part(EMBEDDING)

    async def _after_comparing(self, answer: AnswerFrame) -> StateEnd:
        """Have the stage before learn the same."""
        return StateEnd(GroupEvent.LACKING, answer)

    def _note_step(self, outcome: StepTaken) -> None:
        """Leave it to the first stage to learn from a step."""
