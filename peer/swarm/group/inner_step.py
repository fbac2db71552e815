"""One inner step of one stage: its microbatches forward and back, and the optimizer's step.

What stages tell each other of a step goes over their links, in line with the frames. When a stage has passed all
microbatches back, it tells the stage before it Σ g² of its own gradients and of all behind it; so the first stage has
those of the whole replica, and sends the clip factor forward. With `inner.overlap` nobody waits for that: each stage
clips by its own norm and, with Muon, those that the others had in the step before, and the first microbatches of the
next step are on their way before this one is taken.
"""

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from peer.compute.schedule import Backward, Forward, Schedule, depth_for, least_depth
from peer.compute.trainer import StageTrainer
from peer.data.batches import Batch
from peer.model.number_format import from_bytes, to_bytes
from peer.network.group import Link
from peer.optim.inner import clip_factor, place_in_run, stage_clip_factor
from peer.swarm.group.incoming import Expected, Incoming, wait_for_any
from peer.swarm.group.spot_checks import Received
from peer.torch_thread import TorchThread
from protocol.clock import monotonic
from protocol.codec.frames import (
    BackwardFrame,
    EndFrame,
    ForwardFrame,
    FramePosition,
    FrameRules,
    Payload,
    SumsFrame,
    pack_end,
    pack_frame,
    pack_sums,
    unpack_backward,
    unpack_end,
    unpack_forward,
    unpack_sums,
)
from protocol.errors import DivergedError

SHORTEST_SECONDS = 1e-6
"""The shortest duration that the clock can measure, in seconds; guards a division."""

TokenIds = npt.NDArray[np.int64]


class Source(Protocol):
    """The text that the first stage reads, and its decision on how long a round lasts."""

    async def batch(self, later: int) -> Batch:
        """The batch [sequences, L + 1] of the step in hand, or of the one that is `later`: 0 or 1."""

    def ends(self) -> bool:
        """Whether the round's inner loop ends with the step in hand: asked when its gradients are in, or, with
        `inner.overlap`, when its last microbatch has gone forward."""


@dataclass(frozen=True, slots=True)
class StepTaken:
    """The outcome of an inner step. `sums` are of this stage and of those behind it. It took `seconds` from this
    stage's first pass until all of its gradients were in. `last`: the round's inner loop ends with it."""

    sums: SumsFrame
    seconds: float
    last: bool


@dataclass(slots=True)
class PipelineStage:
    """A stage and its neighbours. `upstream` is None at the first stage, `downstream` at the last."""

    trainer: StageTrainer
    torch_thread: TorchThread
    rules: FrameRules
    upstream: Link | None
    downstream: Link | None
    embedding_digest: str = "00" * 32
    room: int = sys.maxsize
    """Microbatches that fit into memory."""
    depth: int = 0
    """Microbatches in flight at most, by what a step has measured; 0 before the first: as many as 1F1B has."""
    speed: float = 0.0
    """Tokens a second that this stage's own passes of the last step made; 0 before the first."""
    norms: tuple[float, ...] = ()
    """The sums Σ g² of this stage and of those behind it in the last step of the round, where stages clip by each
    other's norms."""
    waiting: Link | None = None
    """The link on which something is due now, while this stage has nothing to compute."""
    waited_before: float = 0.0
    waited_behind: float = 0.0
    """Seconds of the step for which this stage had nothing to do and waited for the stage before it, and for the one
    behind it."""
    goal: int = 0
    """The inner steps that its replica means to take in this round, for the learning rate; 0: H."""
    begun: int = 0
    """Microbatches of the step that comes that have gone forward already."""
    batch: Batch | None = None
    """The next step's batch, if the first stage has already read it."""
    received: Received | None = None
    """Keeps some of what comes, for spot checks."""
    seconds: dict[int, float] = field(default_factory=dict)
    """The seconds that the passes of each microbatch have taken, by its number in the round, until the step is
    taken."""

    async def run(self, round: int, step: int, source: Source | None) -> StepTaken:
        """Take inner step `step` (from 0) of `round` (from 1). `source` is the first stage's.

        Raises:
            LostMemberError: a neighbour is gone; the weights are those before this step, once `abandon` has been
                called.
            BreachError: one of them broke the protocol.
        """
        self.norms = self.norms if step else ()
        self.waited_before = self.waited_behind = 0.0
        current = StepInHand(self, round, step, source)
        try:
            outcome = await current.take()
        finally:
            current.stop()
        self.begun, self.batch = current.schedule.forwards - current.schedule.microbatches, current.next_batch
        passes, manifest = outcome.sums.passes[0], self.trainer.manifest
        self.norms = outcome.sums.squared_norms if manifest.inner.clips_by_others else ()
        self.speed = self.rules.sequences * manifest.model.context / passes
        if current.behind is not None and current.sent is not None:
            trip = current.behind.arrival_times[0] - current.sent
            self.depth = depth_for(trip, passes, self.trainer.index, manifest.replicas.stages, self.room)
        return outcome

    async def abandon(self, reason: str) -> None:
        """Hang up, and forget the inner step in flight."""
        for link in (self.upstream, self.downstream):
            if link is not None:
                link.abort(reason)
        await self.torch_thread.run(self.trainer.abandon)

    def compute_forward(self, number: int, tokens: TokenIds, activations: bytes | None) -> bytes | float:
        """On the torch thread: bytes in, bytes out; the loss at the last stage."""
        payload = self._payload(activations, self.rules.activations)
        if self.received is not None:
            self.received.forward(number, tokens, payload)
        out = self.trainer.forward(number, torch.from_numpy(tokens), payload)
        return out.item() if self.trainer.last else to_bytes(out)

    def compute_backward(self, number: int, gradients: bytes | None) -> bytes | None:
        """On the torch thread: bytes in, bytes out; None at the first stage."""
        payload = self._payload(gradients, self.rules.gradients)
        if self.received is not None:
            self.received.backward(number, payload)
        out = self.trainer.backward(number, payload)
        return None if out is None else to_bytes(out)

    def _payload(self, data: bytes | None, payload: Payload) -> Tensor | None:
        return None if data is None else from_bytes(data, payload, self.trainer.device)


class StepInHand:
    """An inner step of a stage while it lasts."""

    def __init__(self, pipeline: PipelineStage, round: int, step: int, source: Source | None) -> None:
        manifest, stage = pipeline.trainer.manifest, pipeline.trainer.index
        self.pipeline, self.manifest = pipeline, manifest
        self.round, self.step, self.source = round, step, source
        self.late = manifest.late(stage)
        """Microbatches of the next step that go forward in this one."""
        self.schedule, n = self._schedule(), manifest.inner.microbatches
        self.before: Incoming | None = None
        if pipeline.upstream is not None:
            end = Expected(1, lambda messages: unpack_end(messages[0], round, step, manifest.replicas.stages))
            self.before = Incoming(pipeline.upstream, [*map(self._expected_forward, range(pipeline.begun, n)), end])
        self.behind: Incoming | None = None
        if pipeline.downstream is not None:
            behind = manifest.replicas.stages - 1 - stage
            sums = Expected(1, lambda messages: unpack_sums(messages[0], round, step, behind))
            self.behind = Incoming(pipeline.downstream, [*map(self._expected_backward, range(n)), sums])
        self.losses: list[float] = []
        self.next_batch: Batch | None = None
        self.sent: float | None = None
        """The time at which the first microbatch was sent on, by the loop's clock; None if another was on its way
        before it."""

    async def take(self) -> StepTaken:
        """All microbatches forward and back, and the optimizer's step."""
        pipeline, inner = self.pipeline, self.manifest.inner
        sums: SumsFrame | None = None
        end: EndFrame | None = None
        if self.source is not None and pipeline.batch is None:
            pipeline.batch = await self.source.batch(0)
        started, seconds = monotonic(), 0.0
        while sums is None or not self.schedule.done:
            if sums is None and self.schedule.summed:
                seconds, sums = monotonic() - started, await self._sum_up()
            elif self.schedule.asks and (self.source is not None or self._is_ready(self.before)):
                end = await self._end(1.0)
                await self._go_on(end)
            else:
                await self._pass_next()
        if end is None:
            end = await self._end(1.0 if inner.overlap else clip_factor(sums.squared_norms, inner.clip))
        factor = end.clip_factor
        if inner.overlap:
            stage, stages = pipeline.trainer.index, self.manifest.replicas.stages
            factor = stage_clip_factor(stage, sums.squared_norms[0], end.before, stages, inner.clip)
        run_position = place_in_run(self.manifest, self.round, self.step, pipeline.goal or inner.steps)
        await pipeline.torch_thread.run(pipeline.trainer.update, factor, run_position)
        return StepTaken(sums, seconds, end.last)

    def stop(self) -> None:
        """Read nothing more."""
        for incoming in (self.before, self.behind):
            if incoming is not None:
                incoming.stop()

    def number(self, microbatch: int) -> int:
        """Return the number of a microbatch in the round. Those of the next step follow those of this one."""
        return self.step * self.schedule.microbatches + microbatch

    # What the stages tell each other

    async def _sum_up(self) -> SumsFrame:
        """The gradients are in: tell the stage before, once the stages behind have told of theirs."""
        pipeline, numbers = self.pipeline, map(self.number, range(self.schedule.microbatches))
        passes = max(median([pipeline.seconds.pop(number) for number in numbers]), SHORTEST_SECONDS)
        squared_norm = await pipeline.torch_thread.run(pipeline.trainer.squared_norm)
        if self.behind is None:
            sums = SumsFrame((squared_norm,), (passes,), sum(self.losses) / len(self.losses))
        else:
            behind: SumsFrame = await self._next_of(self.behind)
            sums = SumsFrame((squared_norm, *behind.squared_norms), (passes, *behind.passes), behind.loss)
        if pipeline.upstream is not None:
            pipeline.upstream.send(pack_sums(self.round, self.step, sums))
        return sums

    async def _end(self, factor: float) -> EndFrame:
        """Whether the round goes on: by the first stage's word, which is passed on. `factor` is the clip factor, where
        this is the first stage."""
        if self.before is None:
            assert self.source is not None
            end = EndFrame(factor, self.source.ends(), self.pipeline.norms)
        else:
            end = await self._next_of(self.before)
        if self.pipeline.downstream is not None:
            self.pipeline.downstream.send(pack_end(self.round, self.step, end))
        return end

    async def _go_on(self, end: EndFrame) -> None:
        """Begin the first microbatches of the next step, if there is one."""
        self.schedule.more = 0 if end.last else self.late
        if end.last:
            return
        if self.source is not None:
            self.next_batch = await self.source.batch(1)
        if self.before is not None:
            n = self.schedule.microbatches
            self.before.expect(map(self._expected_forward, range(n, n + self.late)))

    async def _next_of(self, incoming: Incoming) -> Any:
        """Wait for a neighbour's next payload, and return it."""
        with self._waiting_for(incoming.link):
            return await incoming.next()

    @contextmanager
    def _waiting_for(self, link: Link | None) -> Iterator[None]:
        """Name `link` in `PipelineStage.waiting` while the block runs, and add its seconds to `waited_before`, if it is
        the link upstream, or to `waited_behind`."""
        pipeline, started = self.pipeline, monotonic()
        pipeline.waiting = link
        try:
            yield
        finally:
            pipeline.waiting = None
            if link is pipeline.upstream:
                pipeline.waited_before += monotonic() - started
            else:
                pipeline.waited_behind += monotonic() - started

    # Passes

    async def _pass_next(self) -> None:
        """The next pass; or wait until a neighbour has sent something, if there is none to be done."""
        match self.schedule.next(self._is_ready(self.before), self._is_ready(self.behind)):
            case Forward(microbatch):
                await self._forward(microbatch)
            case Backward(microbatch):
                await self._backward(microbatch)
            case None:
                for incoming in (self.before, self.behind):
                    if incoming is not None and incoming.failed:
                        incoming.take()  # the step cannot end: whoever waits for this stage is to learn it
                upstream = isinstance(self.schedule.due, Forward)
                with self._waiting_for(self.pipeline.upstream if upstream else self.pipeline.downstream):
                    await wait_for_any(self.before, self.behind)

    async def _forward(self, microbatch: int) -> None:
        """One forward pass, whose outcome is sent on; at the last stage it is the loss."""
        pipeline, position = self.pipeline, self._position(microbatch)
        if self.before is None:
            batch = pipeline.batch if position.step == self.step else self.next_batch
            assert batch is not None
            start = position.microbatch * pipeline.rules.sequences
            tokens, activations = batch[start : start + pipeline.rules.sequences], None
        else:
            frame: ForwardFrame = self.before.take()
            tokens, activations = frame.tokens, frame.activations
        with self._timed(microbatch):
            out = await pipeline.torch_thread.run(
                pipeline.compute_forward, self.number(microbatch), tokens, activations
            )
        if isinstance(out, float):
            self.losses.append(out)
        elif pipeline.downstream is not None:
            require_in_range(out, pipeline.rules.activations, pipeline.upstream)
            send(
                pipeline.downstream,
                ForwardFrame(position, out, tokens, pipeline.embedding_digest),
                pipeline.rules,
            )
            if microbatch == 0:
                self.sent = asyncio.get_running_loop().time()

    async def _backward(self, microbatch: int) -> None:
        """One backward pass, whose outcome is sent back."""
        pipeline = self.pipeline
        frame: BackwardFrame | None = self.behind.take() if self.behind is not None else None
        gradients = None if frame is None else frame.gradients
        with self._timed(microbatch):
            out = await pipeline.torch_thread.run(pipeline.compute_backward, self.number(microbatch), gradients)
        if pipeline.upstream is not None and out is not None:
            require_in_range(out, pipeline.rules.gradients, pipeline.downstream or pipeline.upstream)
            send(pipeline.upstream, BackwardFrame(self._position(microbatch), out), pipeline.rules)

    @contextmanager
    def _timed(self, microbatch: int) -> Iterator[None]:
        begun, number = monotonic(), self.number(microbatch)
        yield
        self.pipeline.seconds[number] = self.pipeline.seconds.get(number, 0.0) + monotonic() - begun

    # What is expected

    def _schedule(self) -> Schedule:
        pipeline, stages = self.pipeline, self.manifest.replicas.stages
        depth = max(pipeline.depth or least_depth(pipeline.trainer.index, stages), self.late + 1)
        more = None if self.late else 0
        n = self.manifest.inner.microbatches
        return Schedule(pipeline.trainer.index, stages, n, depth, pipeline.begun, more)

    def _position(self, microbatch: int) -> FramePosition:
        steps, number = divmod(microbatch, self.schedule.microbatches)
        return FramePosition(self.round, self.step + steps, number)

    def _expected_forward(self, microbatch: int) -> Expected:
        rules, position, digest = self.pipeline.rules, self._position(microbatch), self.pipeline.embedding_digest
        return Expected(rules.activations.messages, lambda messages: unpack_forward(messages, rules, position, digest))

    def _expected_backward(self, microbatch: int) -> Expected:
        rules, position = self.pipeline.rules, self._position(microbatch)
        return Expected(rules.gradients.messages, lambda messages: unpack_backward(messages, rules, position))

    @staticmethod
    def _is_ready(incoming: Incoming | None) -> bool:
        """Whether a pass need not wait for a neighbour."""
        return incoming is None or incoming.ready


def send(link: Link, frame: ForwardFrame | BackwardFrame, rules: FrameRules) -> None:
    """Send a frame, in as many messages as it takes."""
    for message in pack_frame(frame, rules):
        link.send(message)


def require_in_range(out: bytes, payload: Payload, source: Link | None) -> None:
    """Check that an output of this stage, computed mostly from what its neighbour `source` sent, would not look like a
    breach of its own.

    Raises:
        BreachError: it would: what was sent was too large to go on with.
        DivergedError: the same, and nobody sent it.
    """
    if not payload.in_range(out):
        if source is None:
            raise DivergedError("this stage's numbers left every range: the replica has diverged")
        raise source.breach("sent what this stage cannot go on with: its own values left their range")
