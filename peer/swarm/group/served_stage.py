"""A volunteer's stage in one group after another: it takes its seat, agrees on a round with the stages beside it,
trains, and contributes.

No stage leads. The first one reads the text and offers each round; what is offered goes from stage to stage, and the
answers come back. Whoever finds a neighbour lost hangs up on the other one, too, so all learn that the group is broken,
are free, and seat themselves anew.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from peer.network.duplex import BreachError
from peer.swarm import waits
from peer.swarm.group.agreement import Agreement, SilentError
from peer.swarm.group.compression import KController
from peer.swarm.group.plan import better_group
from peer.swarm.group.seats import GroupSeats, pause_before_regrouping
from peer.swarm.group.slow_members import SlowMembers
from peer.swarm.group.spot_checks import SpotChecking
from peer.swarm.group.stage_round import LeavingError, RoundText, StageRound
from peer.swarm.group.stragglers import patience_with
from peer.swarm.rounds.outer_round import OuterLoop
from peer.swarm.rounds.round_end import wait_for_round
from peer.swarm.text_reader import Reader
from peer.telemetry.decisions import Waiting
from peer.telemetry.events import GroupBroken, GroupFormed
from peer.telemetry.group_decisions import CompressionChosen, Dismissed, MemberChanged, Released
from protocol.codec.seating import OfferFrame
from protocol.errors import HetpeerError, LostMemberError, PeerError
from protocol.identity import PeerId, ReplicaId
from protocol.net.tasks import Children

REGROUP_ROUNDS = 4
"""The number of rounds, after the first, between two looks at whether groups with other members would be quicker."""


@dataclass(slots=True)
class ServedStage:
    """One stage, and who sits beside it. `reader` and `k_controller` are the first stage's."""

    stage_round: StageRound
    seats: GroupSeats
    reader: Reader | None = None
    k_controller: KController | None = None
    agreement: Agreement = field(init=False)
    slow_members: SlowMembers = field(init=False)
    offer: OfferFrame | None = None
    """The last offer that this group has agreed on."""
    announced_members: tuple[PeerId, ...] = ()
    """The group that was told of last; empty: none, or it is broken."""

    def __post_init__(self) -> None:
        """No group has formed."""
        self.agreement = Agreement(self.stage_round, self.seats, self.k_controller)
        self.slow_members = SlowMembers(self.outer, self.seats)

    @property
    def outer(self) -> OuterLoop:
        """The outer rounds of this peer."""
        return self.stage_round.outer

    @property
    def is_first(self) -> bool:
        """Whether this is the first stage."""
        return self.stage_round.trainer.index == 0

    @property
    def _ends(self) -> bool:
        return self.outer.over or self.outer.leaving

    async def serve(self) -> None:
        """Train in one group after another, until the run is over or this peer leaves."""
        self.stage_round.overdue, failures = self._watch, 0
        await self.stage_round.resume_from_checkpoint()
        while self.is_first and self.outer.contributed and not self._ends:
            await self.stage_round.finish()  # without doing a round twice
        self.seats.open = True
        while not self._ends:
            try:
                await self._take_seats()
                while not self._ends and self.seats.replica:
                    if await self._agree():
                        await self._train()
                        failures = 0
                    elif not self.agreement.is_over:
                        failures = await self._pause(failures)
                        continue
                    await self._end_round()
            except (LostMemberError, PeerError) as error:
                if self._ends:
                    break
                await self._break_up(error)
                failures = await self._pause(failures)
        await self.stage_round.abandon("this peer leaves")
        self.seats.close()
        await self.stage_round.contribute()

    async def _pause(self, failures: int) -> int:
        """Pause before the first stage tries again, after so many failures in a row. Returns the new number of
        failures."""
        if self.is_first and failures:
            await pause_before_regrouping(self.outer.discovery.news, failures)
        return failures + 1

    # Seats

    async def _take_seats(self) -> None:
        """Wait until the group is whole. The rounds of the others go on meanwhile, and so do ours.

        Raises:
            LostMemberError: the stage before is gone, meanwhile.
        """
        outer, seats = self.outer, self.seats
        if self.is_first:
            seats.replica = ReplicaId(outer.discovery.record.peer_id)
            self.agreement.attempts += 1
        else:
            await self.stage_round.follow(lambda: seats.is_called or outer.leaving, self._wait_for_a_group)
            if self._ends:
                return
            seats.sit_down()
            await outer.discovery.publish(replica=seats.replica)
        async with Children() as children:
            filling = children.spawn(seats.fill())
            filling.add_done_callback(lambda _: outer.discovery.news.ring())
            if self.is_first:
                await self._fill_as_first(filling.done)
            else:
                await self.stage_round.follow(
                    lambda: filling.done() or seats.before_is_gone or outer.leaving, self._wait_for_members
                )
            if filling.done():
                filling.result()
        seats.require_neighbours()
        if self.is_first and not self._ends:
            await self._announce()

    async def _fill_as_first(self, filled: Callable[[], bool]) -> None:
        """Go through the rounds of the others, until there are members."""
        outer = self.outer
        while not (filled() or self._ends):
            await self.stage_round.handover.accept_handover()
            outer.emit(self._wait_for_members())
            if self.stage_round.round and outer.late(self.stage_round.round, self.stage_round.steps):
                await self.agreement.finish(self.stage_round.round)
            elif self.stage_round.round:
                await outer.discovery.news.wait(1.0)
            elif (
                await wait_for_round(
                    outer,
                    outer.clock,
                    lambda: filled() or self.stage_round.handover.has_offer or outer.leaving,
                    self._wait_for_members,
                )
                or outer.is_behind
            ):
                await self.agreement.finish(outer.clock)

    async def _announce(self) -> None:
        """Tell that a replica has formed. A run begins when all the replicas of its manifest have.

        Raises:
            LostMemberError: a member leaves before.
        """
        outer, members = self.outer, self.seats.members
        self._tell_formed(members, outer.discovery.record.slot, "each other stage has a volunteer now")
        await outer.discovery.publish(replica=self.seats.replica)
        while not (outer.begun or self._ends):
            outer.emit(waits.for_the_beginning(outer.discovery.peers(), outer.manifest))
            self.seats.require_neighbours()
            await outer.discovery.news.wait(1.0)

    def _tell_formed(self, members: tuple[PeerId, ...], slot: int, reason: str) -> None:
        if members != self.announced_members:
            self.announced_members = members
            self.outer.emit(GroupFormed(self.seats.replica, slot, [*map(str, members)], reason))

    async def _break_up(self, error: HetpeerError) -> None:
        """The group is broken: be free for another, and go on in it where this round was left. What there is of the
        round is contributed when the others end it, or at once if that is all."""
        outer, reason = self.outer, str(error)
        if isinstance(error, BreachError):
            self._dismiss(error)
        if self.announced_members:
            outer.emit(GroupBroken(self.seats.replica, self.stage_round.round, self.stage_round.steps, reason))
        self.announced_members, self.offer = (), None  # should the same peers form it again, that is told
        self.slow_members.group_broken()
        if isinstance(error, SilentError):
            self.seats.note_silence(error.peer)
        if self.stage_round.pipeline is not None:  # else what has been said of the last step still goes out
            self.seats.hang_up(reason)
        await self.stage_round.abandon(reason)
        self.seats.leave()
        if not (self.is_first and self.stage_round.steps):  # nobody should wait for what is not to come
            await outer.discovery.publish(replica="")
        if not self.is_first and self.stage_round.steps >= outer.manifest.inner.steps:
            await self.stage_round.contribute()  # a group that has to do this round again may call all the same

    def _dismiss(self, error: BreachError) -> None:
        """Do not talk to a neighbour for a while."""
        self.outer.emit(Dismissed(error.peer, self.stage_round.round, self.stage_round.steps, str(error)))
        self.outer.reconciler.bans.note(error.peer, error)

    # Rounds

    async def _agree(self) -> bool:
        """Agree with the others of the group on a round; whether there is something to train in it. Raises as
        `Agreement.reach` does."""
        offer = await self.agreement.reach()
        if offer is None:
            return False
        self.offer = offer
        self._tell_formed(offer.members, offer.slot, "the stage before it called this peer")
        return True

    async def _train(self) -> None:
        """Inner steps until the round's end.

        Raises:
            LostMemberError, BreachError: a neighbour is gone, or broke the protocol, or is slow while another
                volunteer of its stage is free.
        """
        stage_round = self.stage_round
        source, last = (
            RoundText(stage_round, self.reader) if self.reader is not None else None,
            stage_round.steps >= stage_round.goal,
        )
        with self._checking() as checks:
            while not last:
                self.slow_members.require_quick()
                outcome = await stage_round.step(source)
                checks.step_taken(stage_round.steps)
                if self.k_controller is not None:
                    self.k_controller.note(outcome.seconds, outcome.sums.passes)
                last = outcome.last
                if stage_round.times is not None and self.offer is not None:
                    self.slow_members.step_taken(self.offer, stage_round.step_kind, stage_round.times)
                if self.outer.leaving and not last:
                    raise LeavingError("this peer leaves")
        stage_round.end_steps()

    @contextmanager
    def _checking(self) -> Iterator[SpotChecking]:
        """Check at random what the neighbours send in the inner loop of this block."""
        pipeline = self.stage_round.pipeline
        assert pipeline is not None
        assert pipeline.received is not None
        neighbours = pipeline.upstream, pipeline.downstream
        checks = SpotChecking(
            self.outer, pipeline.received, self.stage_round.round, *neighbours, self._part, self.seats.tasks
        )
        try:
            yield checks
        finally:
            checks.end()

    def _part(self, error: BreachError | LostMemberError) -> None:
        """Part from the group in the midst of an inner step. Who broke the protocol is not talked to for a while."""
        if isinstance(error, BreachError):
            self._dismiss(error)
        self.seats.hang_up(str(error))

    def _watch(self, seconds: float) -> None:
        """The inner step in flight has lasted so long: too long, if a neighbour is waited for."""
        waits_for = self.stage_round.waits_for
        if waits_for is None or self.offer is None:
            return
        side = len(self.seats.behind) if waits_for is self.seats.downstream else self.stage_round.trainer.index
        if seconds >= patience_with(self.stage_round.pace.bound_in(self.offer.patience), side):
            self._part(waits_for.breach(f"held its group up: an inner step has not ended in {seconds:.0f} s"))

    async def _end_round(self) -> None:
        """Contribute, finish the round, and see whether groups change members."""
        round = self.stage_round.round or self.outer.clock
        better = self._better_group(round)
        if self.k_controller is not None and (chosen := self.k_controller.decide()):
            self.outer.emit(CompressionChosen(self.k_controller.current, chosen))
        await self.agreement.finish(round)
        if better is not None and not self._ends:
            await self._regroup(better)

    def _better_group(self, round: int) -> list[PeerId] | None:
        """Return the group in which this peer shall be after this round, decided before it contributes; None: the
        present one. Nobody changes groups before all expected contributions are in, so all peers see the same groups.
        Where all take H steps the slowest group decides how long a round takes, and no change makes it quicker."""
        outer = self.outer
        if (round + 1) % REGROUP_ROUNDS != 2 or not outer.manifest.inner.most_steps or self.offer is None:
            return None
        me, stages = outer.discovery.record, outer.manifest.replicas.stages
        better = better_group(outer.discovery.peers(), me, stages)
        return None if better is None or tuple(better) == self.offer.members else [*better]

    async def _regroup(self, better: list[PeerId]) -> None:
        """Leave this group between two rounds, for one that suits better."""
        assert self.offer is not None
        outer, stage, members = self.outer, self.stage_round.trainer.index, self.offer.members
        behind = better[stage + 1] if better and stage + 1 < len(members) else None
        if behind is not None and behind != members[stage + 1]:
            outer.emit(MemberChanged(members[stage + 1], behind, stage + 1, outer.clock))
        if stage and (not better or better[stage - 1] != members[stage - 1]):
            outer.emit(Released(self.seats.replica))
        self.announced_members, self.offer = (), None
        self.seats.leave()
        self.seats.wait_for(behind)
        if not self.is_first:
            await outer.discovery.publish(replica="")

    # Waits

    def _wait_for_a_group(self) -> Waiting:
        outer = self.outer
        return waits.for_a_seat(outer.discovery.peers(), outer.discovery.record, outer.manifest, outer.begun)

    def _wait_for_members(self) -> Waiting:
        """The wait of this peer for members at the stages behind it that have none."""
        outer, peers, me = self.outer, self.outer.discovery.peers(), self.outer.discovery.record
        if outer.lost_state:
            return outer.lost_state
        missing = range(me.stage + len(self.seats.members), outer.manifest.replicas.stages)
        if not missing:
            return self.agreement.wait()
        return waits.for_members(peers, me, outer.manifest, outer.begun, missing)
