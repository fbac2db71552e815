"""A replica group from its leader's side: seats filled, rounds driven, a lost member replaced."""

import asyncio
import random
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal

from peer.network.duplex import BreachError
from peer.network.group import Attempt, Orders, Seat, lead, orders_to, report
from peer.swarm import waits
from peer.swarm.group.compression import Choice
from peer.swarm.group.plan import backoff_seconds, better_members, goes_first
from peer.swarm.group.seats import after, fill, pause
from peer.swarm.group.stage_round import RoundText, StageRound
from peer.swarm.group.stragglers import LATE, Accusations, held_up
from peer.swarm.rounds import round_policy
from peer.swarm.text_reader import Reader
from peer.telemetry.decisions import Waiting
from peer.telemetry.events import GroupBroken, GroupFormed
from peer.telemetry.group_decisions import CompressionChosen, Dismissed, MemberChanged
from protocol.clock import unix_time
from protocol.errors import HetpeerError, LostMemberError, PeerError
from protocol.identity import EMBEDDING, PeerId, ReplicaId
from protocol.net.tasks import Children
from protocol.schemas import group_pb2 as pb
from protocol.trust.records import PeerRecord

SILENT = "a member did not answer"

ANSWER_SECONDS = 60.0
"""A member that is alive has loaded a round, or settled it, in this time."""

TOLD_SECONDS = 3.0
"""A wait for a member's answer that has lasted so long is told."""

REGROUP_ROUNDS = 4
"""After the first round, and then after so many, groups look whether they would be quicker with others' members."""

REGROUP_SECONDS = 15.0
"""So long a leader waits for whom another one has to let go; then it takes whoever is free."""


@dataclass(slots=True)
class Leader:
    """Stage 0 of a group. `seats` and `orders` are those of the members that are there, by stage."""

    here: StageRound
    reader: Reader
    choice: Choice
    seats: dict[int, Seat] = field(default_factory=dict)
    orders: dict[int, Orders] = field(default_factory=dict)
    attempt: int = 0
    announced: list[str] = field(default_factory=list)
    accusations: Accusations = field(default_factory=Accusations)
    wished: dict[int, PeerRecord] = field(default_factory=dict)
    """Whom it shall have at some stages from the next round on: now members of other groups."""
    late: PeerId | None = None
    """Whom this stage waited for when the step in flight had lasted too long."""

    @property
    def replica(self) -> ReplicaId:
        """A replica is named after its leader."""
        return ReplicaId(self.here.outer.discovery.record.peer_id)

    @property
    def _complete(self) -> bool:
        """Whether every other stage has a member."""
        return len(self.seats) == self.here.outer.manifest.replicas.stages - 1

    async def serve(self) -> None:
        """Lead a group through all rounds."""
        outer, failures = self.here.outer, 0
        self.here.overdue = self._watch
        await self.here.take_up()
        while outer.contributed and not (outer.over or self.here.outer.leaving):
            await self.here.finish()  # without doing a round twice
        while True:
            try:
                if not await self._fill_seats():
                    break
                if await self._begin():
                    await self._inner_loop()
                    failures = 0
                    await self._end_round()
                    continue
            except (LostMemberError, PeerError, TimeoutError) as error:
                self.here.outer.emit(GroupBroken(self.replica, self.here.round, self.here.steps, str(error) or SILENT))
                self.announced = []  # should the same peers form it again, that is told
                if isinstance(error, BreachError):
                    self._dismiss(error)
                await self._halt(str(error) or SILENT)
                if not self.here.steps:  # nobody should wait for a broken group that has done nothing yet in this round
                    await outer.discovery.publish(replica="")
            await pause(outer.discovery.news, failures)
            failures += 1
        await self.here.contribute()
        for stream in self.orders.values():
            stream.close()

    async def _fill_seats(self) -> bool:
        """Until every stage has a member; False: the run is over, or this peer leaves. The rounds of the others go on
        meanwhile, and so do ours."""
        outer, attempt = self.here.outer, 0
        wished = self._regroup()
        is_over = after(REGROUP_SECONDS if wished else 0.0)
        while not (outer.over or outer.leaving):
            wished = {} if is_over() else wished
            self._forget_the_lost()
            if self._complete:
                return True
            await self.here.handover.inherit()
            if not wished and self._goes_first():
                for stream in self.orders.values():
                    stream.abort("another group goes first")
                self._forget_the_lost()
            else:
                for stage, seat in (await fill(outer.reconciler, self.seats, attempt, wished)).items():
                    self._call(stage, seat)
            if self._complete:
                return True
            outer.emit(self._wait_for_members())
            if self.here.round and outer.late(self.here.round, self.here.steps):
                await self._end_round()
            elif not self.here.round:
                patience = backoff_seconds(attempt, random.uniform(0.5, 1.5))
                done = await outer.wait_for_others(outer.clock, after(patience), self._wait_for_members)
                if done and not outer.leaving:
                    await self._end_round()
            else:
                await outer.discovery.news.wait(backoff_seconds(attempt, random.uniform(0.5, 1.5)))
            attempt += 1
        return False

    def _look_for_better_members(self, round: int) -> None:
        """Before this peer contributes to a round: whom it shall have after it. Nobody changes members before all that
        are waited for have contributed, so all leaders see the same groups. Where all take H steps it is the slowest
        group that counts, which no change of members makes quicker."""
        outer = self.here.outer
        if (round + 1) % REGROUP_ROUNDS == 2 and self._complete and outer.manifest.inner.most_steps:
            mine = {stage: seat.peer_id for stage, seat in self.seats.items()}
            me, stages = outer.discovery.record, outer.manifest.replicas.stages
            self.wished = better_members(outer.discovery.peers(), me, stages, mine)

    def _regroup(self) -> dict[int, PeerRecord]:
        """Between two rounds: let those members go whom another group needs more, as all leaders do at once. Returns
        who is to come for them, from other groups, which let them go."""
        wished, self.wished = self.wished, {}
        for stage, peer in wished.items():
            if stage in self.seats and self.seats[stage].peer_id != peer.peer_id:
                stream, seat = self.orders.pop(stage), self.seats.pop(stage)
                self.here.outer.emit(MemberChanged(seat.peer_id, peer.peer_id, stage, self.here.outer.clock))
                stream.send(pb.Order(release=pb.Release()))
                stream.close()
        return wished

    def _goes_first(self) -> PeerId | None:
        """The leader of another group, which is to be filled before this one; None: no other is."""
        outer = self.here.outer
        peers, me, stages = outer.discovery.peers(), outer.discovery.record, outer.manifest.replicas.stages
        return goes_first(peers, me, stages, self.seats, unix_time())

    def _wait_for_members(self) -> Waiting:
        """The wait of this peer for members at the stages that have none."""
        outer, peers = self.here.outer, self.here.outer.discovery.peers()
        missing = set(range(1, outer.manifest.replicas.stages)) - self.seats.keys()
        me, begun = outer.discovery.record, outer.begun
        if outer.lost_state:
            return outer.lost_state
        if first := self._goes_first():
            return waits.for_a_group_that_goes_first(first)
        return waits.for_members(peers, me, outer.manifest, begun, missing)

    def _call(self, stage: int, seat: Seat) -> None:
        """Open the control stream to a member."""
        stream = orders_to(stage, seat)
        stream.on_message = lambda said: self._notice(stage, said)
        self.seats[stage], self.orders[stage] = seat, stream
        self.here.tasks.create_task(lead(seat, self.replica, self.here.outer.reconciler.contacts, stream))

    def _notice(self, stage: int, said: pb.Report | HetpeerError) -> None:
        """A member is gone, or misses a neighbour: nobody should wait for anybody."""
        if isinstance(said, HetpeerError):
            self.here.interrupt(str(said))
        elif said.WhichOneof("kind") == "broken":
            self._hear(stage, said.broken)
            self.here.interrupt(said.broken.reason[:200])

    def _hear(self, stage: int, said: pb.Broken) -> None:
        """The member of a stage may say that its neighbour broke the protocol. Who says so of a second one goes."""
        accuser = self.seats[stage].peer_id if stage in self.seats else None
        beside = {self.seats[each].peer_id for each in (stage - 1, stage + 1) if each in self.seats}
        if accuser is not None and said.attempt == self.attempt and said.culprit in beside:
            culprit = self.accusations.weigh(accuser, PeerId(said.culprit))
            self._dismiss(BreachError(culprit, f"peer {accuser[-8:]} says of its neighbour: {said.reason[:200]}"))

    def _watch(self, seconds: float) -> None:
        """The step in flight has lasted so long: too long, if others are waited for."""
        if seconds >= self.here.pace.bound() and (waits_for := self.here.waits_for) is not None:
            self.late = waits_for
            self.here.interrupt(f"an inner step has not ended in {seconds:.0f} s")

    def _dismiss(self, error: BreachError) -> None:
        """Hang up on a member, and do not invite it again as long as it is avoided."""
        self.here.outer.emit(Dismissed(error.peer, self.here.round, self.here.steps, str(error)))
        self.here.outer.reconciler.bans.note(error.peer, error)
        for stream in self.orders.values():
            if stream.peer == error.peer:
                stream.abort(str(error))

    def _forget_the_lost(self) -> None:
        for stage in [stage for stage, stream in self.orders.items() if stream.ended]:
            del self.seats[stage], self.orders[stage]

    async def _begin(self) -> bool:
        """All members load the round and open their links; False if they do not all hold the same, and have to meet
        first.

        Raises:
            LostMemberError, BreachError, TimeoutError: one does not.
        """
        outer = self.here.outer
        seats = {0: Seat(outer.discovery.record.peer_id, outer.discovery.record.address), **self.seats}
        await self._announce(seats)
        self.attempt += 1
        await self.here.load(self.here.round or outer.clock, self.here.steps, self.choice.current)
        attempt = Attempt(self.replica, self.attempt)
        self.here.open_links(attempt, seats)
        self._order(pb.Order(begin=self._begin_order(seats)))
        different: list[tuple[int, int]] = []
        furthest = self.here.steps
        async with asyncio.timeout(ANSWER_SECONDS):
            for stage, stream in sorted(self.orders.items()):
                ready = (await self._answer(stage, stream, "ready", self.here.round)).ready
                if ready.round != self.here.round or ready.embedding_digest != self.here.embedding_digest:
                    different.append((stage, ready.round))
                if ready.step > outer.manifest.inner.steps_at_most:
                    raise stream.breach(f"says that it has {ready.step} inner steps behind it, more than a round has")
                furthest = max(furthest, ready.step)
        if different:
            await self._meet(different)
            return False
        if furthest >= self.here.goal:
            await self._halt("a member has done the round's last step")
            await self._end_round()
            return False
        self.here.steps = furthest
        self._order(pb.Order(go=pb.Go(attempt=self.attempt, step=furthest)))
        self.here.call_downstream(attempt, seats)
        return True

    async def _answer(self, stage: int, stream: Orders, kind: Literal["ready", "round_end"], round: int) -> pb.Report:
        """What the member of a stage reports of a round. A wait for it that lasts is told.

        Raises:
            LostMemberError, BreachError: it is gone, or reports something else.
        """
        async with Children() as children:
            answering = children.spawn(report(stream, kind))
            await asyncio.wait((answering,), timeout=TOLD_SECONDS)
            if not answering.done():
                self.here.outer.emit(waits.for_a_member(stream.peer, stage, round, ended=kind == "round_end"))
            return await answering

    async def _announce(self, seats: Mapping[int, Seat]) -> None:
        """Tell who is in the group. A run begins when all the replicas of its manifest have formed.

        Raises:
            LostMemberError: a member leaves before.
        """
        outer, members = self.here.outer, [str(seat.peer_id) for _, seat in sorted(seats.items())]
        if members != self.announced:
            self.announced = members
            outer.emit(
                GroupFormed(self.replica, outer.discovery.record.slot, members, "each other stage has a volunteer now")
            )
            await outer.discovery.publish(replica=self.replica)
        while not (outer.begun or outer.over or outer.leaving):
            outer.emit(waits.for_the_beginning(outer.discovery.peers(), outer.manifest))
            if any(stream.ended for stream in self.orders.values()):
                raise LostMemberError("a member left before the run began")
            await outer.discovery.news.wait(1.0)

    def _begin_order(self, seats: Mapping[int, Seat]) -> pb.Begin:
        return pb.Begin(
            attempt=self.attempt,
            round=self.here.round,
            step=self.here.steps,
            members=[pb.Member(peer_id=seat.peer_id, address=seat.address) for _, seat in sorted(seats.items())],
            embedding_digest=self.here.embedding_digest,
            compression=self.here.compression,
            goal=self.here.goal,
        )

    async def _meet(self, different: list[tuple[int, int]]) -> None:
        """Some members, (stage, round), are ahead of us, or hold what we have not: take it from them. An inner loop
        that has begun ends with what it has."""
        await self._halt("the members do not hold the same state yet")
        for stage, _ in different:
            if stage in self.seats:
                await self.here.compare_with(self.seats[stage].peer_id)
        outer, rounds = self.here.outer, [round for _, round in different]
        if round_policy.is_nobodys(outer.discovery.record, rounds, outer.discovery.others()):
            outer.nobodys = outer.clock
        if self.here.steps or any(round > outer.clock for round in rounds):
            await self._end_round()
        else:
            await outer.settle_part(EMBEDDING)
            self.here.round = 0

    async def _inner_loop(self) -> None:
        """Inner steps until the round's end.

        Raises:
            LostMemberError: a member is gone.
        """
        source, last = RoundText(self.here, self.reader), False
        while not last:
            taken = await self.here.step(source)
            self.choice.note(taken.seconds, taken.sums.passes)
            last = taken.last

    async def _end_round(self) -> None:
        """Contribute, finish, and see that the members have."""
        round = self.here.round or self.here.outer.clock
        self._look_for_better_members(round)
        self._order(pb.Order(end=pb.End(round=round)))
        if chosen := self.choice.decide():
            self.here.outer.emit(CompressionChosen(self.choice.current, chosen))
        await self.here.finish()
        if self.here.outer.told_over or self.here.outer.leaving:
            return
        async with asyncio.timeout(ANSWER_SECONDS):
            for stage, stream in sorted(self.orders.items()):
                with suppress(LostMemberError):
                    await self._answer(stage, stream, "round_end", round)

    async def _halt(self, reason: str) -> None:
        """Roll back the inner step in flight, here and at all members that are left. A member halts when its pass over
        a microbatch ends, which takes less than a step may; where the step took too long, patience is over sooner."""
        patience = self.here.pace.bound() / (1 if self.late is None else LATE)
        await self.here.abandon(reason)
        self._order(pb.Order(halt=pb.Halt(attempt=self.attempt)))
        waited_for = {stream.peer: PeerId("") for stream in self.orders.values()}
        for stream in self.orders.values():
            try:
                async with asyncio.timeout(min(ANSWER_SECONDS, patience)):
                    while (halted := (await stream.receive()).halted).attempt != self.attempt:
                        pass
                waited_for[stream.peer] = PeerId(halted.waited_for)
            except HetpeerError:
                stream.abort("it did not halt")
            except TimeoutError:
                self._dismiss(stream.breach("did not halt"))
        self._hold_to_account(waited_for)
        self._forget_the_lost()

    def _hold_to_account(self, waited_for: Mapping[PeerId, PeerId]) -> None:
        """Dismiss whoever has held the step up that was called off, if it lasted too long."""
        first, self.late = self.late, None
        if first is not None:
            accuser, culprit = held_up(first, waited_for)
            if all(stream.peer != culprit or stream.ended for stream in self.orders.values()):
                return  # it is gone, and that was why
            culprit = culprit if accuser is None else self.accusations.weigh(accuser, culprit)
            self._dismiss(BreachError(culprit, f"peer {culprit[-8:]} held its group up"))

    def _order(self, order: pb.Order) -> None:
        for stream in self.orders.values():
            stream.send(order)
