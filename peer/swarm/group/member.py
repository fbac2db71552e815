"""A replica group from the side of stages 1, 2, …: called by a leader, obeying it, free again when it is gone."""

from dataclasses import dataclass

from peer.network.duplex import BreachError
from peer.network.group import Attempt, GroupService, Membership, Reports, Seat
from peer.swarm import waits
from peer.swarm.group.stage_round import StageRound
from peer.swarm.rounds.outer_round import LOST_SECONDS
from peer.telemetry.decisions import Waiting
from peer.telemetry.events import GroupBroken, GroupFormed
from peer.telemetry.group_decisions import Released
from protocol.clock import monotonic
from protocol.errors import HetpeerError, LostMemberError, PeerError
from protocol.identity import EMBEDDING, PeerId
from protocol.net.tasks import Children
from protocol.outer.window import SKEW
from protocol.schemas import group_pb2 as pb

ORDER_SECONDS = 3.0
"""A leader that orders nothing for so long is waited for: between two orders there is no wait to tell of."""


class LeavingError(LostMemberError):
    """The user has asked this peer to go, in the middle of an inner loop."""


@dataclass(slots=True)
class Member:
    """A volunteer without a group, a standby, until a leader calls it."""

    here: StageRound
    group: GroupService
    attempt: Attempt | None = None
    seats: dict[int, Seat] | None = None

    async def serve(self) -> None:
        """Serve one leader after another, until the run is over."""
        group, outer = self.group, self.here.outer
        await self.here.take_up()
        group.ready = True
        while not (outer.over or outer.leaving):
            await self.here.follow(lambda: group.called or outer.leaving, self._wait_for_a_group)
            if outer.over or outer.leaving:
                break
            membership, reports = await group.wait_for_leader()
            await outer.discovery.publish(replica=membership.replica)
            try:
                await self._obey(membership, reports)
            except (LostMemberError, PeerError) as error:
                if outer.over or outer.leaving:
                    break
                if isinstance(error, BreachError):
                    outer.reconciler.bans.note(error.peer, error)
                outer.emit(GroupBroken(membership.replica, self.here.round, self.here.steps, str(error)))
                self.seats = None  # should the same peers form it again, that is told
                await self._dissolve(reports, str(error))
        group.close()
        await self.here.contribute()

    async def _dissolve(self, reports: Reports, reason: str) -> None:
        """The leader is gone, or lets this peer go: be free for another, and go on with it where this round was left.
        What there is of it is contributed when the others end the round, or at once if that is all."""
        reports.close()
        await self.here.abandon(reason)
        await self.here.outer.discovery.publish(replica="")
        if self.here.steps >= self.here.outer.manifest.inner.steps:
            await self.here.contribute()  # a leader that has to do this round again may call all the same

    async def _obey(self, membership: Membership, reports: Reports) -> None:
        """Do what a leader orders, until the run is over.

        Raises:
            LostMemberError: it is gone.
            BreachError: its orders make no sense.
        """
        reports.on_message = lambda said: self._notice(said)
        self.here.overdue = lambda seconds: self._watch(reports, seconds)
        rounds = self.here.outer.manifest.outer.rounds
        while not (self.here.outer.over or self.here.outer.leaving):
            order = await self._next_order(reports, PeerId(membership.replica))
            match order.WhichOneof("kind"):
                case "begin":
                    await self._begin(order.begin, membership, reports)
                case "go":
                    await self._train(order.go, reports)
                case "halt":
                    await self.here.abandon("the leader called the step off")
                    self._say_halted(order.halt.attempt, reports)
                case "end":
                    if order.end.round > rounds:
                        raise reports.breach(f"ended round {order.end.round} of {rounds}")
                    await self._finish_before(order.end.round + 1, reports)
                    reports.send(pb.Report(round_end=pb.RoundEnd(round=order.end.round)))
                case "release":
                    await self._release(membership, reports)
                    return
                case kind:
                    raise reports.breach(f"ordered {kind} where nothing of the kind was due")
        reports.close()

    async def _release(self, membership: Membership, reports: Reports) -> None:
        """Leave the group, as its leader wishes between two rounds: be free for another."""
        self.seats = None
        self.here.outer.emit(Released(membership.replica))
        await self._dissolve(reports, "the leader has released this peer")

    def _wait_for_a_group(self) -> Waiting:
        """The wait of this peer, which has no group."""
        outer, peers = self.here.outer, self.here.outer.discovery.peers()
        return waits.for_a_seat(peers, outer.discovery.record, outer.manifest, outer.begun)

    async def _next_order(self, reports: Reports, leader: PeerId) -> pb.Order:
        """What the leader orders next. It may have to wait for others: what a leaver offers meanwhile is taken, and the
        rounds that the others finish go on here, too, where the leader is slow to end them."""
        outer, handover = self.here.outer, self.here.handover
        news, asked = outer.discovery.news, monotonic()
        async with Children() as children:
            receiving = children.spawn(reports.receive())
            receiving.add_done_callback(lambda _: news.ring())
            while not receiving.done():
                if outer.over or outer.leaving:
                    reports.close()
                    raise LeavingError("this peer leaves")
                if not outer.begun or monotonic() - asked >= ORDER_SECONDS:
                    peers, me = outer.discovery.peers(), outer.discovery.record
                    wait = waits.for_orders(peers, me, outer.manifest, outer.begun, leader)
                    lost = outer.lost_state if monotonic() - asked >= LOST_SECONDS else None
                    outer.emit(lost or wait)
                if self._is_left_behind():
                    await self.here.finish(receiving.done)  # the leader may be the one whose contribution is awaited
                else:
                    await (handover.inherit() if handover.due else news.wait(1.0))
            return receiving.result()

    def _is_left_behind(self) -> bool:
        """Whether the others have finished the round that this peer works on, and nothing of it is in hand here; or
        have gone on so far that what is in hand would come too late if it waited longer for the leader's word. Not
        while its links are open: the leader has been told that this peer is ready."""
        outer = self.here.outer
        return self.here.pipeline is None and outer.others_at() >= outer.clock + (SKEW - 1 if self.here.steps else 0)

    def _notice(self, said: pb.Order | HetpeerError) -> None:
        """The leader has called the step off, or is gone: do not wait for neighbours."""
        if isinstance(said, HetpeerError) or said.WhichOneof("kind") == "halt":
            self.here.interrupt("the leader called the step off")

    def _watch(self, reports: Reports, seconds: float) -> None:
        """The step in flight has lasted so long. The leader has to find out why, and call it off: it has its own
        patience for the step, and for all to halt, and as much again."""
        if seconds >= 4 * self.here.pace.bound():
            error = reports.breach(f"neither ended an inner step in {seconds:.0f} s nor called it off")
            self.here.outer.reconciler.bans.note(reports.peer, error)
            reports.abort(str(error))

    def _say_halted(self, attempt: int, reports: Reports) -> None:
        reports.send(pb.Report(halted=pb.Halted(attempt=attempt, waited_for=self.here.waited_for)))

    async def _begin(self, order: pb.Begin, membership: Membership, reports: Reports) -> None:
        """Load a round, or go on with the one that is loaded, and open the links."""
        outer, stage = self.here.outer, self.here.trainer.index
        seats = {stage: Seat(PeerId(each.peer_id), each.address) for stage, each in enumerate(order.members)}
        if len(seats) != outer.manifest.replicas.stages or seats[stage].peer_id != outer.discovery.record.peer_id:
            raise reports.breach("gave our seat to another")
        if order.compression not in outer.manifest.compressions:
            raise reports.breach(f"began with d / k = {order.compression}, which this run does not have")
        inner = outer.manifest.inner
        if order.round > outer.manifest.outer.rounds or order.step > inner.steps_at_most:
            raise reports.breach(f"began round {order.round} at step {order.step}, which are none of this run")
        goal = order.goal or inner.steps
        if not inner.steps <= goal <= inner.steps_at_most:
            raise reports.breach(f"means to take {goal} inner steps in a round")
        await self._finish_before(order.round, reports)
        if outer.clock > order.round:
            reports.send(pb.Report(ready=pb.Ready(attempt=order.attempt, round=outer.clock)))
            return
        if self.here.round != order.round or order.embedding_digest not in ("", self.here.embedding_digest):
            await self._start_over(order.embedding_digest, PeerId(membership.replica))
        await self.here.load(order.round, order.step, order.compression, goal)
        if seats != self.seats:
            members, reason = [str(seat.peer_id) for seat in seats.values()], "its leader invited this peer"
            outer.emit(GroupFormed(membership.replica, membership.slot, members, reason))
        self.attempt, self.seats = Attempt(membership.replica, order.attempt), seats
        for beside in (stage - 1, stage + 1):
            if beside in seats and (objection := outer.reconciler.bans.objection(seats[beside].peer_id)):
                culprit = seats[beside].peer_id
                reports.send(pb.Report(broken=pb.Broken(attempt=order.attempt, reason=objection, culprit=culprit)))
                return
        self.here.open_links(self.attempt, seats)
        digest = self.here.embedding_digest
        ready = pb.Ready(attempt=order.attempt, embedding_digest=digest, round=order.round, step=self.here.steps)
        reports.send(pb.Report(ready=ready))

    async def _finish_before(self, round: int, reports: Reports) -> None:
        """Finish all rounds before this one.

        Raises:
            LeavingError: this peer is asked to go, or the run is over, before that.
            LostMemberError: the leader is gone, and has not contributed: another may need this peer for that.
        """
        outer = self.here.outer

        def is_lost() -> bool:
            if EMBEDDING in outer.followed.parts:
                here = reports.peer in outer.followed.parts[EMBEDDING].ledger.accepted.get(outer.clock, {})
            else:  # an uncompressed group's later stages follow nothing that their leader contributes to
                record = outer.discovery.records.get(reports.peer)
                here = record is not None and record.contributed >= outer.clock
            return reports.ended and not here

        while outer.clock < round and not outer.finished:
            if outer.over or outer.leaving:
                raise LeavingError("this peer leaves")
            if is_lost():
                raise LostMemberError(f"{reports.with_whom} is gone, and has not contributed to round {outer.clock}")
            await self.here.finish(is_lost)

    async def _start_over(self, embedding_digest: str, leader: PeerId) -> None:
        """To be loaded anew, from the token embedding that the leader has. What this stage has done from another is
        contributed."""
        outer = self.here.outer
        await self.here.contribute()
        if embedding_digest not in ("", outer.followed.digests.get(EMBEDDING)):
            await self.here.compare_with(leader)
            await outer.settle_part(EMBEDDING)

    async def _train(self, go: pb.Go, reports: Reports) -> None:
        """Inner steps until the round's end, or until the leader calls the step off."""
        attempt = go.attempt
        if self.attempt is None or self.seats is None or self.attempt.number != attempt:
            raise reports.breach(f"began attempt {attempt}, which is not ready")
        if not self.here.steps <= go.step < self.here.goal:
            raise reports.breach(f"began at step {go.step}, where {self.here.steps} are done")
        self.here.steps = go.step
        self.here.call_downstream(self.attempt, self.seats)
        try:
            while not (await self.here.step(None)).last:
                if self.here.outer.leaving:
                    raise LeavingError("this peer leaves")
        except LeavingError:
            await self.here.abandon("this peer leaves")
            reports.close()
            raise
        except BreachError as error:
            if error.peer == reports.peer:
                raise
            await self.here.abandon(str(error))
            self.here.outer.reconciler.bans.note(error.peer, error)
            reports.send(pb.Report(broken=pb.Broken(attempt=attempt, reason=str(error)[:200], culprit=error.peer)))
        except LostMemberError as error:
            if reports.ended:
                raise
            await self.here.abandon(str(error))
            reports.send(pb.Report(broken=pb.Broken(attempt=attempt, reason=str(error)[:200])))
