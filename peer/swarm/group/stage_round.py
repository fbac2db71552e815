"""A stage of a group on its way through the rounds: its weights, its inner steps, its contribution."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from peer.compute.calibration import rounded_speed
from peer.compute.fitting import microbatches_that_fit
from peer.compute.trainer import StageTrainer
from peer.compute.transfers import Transfers, transfers_of
from peer.data.batches import Batch
from peer.network.group import Attempt, Link
from peer.network.receipt_exchange import ReceiptCollector
from peer.swarm import waits
from peer.swarm.group.handover import Handover
from peer.swarm.group.inner_step import Carried, InnerStep, PipelineStage, Source, StepTaken
from peer.swarm.group.slowness import TOLERANCE, StepKind, StepTimes
from peer.swarm.group.spot_checks import Received
from peer.swarm.group.stragglers import StepPace
from peer.swarm.rounds.catch_up import agree
from peer.swarm.rounds.outer_round import OuterLoop
from peer.swarm.rounds.round_end import emit_round_done, finish_round, wait_for_round
from peer.swarm.rounds.round_view import why_end_steps
from peer.swarm.text_reader import Reader
from protocol.clock import monotonic
from protocol.codec.frames import FrameRules
from protocol.codec.spot_check import group_digest
from protocol.errors import LostMemberError
from protocol.events.activity import StepDone
from protocol.events.decisions import EndedEarly
from protocol.events.waiting import Waiting
from protocol.identity import EMBEDDING, PeerId
from protocol.net.blobs import BlobService
from protocol.outer.data_plan import Spans
from protocol.patience import LONG_STEP_SECONDS

STEP_POLL_SECONDS = 1.0
"""The interval at which a step, or the wait for a round's offer, is checked, in seconds."""


class LeavingError(LostMemberError):
    """This peer is asked to go, or the run is over, in the middle of a round."""


Overdue = Callable[[float, Link], None]
"""A function that is given, again and again, for how long the inner step in flight has lasted, and the link to the
neighbour that it waits for."""


@dataclass(frozen=True, slots=True)
class GroupLoop:
    """The inner loop of a stage in one round: its place between the neighbours, the samples of what they send, and the
    attempt of its group."""

    pipeline: PipelineStage
    received: Received
    attempt: Attempt


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
    inner_loop: GroupLoop | None = None
    """The inner loop that is open; None: this stage is in none."""
    carried: Carried = field(default_factory=Carried)
    """The things that the last inner step has left to the next."""
    speed: float = 0.0
    """Tokens a second that this stage's own passes made in the last step; 0: none since the loop began."""
    in_step: bool = False
    """Whether an inner step is in flight."""
    bytes_sent: int = 0
    """Over all links, until the last inner loop ended."""
    pace: StepPace = field(default_factory=StepPace)
    started: float = field(default_factory=monotonic)
    transfers: Transfers = field(init=False)
    """The copies between frames and the device."""

    def __post_init__(self) -> None:
        self.transfers = transfers_of(self.trainer.device)

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

    def forget(self) -> None:
        """Have no round loaded: the next one, or the same one anew, is loaded when the group begins it."""
        self.round = self.steps = self.own_steps = 0

    @property
    def embedding_digest(self) -> str:
        """The digest of the token embedding that all stages must hold; empty if they need none."""
        return self.digests.get(EMBEDDING, "") if self.outer.manifest.compressed else ""

    def group_digest(self, behind: str) -> str:
        """The digest over the outer state that this stage begins the round from, and `behind`, that of the stages
        behind it."""
        return group_digest(self.digests, self.outer.manifest, self.trainer.index, behind)

    async def compare_with(self, peer: PeerId) -> None:
        """Take from another member what it has and this peer has not."""
        discovery = self.outer.discovery
        if peer in discovery.records:
            await self.outer.reconciler.compare(discovery.records[peer])

    # The inner loop

    def open_loop(self, attempt: Attempt, upstream: Link | None, downstream: Link | None) -> GroupLoop:
        """Make ready for the inner steps of the round that is loaded, over the links to the neighbours."""
        trainer, manifest = self.trainer, self.outer.manifest.at(self.compression)
        received = Received(manifest, trainer.index)
        pipeline = PipelineStage(
            trainer,
            self.outer.followed.torch_thread,
            FrameRules.of(manifest),
            upstream,
            downstream,
            embedding_digest=self.embedding_digest or "00" * 32,
            room=microbatches_that_fit(
                self.outer.manifest, trainer.index, trainer.device, self.max_memory, trainer.arithmetic.recompute
            ),
            goal=self.goal,
            observer=received,
            transfers=self.transfers,
        )
        self.inner_loop, self.speed, self.carried = (
            GroupLoop(pipeline, received, attempt),
            0.0,
            Carried(self.carried.depth),
        )
        return self.inner_loop

    def start(self, loop: GroupLoop, step: int, group_digest: str) -> None:
        """Begin at this inner step, from the outer state of this digest, as all stages have agreed."""
        loop.received.begin(group_digest)
        self.steps = step

    @property
    def step_kind(self) -> StepKind:
        """The kind of the last inner step."""
        return self.compression, self.outer.manifest.inner.overlap > 0 and self.steps == 1

    async def step(self, loop: GroupLoop, source: Source | None, overdue: Overdue) -> tuple[StepTaken, StepTimes]:
        """Take one inner step of this stage; `source` is stage 0's.

        Raises:
            LostMemberError, BreachError: somebody is gone, or broke the protocol; `abandon` before anything else.
        """
        await self.handover.accept_handover()
        self.outer.reconciler.contacts.bandwidth.begin_steps()
        inner_step = InnerStep(loop.pipeline, self.carried, self.round, self.steps, source)
        self.in_step = True
        with self._watched(inner_step, overdue):
            outcome = await inner_step.take()
        self.in_step = False
        self.carried, self.speed, seconds = outcome.carried, outcome.speed, self.pace.seconds[-1]
        waited = min(seconds, outcome.waited_before), min(seconds, outcome.waited_behind)
        self.outer.emit(StepDone(self.round, self.steps, outcome.sums.loss, self.outer.manifest.tokens_per_step))
        self._note_exchange(loop)
        self._publish_changed_speed()
        self.steps += 1
        self.own_steps += 1
        self.outer.record_arrivals()
        return outcome, StepTimes(seconds, *waited, outcome.sums.passes)

    def _note_exchange(self, loop: GroupLoop) -> None:
        """Note for receipts that every microbatch of a step has gone over both links, there and back."""
        index, pipeline = self.trainer.index, loop.pipeline
        for link, stage in ((pipeline.upstream, index - 1), (pipeline.downstream, index + 1)):
            if link is not None:
                self.receipt_collector.seen.exchange(self.round, link.peer, stage, loop.attempt)

    @contextmanager
    def _watched(self, inner_step: InnerStep, overdue: Overdue) -> Iterator[None]:
        """Look at a step while it lasts. Looks are counted, as no clock tells how long the machine stood still."""
        loop = asyncio.get_running_loop()
        began, looks = loop.time(), 0
        looking = loop.call_later(STEP_POLL_SECONDS, lambda: look())

        def look() -> None:
            nonlocal looking, looks
            looking, looks = loop.call_later(STEP_POLL_SECONDS, look), looks + 1
            link, seconds = inner_step.waiting, looks * STEP_POLL_SECONDS
            if link is None:  # this peer itself computes
                return
            if seconds >= LONG_STEP_SECONDS:
                stage = self.trainer.index + (1 if link is inner_step.pipeline.downstream else -1)
                self.outer.emit(waits.for_a_neighbour(link.peer, stage, self.steps))
            overdue(seconds, link)

        try:
            yield
        finally:
            looking.cancel()
        self.pace.remember(min(loop.time() - began, (looks + 1) * STEP_POLL_SECONDS))

    async def abandon(self, reason: str) -> None:
        """Hang up on the neighbours, and roll back the inner step in flight."""
        if self.inner_loop is not None:
            await self.inner_loop.pipeline.abandon(reason)
            self.close_loop()
        self.receipt_collector.ask_soon()

    def close_loop(self) -> None:
        """End the inner loop, if one is open: every frame has arrived, or no step would have ended."""
        self.outer.reconciler.contacts.bandwidth.end_steps()
        self.in_step = False
        if self.inner_loop is not None:
            self.bytes_sent += sum(link.take_bytes_sent() for link in self.inner_loop.pipeline.links)
            if self.speed:
                self.outer.discovery.update_record(tokens_per_second=rounded_speed(self.speed))
        self.inner_loop = None

    def _publish_changed_speed(self) -> None:
        """Have the record say soon that this stage's own passes are slower or quicker than it says: else the stage
        before this one could be taken for the slow one."""
        before = self.outer.discovery.record.tokens_per_second
        if not before / (1 + TOLERANCE) <= self.speed <= before * (1 + TOLERANCE):
            self.outer.discovery.update_record(tokens_per_second=rounded_speed(self.speed))

    # Rounds

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
            steps, sent = (0 if self.trainer.index else steps), (self.bytes_sent, self.blobs.bytes_sent)
            emit_round_done(self.outer, round, self.started, steps, counts, sent)
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
        outer, is_given_up = self.outer, partial(self._is_given_up, first, is_lost)
        while outer.clock <= round and not outer.finished:
            if outer.over or outer.leaving:
                raise LeavingError("this peer leaves")
            if is_given_up():
                raise LostMemberError(f"its group is broken, and has not contributed to round {outer.clock}")
            await self.finish(is_given_up)

    def _is_given_up(self, first: PeerId, is_lost: Callable[[], bool]) -> bool:
        """Whether a group is lost, and its first stage has not contributed to the round in hand. The later stages of an
        uncompressed group follow no part that the first one contributes to: they go by its record."""
        if not is_lost():
            return False
        outer = self.outer
        if EMBEDDING in outer.followed.parts:
            return first not in outer.followed.parts[EMBEDDING].ledger.accepted.get(outer.clock, {})
        record = outer.discovery.records.get(first)
        return record is None or record.contributed < outer.clock

    async def contribute(self) -> None:
        """Contribute what there is, without waiting for anybody."""
        self.close_loop()
        if self.steps:
            if self.steps < self.outer.manifest.inner.steps:
                why = "this peer leaves" if self.outer.leaving else why_end_steps(self.outer, self.round)
                why = why or "its group could not, or need not, go on in it"
                self.outer.emit(EndedEarly(self.round, self.steps, why))
            moved = await self.outer.followed.torch_thread.run(self.trainer.moved)
            optimizer = await self.outer.followed.torch_thread.run(self.trainer.optimizer_tensors)
            await self.outer.contribute(self.round, self.own_steps, moved, optimizer, self.share)
            await self.outer.followed.torch_thread.run(self.trainer.forget_start)
        self.forget()

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
        more would be too late for the others, where all others have finished, or where this peer is to leave."""
        outer = self.stage_round.outer
        steps = self.stage_round.steps + 1
        return (
            steps >= self.stage_round.goal or bool(why_end_steps(outer, self.stage_round.round, steps)) or outer.leaving
        )
