"""A stage of a group on its way through the rounds: its weights, its inner steps, its contribution."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from peer.compute.calibration import rounded_speed
from peer.compute.fitting import microbatches_that_fit
from peer.compute.trainer import StageTrainer
from peer.data.batches import Batch
from peer.network.group import Attempt, Link
from peer.network.receipt_exchange import ReceiptCollector
from peer.swarm import waits
from peer.swarm.group.handover import Handover
from peer.swarm.group.inner_step import PipelineStage, Source, StepTaken
from peer.swarm.group.slowness import TOLERANCE, StepKind, StepTimes
from peer.swarm.group.spot_checks import Received
from peer.swarm.group.stragglers import StepPace
from peer.swarm.rounds.catch_up import agree
from peer.swarm.rounds.outer_round import OuterLoop
from peer.swarm.rounds.round_end import finish_round, wait_for_round
from peer.swarm.text_reader import Reader
from peer.telemetry.decisions import EndedEarly, Waiting
from peer.telemetry.events import RoundDone, StepDone
from protocol.clock import monotonic
from protocol.codec.frames import FrameRules
from protocol.codec.spot_check import group_digest
from protocol.errors import LostMemberError
from protocol.identity import EMBEDDING, PeerId
from protocol.net.blobs import BlobService
from protocol.outer.data_plan import Spans

STEP_POLL_SECONDS = 1.0
"""The interval at which a step, or the wait for a round's offer, is checked, in seconds."""

LONG_STEP_SECONDS = 10.0
"""A step that has lasted so long is worth a word about whom it waits for."""


class LeavingError(LostMemberError):
    """This peer is asked to go, or the run is over, in the middle of a round."""


@dataclass(slots=True)
class StageRound:
    """One stage on its way through the rounds.

    `round` is the one its weights were loaded for, 0 before the first; `steps` of its inner steps are behind it, of
    which this stage took `own_steps` itself: those from before it joined the group are others'.
    """

    outer: OuterLoop
    trainer: StageTrainer
    handover: Handover
    blobs: BlobService
    receipt_collector: ReceiptCollector
    max_memory: int | None = None
    """Bytes that this peer may use; None: what there is."""
    round: int = 0
    steps: int = 0
    own_steps: int = 0
    share: Spans = ()
    """The text that stage 0 reads in this round: a chunk for each of its own steps."""
    goal: int = 0
    """The inner steps that the group means to take in this round."""
    compression: int = 1
    """d / k of the frames of this round."""
    digests: dict[str, str] = field(default_factory=dict)
    """The digests of the outer state that the stage was loaded from, by part."""
    pipeline: PipelineStage | None = None
    attempt: Attempt | None = None
    """The attempt of the group that it is in."""
    bytes_sent: int = 0
    """Over all links, until the last inner loop ended."""
    depth: int = 0
    """Microbatches in flight that the last links needed."""
    pace: StepPace = field(default_factory=StepPace)
    times: StepTimes | None = None
    """The times of the last inner step."""
    overdue: Callable[[float], None] = lambda seconds: None
    """Is told, again and again, for how long the step in flight has lasted."""
    started: float = field(default_factory=monotonic)

    async def load(self, round: int, steps: int, compression: int, goal: int | None = None) -> None:
        """Start a round from the outer state, or go on with what this stage has of it; `steps` of its inner steps are
        done by others. Frames have d / `compression` numbers a token. `goal` is the first stage's; None: this is it."""
        if self.round != round or self.trainer.index > 0:  # what stage 0 trains in a round follows from k
            self.compression = compression
            await self.outer.followed.torch_thread.run(self.trainer.compress, compression, self.outer.followed.grids)
        if self.round != round:
            ahead = await self.outer.followed.ahead(round)
            await self.outer.followed.torch_thread.run(self.trainer.load, self.outer.followed.grids, ahead)
            self.round, self.steps, self.own_steps = round, 0, 0
            if self.trainer.index == 0:
                self.share, self.goal = self.outer.workload.begin(round), self.outer.workload.goal
            self.digests = self.outer.followed.digests
            self.started = monotonic()
        self.steps, self.goal = max(self.steps, steps), goal or self.goal

    @property
    def embedding_digest(self) -> str:
        """The digest of the token embedding that all stages must hold; empty if they need none."""
        return self.digests.get(EMBEDDING, "") if self.outer.manifest.compressed else ""

    def group_digest(self, behind: str) -> str:
        """Over the outer state that this stage begins the round from, and `behind`, what those behind it do."""
        return group_digest(self.digests, self.outer.manifest, self.trainer.index, behind)

    async def compare_with(self, peer: PeerId) -> None:
        """Take from another member what it has and this peer has not."""
        discovery = self.outer.discovery
        if peer in discovery.records:
            await self.outer.reconciler.compare(discovery.records[peer])

    def open_pipeline(self, attempt: Attempt, upstream: Link | None, downstream: Link | None) -> None:
        """Make ready for the inner steps of the round that is loaded, over the links to the neighbours."""
        self.attempt = attempt
        manifest, stage = self.outer.manifest, self.trainer.index
        self.pipeline = PipelineStage(
            self.trainer,
            self.outer.followed.torch_thread,
            FrameRules.of(manifest.at(self.compression)),
            upstream,
            downstream,
            embedding_digest=self.embedding_digest or "00" * 32,
            room=microbatches_that_fit(
                manifest, stage, self.trainer.device, self.max_memory, self.trainer.arithmetic.recompute
            ),
            depth=self.depth,
            goal=self.goal,
            received=Received(manifest.at(self.compression), stage),
        )

    def start(self, step: int, group_digest: str) -> None:
        """All stages have agreed: begin at this inner step, from the outer state of this digest."""
        assert self.pipeline is not None
        assert self.pipeline.received is not None
        self.steps, self.pipeline.received.group_digest = step, group_digest

    @property
    def step_kind(self) -> StepKind:
        """The kind of the last inner step."""
        return self.compression, self.outer.manifest.inner.overlap > 0 and self.steps == 1

    @property
    def waits_for(self) -> Link | None:
        """The link to the neighbour whose frame is due."""
        return self.pipeline.waiting if self.pipeline is not None else None

    async def step(self, source: Source | None) -> StepTaken:
        """One inner step of this stage; `source` is stage 0's.

        Raises:
            LostMemberError, BreachError: somebody is gone, or broke the protocol; `abandon` before anything else.
        """
        assert self.pipeline is not None
        await self.handover.accept_handover()
        self.outer.reconciler.contacts.bandwidth.begin_steps()
        with self._watched():
            outcome = await self.pipeline.run(self.round, self.steps, source)
        seconds = self.pace.seconds[-1]
        waited = min(seconds, self.pipeline.waited_before), min(seconds, self.pipeline.waited_behind)
        self.times = StepTimes(seconds, *waited, outcome.sums.passes)
        self.outer.emit(StepDone(self.round, self.steps, outcome.sums.loss, self.outer.manifest.tokens_per_step))
        self._note_exchange()
        self._tell_another_speed()
        self.steps += 1
        self.own_steps += 1
        self.outer.record_arrivals()
        return outcome

    def _note_exchange(self) -> None:
        """A step was taken: every microbatch of it has gone over both links, there and back."""
        assert self.pipeline is not None
        assert self.attempt is not None
        beside = (self.pipeline.upstream, self.trainer.index - 1), (self.pipeline.downstream, self.trainer.index + 1)
        for link, stage in beside:
            if link is not None:
                self.receipt_collector.seen.exchange(self.round, link.peer, stage, self.attempt)

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """A step, looked at while it lasts. Looks are counted, as no clock tells how long the machine stood still."""
        loop = asyncio.get_running_loop()
        began, looks = loop.time(), 0
        looking = loop.call_later(STEP_POLL_SECONDS, lambda: look())

        def look() -> None:
            nonlocal looking, looks
            looking, looks = loop.call_later(STEP_POLL_SECONDS, look), looks + 1
            if looks * STEP_POLL_SECONDS >= LONG_STEP_SECONDS:
                self._tell_a_long_step()
            self.overdue(looks * STEP_POLL_SECONDS)

        try:
            yield
        finally:
            looking.cancel()
        self.pace.remember(min(loop.time() - began, (looks + 1) * STEP_POLL_SECONDS))

    def _tell_a_long_step(self) -> None:
        """Say whom a step waits for, if that is not this peer itself."""
        assert self.pipeline is not None
        if self.pipeline.waiting is not None:
            stage = self.trainer.index + (1 if self.pipeline.waiting is self.pipeline.downstream else -1)
            self.outer.emit(waits.for_a_neighbour(self.pipeline.waiting.peer, stage, self.steps))

    async def abandon(self, reason: str) -> None:
        """Hang up on the neighbours, and roll back the inner step in flight."""
        if self.pipeline is not None:
            await self.pipeline.abandon(reason)
            self.end_steps()
        self.receipt_collector.ask_soon()

    def end_steps(self) -> None:
        """The inner loop is over: every frame has arrived, or no step would have ended."""
        self.outer.reconciler.contacts.bandwidth.end_steps()
        if self.pipeline is not None:
            for link in (self.pipeline.upstream, self.pipeline.downstream):
                if link is not None:
                    self.bytes_sent, link.bytes_sent = self.bytes_sent + link.bytes_sent, 0
            self.depth = self.pipeline.depth
            if self.pipeline.speed:
                self.outer.discovery.update_record(tokens_per_second=rounded_speed(self.pipeline.speed))
        self.pipeline = None

    def _tell_another_speed(self) -> None:
        """Let the record say soon that this stage's own passes are slower or quicker than it says: else the stage
        before this one could be taken for the slow one."""
        assert self.pipeline is not None
        speed, before = self.pipeline.speed, self.outer.discovery.record.tokens_per_second
        if not before / (1 + TOLERANCE) <= speed <= before * (1 + TOLERANCE):
            self.outer.discovery.update_record(tokens_per_second=rounded_speed(speed))

    async def resume_from_checkpoint(self) -> None:
        """Go on as this peer's folder has it, with the optimizer's state."""
        await self.outer.followed.torch_thread.run(self.trainer.load_optimizer, self.outer.optimizer)
        await self.handover.settle()
        self.handover.open()

    async def finish(self, interrupted: Callable[[], bool] = lambda: False) -> None:
        """Contribute what there is, wait for the others, settle; or leave it at that, if this peer is asked to go, or
        the run is over elsewhere, or something else is to be done first (`interrupted`)."""
        round, steps = self.round or self.outer.clock, self.steps

        def is_left() -> bool:
            return self.outer.missed_end or self.outer.leaving or interrupted()

        await self.contribute()
        for applied_round in self.outer.manifest.outer.applied(round):
            while not await wait_for_round(self.outer, applied_round, lambda: self.handover.has_offer or is_left()):
                if is_left():
                    return
                if self.outer.is_behind:
                    break
                await self.handover.accept_handover()
        if counts := await finish_round(self.outer, round):
            self.outer.emit(self._done(round, steps, counts))
            self.started = monotonic()  # of the next round, where this peer only follows it
            self.receipt_collector.ask_soon()
        await agree(self.outer)

    async def finish_up_to(self, round: int, first: PeerId, is_lost: Callable[[], bool]) -> None:
        """Finish all rounds up to this one, in the group of the stage `first`.

        Raises:
            LeavingError: this peer is asked to go, or the run is over, before that.
            LostMemberError: the group `is_lost`, and its first stage has not contributed: another group may need this
                peer for that.
        """
        outer = self.outer

        def is_broken() -> bool:
            if not is_lost():
                return False
            if EMBEDDING in outer.followed.parts:
                return first not in outer.followed.parts[EMBEDDING].ledger.accepted.get(outer.clock, {})
            record = outer.discovery.records.get(first)  # an uncompressed group's later stages follow nothing of its
            return record is None or record.contributed < outer.clock

        while outer.clock <= round and not outer.finished:
            if outer.over or outer.leaving:
                raise LeavingError("this peer leaves")
            if is_broken():
                raise LostMemberError(f"its group is broken, and has not contributed to round {outer.clock}")
            await self.finish(is_broken)

    async def contribute(self) -> None:
        """Contribute what there is, without waiting for anybody."""
        self.end_steps()
        if self.steps:
            if self.steps < self.outer.manifest.inner.steps:
                why = "this peer leaves" if self.outer.leaving else self.outer.late(self.round)
                why = why or "its group could not, or need not, go on in it"
                self.outer.emit(EndedEarly(self.round, self.steps, why))
            moved = await self.outer.followed.torch_thread.run(self.trainer.moved)
            optimizer = await self.outer.followed.torch_thread.run(self.trainer.optimizer_tensors)
            await self.outer.contribute(self.round, self.own_steps, moved, optimizer, self.share)
            await self.outer.followed.torch_thread.run(self.trainer.forget_start)
        self.round = self.steps = self.own_steps = 0

    async def follow(self, interrupted: Callable[[], bool], wait: Callable[[], Waiting]) -> None:
        """Follow the rounds of the others without a group, until interrupted or until the run is over. `wait` returns
        what this peer waits for meanwhile."""
        while not (self.outer.over or interrupted()):
            await self.handover.accept_handover()
            ready = await wait_for_round(
                self.outer, self.outer.clock, lambda: interrupted() or self.handover.has_offer, wait
            )
            if ready or self.outer.is_behind:
                await self.finish()

    def _done(self, round: int, steps: int, counts: dict[str, int]) -> RoundDone:
        return RoundDone(
            round=round,
            seconds=monotonic() - self.started,
            tokens=self.outer.manifest.tokens_per_step * steps if self.trainer.index == 0 else 0,
            contributions=counts,
            digests=self.outer.followed.digests,
            pipeline_sent=self.bytes_sent,
            outer_sent=self.blobs.bytes_sent,
        )


@dataclass(frozen=True, slots=True)
class RoundText:
    """The text that stage 0 reads in a round, and its decision on when its inner loop ends."""

    stage_round: StageRound
    reader: Reader

    async def batch(self, later: int) -> Batch:
        """The batch of the step in hand, or of the one that is `later`."""
        stage_round = self.stage_round
        return await self.reader.batch(
            stage_round.outer.workload.upcoming(stage_round.round, stage_round.share, stage_round.own_steps + later)
        )

    def ends(self) -> bool:
        """Tell whether the inner loop ends now: after as many steps as the group means to take, or earlier where one
        more would be too late for the others, or where all others have finished."""
        outer = self.stage_round.outer
        steps = self.stage_round.steps + 1
        return steps >= self.stage_round.goal or bool(outer.late(self.stage_round.round, steps)) or outer.leaving
