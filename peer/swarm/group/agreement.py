"""The agreement of a group's stages on a round. The first stage offers a round; each stage passes the offer on once it
has loaded what it needs; the answer comes back from the last stage, and the first one has all of them start."""

import asyncio
from dataclasses import dataclass

from peer.network.group import Attempt, Link
from peer.swarm import waits
from peer.swarm.group.compression import KController
from peer.swarm.group.seats import GroupSeats
from peer.swarm.group.stage_round import STEP_POLL_SECONDS, LeavingError, StageRound
from peer.swarm.rounds import round_policy
from peer.swarm.rounds.outer_round import OuterLoop
from peer.telemetry.decisions import Waiting
from protocol.codec.seating import (
    AnswerFrame,
    OfferFrame,
    pack_answer,
    pack_offer,
    pack_start,
    unpack_answer,
    unpack_offer,
    unpack_start,
)
from protocol.errors import LostMemberError
from protocol.identity import EMBEDDING, PeerId
from protocol.net.tasks import Children
from protocol.patience import AGREEMENT_TIMEOUT_SECONDS, FURTHER_STAGE_SECONDS, LONG_WAIT_SECONDS
from protocol.schemas import pipeline_pb2 as pb


class SilentError(LostMemberError):
    """A neighbour, `peer`, has not answered in time."""

    def __init__(self, link: Link, seconds: float) -> None:
        super().__init__(f"{link.with_whom} has not answered for {seconds:.0f} s")
        self.peer = link.peer


@dataclass(slots=True)
class Agreement:
    """One stage's part in it. `k_controller` is the first stage's."""

    stage_round: StageRound
    seats: GroupSeats
    k_controller: KController | None
    attempts: int = 0
    """Groups that this first stage has formed."""
    is_over: bool = False
    """Whether the first stage has to end the round: somebody is past it, or goes on from another state."""

    @property
    def outer(self) -> OuterLoop:
        """The outer rounds of this peer."""
        return self.stage_round.outer

    async def reach(self) -> OfferFrame | None:
        """All stages load the round and open their pipelines; what they have agreed on. None: they do not all hold the
        same, and this stage has taken what it lacked, if it could.

        Raises:
            LostMemberError, BreachError: a neighbour does not.
        """
        self.is_over = False
        self.seats.require_neighbours()
        offer = await self._offer() if self.k_controller is not None else await self._take_offer()
        if offer is None:
            return None
        answer = await self._answer_behind(offer)
        if not answer.holds(offer):
            await self._meet(answer)
            return None
        stage_round = self.stage_round
        stage_round.open_pipeline(
            Attempt(self.seats.replica, offer.attempt), self.seats.upstream, self.seats.downstream
        )
        step = max(stage_round.steps, answer.step)
        digest = stage_round.group_digest(answer.group_digest)
        if self.seats.upstream is not None:
            self.seats.upstream.send(pack_answer(AnswerFrame(offer.round, step, offer.embedding_digest, digest)))
            neighbours_answer = await self._receive_answer(self.seats.upstream, stage_round.trainer.index, offer.round)
            with self.seats.upstream.blamed():
                step, digest = unpack_start(neighbours_answer, step, offer.goal)
        if self.seats.downstream is not None:
            self.seats.downstream.send(pack_start(step, digest))
        stage_round.start(step, digest)
        return offer

    async def _offer(self) -> OfferFrame:
        """The round that this first stage is at."""
        stage_round, record = self.stage_round, self.outer.discovery.record
        assert self.k_controller is not None
        await stage_round.load(stage_round.round or self.outer.clock, stage_round.steps, self.k_controller.current)
        where = stage_round.round, stage_round.steps, self.seats.members, self.attempts, record.slot
        return OfferFrame(
            *where, stage_round.embedding_digest, stage_round.compression, stage_round.goal, stage_round.pace.bound()
        )

    async def _take_offer(self) -> OfferFrame | None:
        """Load the round that the stage before offers, or go on with it if it is loaded. None: this peer does not hold
        what it needs for that, and has said so.

        Raises:
            LostMemberError: the stage before is gone.
            BreachError: it offers what cannot be.
        """
        outer, upstream, stage = self.outer, self.seats.upstream, self.stage_round.trainer.index
        assert upstream is not None
        offer_frame = await self._next_offer(upstream)
        with upstream.blamed():
            offer = unpack_offer(offer_frame, outer.manifest, stage, outer.discovery.record.peer_id, upstream.peer)
        if offer.members[0] != PeerId(self.seats.replica):
            raise upstream.breach("offers a round to another group than it has called for")
        await self.finish(offer.round - 1)
        if outer.clock > offer.round:
            upstream.send(pack_answer(AnswerFrame(outer.clock)))
            return None
        if self.stage_round.round != offer.round or offer.embedding_digest not in (
            "",
            self.stage_round.embedding_digest,
        ):
            await self._start_over(offer.embedding_digest, upstream.peer)
        await self.stage_round.load(offer.round, offer.step, offer.compression, offer.goal)
        if offer.embedding_digest not in ("", self.stage_round.embedding_digest):
            upstream.send(pack_answer(AnswerFrame(offer.round, 0, self.stage_round.embedding_digest)))
            return None
        return offer

    async def _next_offer(self, upstream: Link) -> pb.Frame:
        """Receive the next offer of the stage before. It may have to wait for others, whose rounds go on meanwhile.

        Raises:
            LostMemberError: the stage before is gone, or this peer leaves.
            BreachError: it has offered nothing for so long that it means to hold this peer.
        """
        async with Children() as children:
            receiving, holding = children.spawn(upstream.receive()), children.spawn(self._is_held())
            for waiting_task in (receiving, holding):
                waiting_task.add_done_callback(lambda _: self.outer.discovery.news.ring())
            await self.stage_round.follow(
                lambda: receiving.done() or holding.done() or self.seats.lost is not None or self.outer.leaving,
                self.wait,
            )
            frame = receiving.result() if receiving.done() else None
            if self.outer.over or self.outer.leaving:
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
            patience += FURTHER_STAGE_SECONDS * self.stage_round.trainer.index
        return looks * STEP_POLL_SECONDS

    async def finish(self, round: int) -> None:
        """Finish all rounds up to this one. The first stage does so whoever is gone. Raises as
        `StageRound.finish_up_to` does."""
        await self.stage_round.finish_up_to(round, PeerId(self.seats.replica), lambda: self.seats.before_is_gone)

    def wait(self) -> Waiting:
        """The wait of a member of a group in which this stage has nobody to look for."""
        outer, peers, first = self.outer, self.outer.discovery.peers(), PeerId(self.seats.replica)
        return waits.for_its_group(peers, outer.discovery.record, outer.manifest, outer.begun, first)

    async def _start_over(self, embedding_digest: str, neighbour: PeerId) -> None:
        """Load this round anew, with the token embedding that the group has. The steps that this stage has done from
        another embedding are contributed first."""
        await self.stage_round.contribute()
        if embedding_digest not in ("", self.outer.followed.digests.get(EMBEDDING)):
            await self.stage_round.compare_with(neighbour)
            await self.outer.settle_part(EMBEDDING)

    async def _answer_behind(self, offer: OfferFrame) -> AnswerFrame:
        """Pass an offer on, and receive what the stages behind this one answer.

        Raises:
            LostMemberError, BreachError: the one behind it is gone, or says nothing, or something else.
        """
        downstream = self.seats.downstream
        if downstream is None:
            return AnswerFrame(offer.round, self.stage_round.steps, offer.embedding_digest)
        downstream.send(pack_offer(offer))
        answer = await self._receive_answer(downstream, len(self.seats.behind), offer.round)
        with downstream.blamed():
            return unpack_answer(answer, self.outer.manifest)

    async def _receive_answer(self, link: Link, stages: int, round: int) -> pb.Frame:
        """Receive a neighbour's next message about a round that `stages` of the group have to agree on. A long wait for
        it is emitted as an event."""
        stage = self.stage_round.trainer.index + (1 if link is self.seats.downstream else -1)
        async with Children() as children:
            answering = children.spawn(link.receive())
            await asyncio.wait((answering,), timeout=LONG_WAIT_SECONDS)
            patience = AGREEMENT_TIMEOUT_SECONDS + FURTHER_STAGE_SECONDS * stages
            if not answering.done():
                self.outer.emit(waits.for_a_member(link.peer, stage, round))
                await asyncio.wait((answering,), timeout=patience - LONG_WAIT_SECONDS)
            if not answering.done():
                raise SilentError(link, patience)
            return answering.result()

    async def _meet(self, answer: AnswerFrame) -> None:
        """Catch up with a stage behind that is ahead of us, or that holds contributions that we have not: fetch them
        from the stage behind this one, which does the same. The first stage ends the round with the inner steps that it
        has, or begins it anew."""
        stage_round, outer, upstream = self.stage_round, self.outer, self.seats.upstream
        if self.seats.downstream is not None:
            await stage_round.compare_with(self.seats.downstream.peer)
        if upstream is not None:
            upstream.send(pack_answer(answer))
            return
        if round_policy.is_abandoned(outer.discovery.record, [answer.round], outer.discovery.others()):
            outer.abandoned_round = outer.clock
        self.is_over = bool(stage_round.steps) or answer.round > outer.clock
        if not self.is_over:
            await outer.settle_part(EMBEDDING)
            stage_round.round = 0
