"""One inner step of one stage: its microbatches forward and back, and the optimizer's step.

What stages tell each other of a step goes over their links, in line with the frames. When a stage has passed all
microbatches back, it tells the stage before it Σ g² of its own gradients and of all behind it; so the first stage has
those of the whole replica, and sends the clip factor forward. With `inner.overlap` nobody waits for that: each stage
clips by its own norm and, with Muon, those that the others had in the step before, and the first microbatches of the
next step are on their way before this one is taken.
"""

import asyncio
import sys
from collections.abc import Iterator, Mapping
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
from peer.compute.transfers import DirectTransfers, OnHost, PassOutcome, Transfers
from peer.data.batches import Batch
from peer.network.group import Link
from peer.optim.inner import clip_factor, place_in_run, stage_clip_factor
from peer.swarm.group.incoming import Expected, Incoming, wait_for_any
from peer.swarm.group.outgoing import Outgoing, require_in_range, send
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
    pack_sums,
    unpack_backward,
    unpack_end,
    unpack_forward,
    unpack_sums,
)

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


class PassObserver(Protocol):
    """An observer of the payloads that come to a stage, on the torch thread."""

    def forward(self, number: int, tokens: TokenIds, activations: Tensor | None) -> None:
        """Note what came forward of microbatch `number` of the round; None: nothing comes to the first stage."""

    def backward(self, number: int, gradients: Tensor | None) -> None:
        """Note what came back; None: nothing comes to the last stage."""


class Unobserved:
    """An observer that notes nothing."""

    def forward(self, number: int, tokens: TokenIds, activations: Tensor | None) -> None: ...
    def backward(self, number: int, gradients: Tensor | None) -> None: ...


@dataclass(frozen=True, slots=True)
class PipelineStage:
    """A stage between its neighbours, in the inner loop of one round. `upstream` is None at the first stage,
    `downstream` at the last. `room` is the number of microbatches that fit into memory; `goal` that of the inner steps
    that the replica means to take, for the learning rate (0: H)."""

    trainer: StageTrainer
    torch_thread: TorchThread
    rules: FrameRules
    upstream: Link | None
    downstream: Link | None
    embedding_digest: str = "00" * 32
    room: int = sys.maxsize
    goal: int = 0
    observer: PassObserver = field(default_factory=Unobserved)
    transfers: Transfers = field(default_factory=lambda: DirectTransfers(torch.device("cpu")))

    @property
    def links(self) -> list[Link]:
        """The links to the neighbours."""
        return [link for link in (self.upstream, self.downstream) if link is not None]

    async def abandon(self, reason: str) -> None:
        """Hang up, and forget the inner step in flight: weights and moments are those before it."""
        for link in self.links:
            link.abort(reason)
        await self.torch_thread.run(self.trainer.abandon)

    def forward(self, number: int, tokens: TokenIds, activations: bytes | None) -> PassOutcome:
        """Run a microbatch forward on the torch thread: bytes in, bytes out; the loss at the last stage."""
        begun = self.transfers.begin_pass()
        payload = self._payload(activations, self.rules.activations)
        self.observer.forward(number, tokens, payload)
        return self.transfers.leave(self.trainer.forward(number, torch.from_numpy(tokens), payload), begun)

    def backward(self, number: int, gradients: bytes | None) -> PassOutcome:
        """Run a microbatch backward on the torch thread: bytes in, bytes out; None at the first stage."""
        begun = self.transfers.begin_pass()
        payload = self._payload(gradients, self.rules.gradients)
        self.observer.backward(number, payload)
        return self.transfers.leave(self.trainer.backward(number, payload), begun)

    def _payload(self, data: bytes | None, payload: Payload) -> Tensor | None:
        return None if data is None else self.transfers.arrive(data, payload)


@dataclass(frozen=True, slots=True)
class Carried:
    """The things that an inner step leaves to the next one of its round.

    `depth`: microbatches in flight at most, as the step has measured; 0: as many as 1F1B has. `norms`: the sums Σ g² of
    this stage and of those behind it, where stages clip by each other's norms. `begun`: microbatches of the next step
    that have gone forward already, with the `seconds` of these passes by number; `batch`: the next step's batch, if the
    first stage has already read it.
    """

    depth: int = 0
    norms: tuple[float, ...] = ()
    begun: int = 0
    batch: Batch | None = None
    seconds: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StepTaken:
    """The outcome of an inner step. `sums` are of this stage and of those behind it. It took `seconds` from its
    beginning until all of this stage's gradients were in. `last`: the round's inner loop ends with it. `speed`: tokens
    a second that this stage's own passes made. `waited_before` and `waited_behind`: seconds for which this stage had
    nothing to do and waited for the stage before it, and for the one behind it."""

    sums: SumsFrame
    seconds: float
    last: bool
    speed: float
    waited_before: float
    waited_behind: float
    carried: Carried


class InnerStep:
    """Inner step `step` (from 0) of `round` (from 1) at one stage, while it lasts. `source` is the first stage's;
    `carried` is what the step before has left."""

    def __init__(self, pipeline: PipelineStage, carried: Carried, round: int, step: int, source: Source | None) -> None:
        manifest, stage = pipeline.trainer.manifest, pipeline.trainer.index
        self.pipeline, self.manifest, self.carried = pipeline, manifest, carried
        self.round, self.step, self.source = round, step, source
        self.late = manifest.late(stage)
        """Microbatches of the next step that go forward in this one."""
        self.schedule, n = self._schedule(), manifest.inner.microbatches
        end = Expected(1, lambda messages: unpack_end(messages[0], round, step, manifest.replicas.stages))
        self.before = Incoming(pipeline.upstream, [*map(self._expected_forward, range(carried.begun, n)), end])
        behind = manifest.replicas.stages - 1 - stage
        sums = Expected(1, lambda messages: unpack_sums(messages[0], round, step, behind))
        self.behind = Incoming(pipeline.downstream, [*map(self._expected_backward, range(n)), sums])
        self.outgoing = Outgoing()
        self.losses: list[float] = []
        self.seconds = dict(carried.seconds)
        """The seconds that the passes of each microbatch have taken, by its number in the round."""
        self.batches = {} if carried.batch is None else {step: carried.batch}
        """The batches that the first stage has read, by step."""
        self.waiting: Link | None = None
        """The link on which something is due now, while this stage has nothing to compute."""
        self.waited = {pipeline.upstream: 0.0, pipeline.downstream: 0.0}
        """The seconds for which this stage has waited for each of its neighbours."""
        self.sent: float | None = None
        """The time at which the first microbatch was sent on, by the loop's clock; None if another was on its way
        before it."""

    async def take(self) -> StepTaken:
        """Run all microbatches forward and back, and take the optimizer's step.

        Raises:
            LostMemberError: a neighbour is gone; the weights are those before this step, once the pipeline has been
                abandoned.
            BreachError: one of them broke the protocol.
        """
        try:
            sums, seconds, end = await self._run_passes()
            await self._update(sums, end)
        finally:
            for side in (self.before, self.behind, self.outgoing):
                side.stop()
        pipeline, passes = self.pipeline, sums.passes[0]
        speed = pipeline.rules.sequences * self.manifest.model.context / passes
        waited = self.waited[pipeline.upstream], self.waited[pipeline.downstream]
        return StepTaken(sums, seconds, end.last, speed, *waited, self._carry_over(sums, passes))

    def number(self, microbatch: int) -> int:
        """Return the number of a microbatch in the round. Those of the next step follow those of this one."""
        return self.step * self.schedule.microbatches + microbatch

    async def _run_passes(self) -> tuple[SumsFrame, float, EndFrame]:
        """Run all passes of the step. Returns the sums of this stage and those behind it, the seconds until the
        gradients were in, and the first stage's word on how the step ends."""
        inner = self.manifest.inner
        sums: SumsFrame | None = None
        end: EndFrame | None = None
        if self.source is not None and self.step not in self.batches:
            self.batches[self.step] = await self.source.batch(0)
        started, seconds = monotonic(), 0.0
        while sums is None or not self.schedule.done:
            if sums is None and self.schedule.summed:
                seconds, sums = monotonic() - started, await self._sum_up()
            elif self.schedule.asks and self.before.ready:
                end = await self._end(1.0)
                await self._begin_next(end)
            else:
                await self._pass_next()
        if end is None:
            end = await self._end(1.0 if inner.overlap else clip_factor(sums.squared_norms, inner.clip))
        return sums, seconds, end

    async def _update(self, sums: SumsFrame, end: EndFrame) -> None:
        """Take the optimizer's step."""
        pipeline, inner, factor = self.pipeline, self.manifest.inner, end.clip_factor
        if inner.overlap:
            stage, stages = pipeline.trainer.index, self.manifest.replicas.stages
            factor = stage_clip_factor(stage, sums.squared_norms[0], end.before, stages, inner.clip)
        run_position = place_in_run(self.manifest, self.round, self.step, pipeline.goal or inner.steps)
        await pipeline.torch_thread.run(pipeline.trainer.update, factor, run_position)

    def _carry_over(self, sums: SumsFrame, passes: float) -> Carried:
        """Return what this step leaves to the next. `passes`: the seconds of a microbatch's passes."""
        pipeline, stages, depth = self.pipeline, self.manifest.replicas.stages, self.carried.depth
        if pipeline.downstream is not None and self.sent is not None:
            trip = self.behind.arrival_times[0] - self.sent
            depth = depth_for(trip, passes, pipeline.trainer.index, stages, pipeline.room)
        norms = sums.squared_norms if self.manifest.inner.clips_by_others else ()
        begun = self.schedule.forwards - self.schedule.microbatches
        return Carried(depth, norms, begun, self.batches.get(self.step + 1), self.seconds)

    # What the stages tell each other

    async def _sum_up(self) -> SumsFrame:
        """Send the sums of this stage and of those behind it to the stage before: the gradients are in."""
        await self.outgoing.wait_until_delivered()
        pipeline, numbers = self.pipeline, map(self.number, range(self.schedule.microbatches))
        passes = max(median([self.seconds.pop(number) for number in numbers]), SHORTEST_SECONDS)
        squared_norm = await pipeline.torch_thread.run(pipeline.trainer.squared_norm)
        if pipeline.downstream is None:
            sums = SumsFrame((squared_norm,), (passes,), sum(self.losses) / len(self.losses))
        else:
            behind: SumsFrame = await self._next_of(self.behind)
            sums = SumsFrame((squared_norm, *behind.squared_norms), (passes, *behind.passes), behind.loss)
        if pipeline.upstream is not None:
            pipeline.upstream.send(pack_sums(self.round, self.step, sums))
        return sums

    async def _end(self, factor: float) -> EndFrame:
        """Return the first stage's word on whether the round goes on, and pass it on. The clip `factor` is the first
        stage's."""
        await self.outgoing.wait_until_delivered()
        if self.source is not None:
            end = EndFrame(factor, self.source.ends(), self.carried.norms if self.step else ())
        else:
            end = await self._next_of(self.before)
        if self.pipeline.downstream is not None:
            self.pipeline.downstream.send(pack_end(self.round, self.step, end))
        return end

    async def _begin_next(self, end: EndFrame) -> None:
        """Begin the first microbatches of the next step, if there is one."""
        self.schedule.go_on_with(0 if end.last else self.late)
        if end.last:
            return
        if self.source is not None:
            self.batches[self.step + 1] = await self.source.batch(1)
        n = self.schedule.microbatches
        self.before.expect(map(self._expected_forward, range(n, n + self.late)))

    async def _next_of(self, incoming: Incoming) -> Any:
        """Wait for a neighbour's next payload, and return it."""
        with self._waiting_for(incoming.link):
            return await incoming.next()

    @contextmanager
    def _waiting_for(self, link: Link | None) -> Iterator[None]:
        """Name `link` in `waiting` while the block runs, and add its seconds to those that it was waited for."""
        started = monotonic()
        self.waiting = link
        try:
            yield
        finally:
            self.waiting = None
            self.waited[link] += monotonic() - started

    # Passes

    async def _pass_next(self) -> None:
        """The next pass; or wait until a neighbour has sent something, if there is none to be done."""
        match self.schedule.next(self.before.ready, self.behind.ready):
            case Forward(microbatch):
                await self._forward(microbatch)
            case Backward(microbatch):
                await self._backward(microbatch)
            case None:
                for incoming in (self.before, self.behind):
                    if incoming.failed:
                        incoming.take()  # the step cannot end: whoever waits for this stage is to learn it
                if self.outgoing.failed:
                    await self.outgoing.wait_until_delivered()
                upstream = isinstance(self.schedule.due, Forward)
                with self._waiting_for(self.pipeline.upstream if upstream else self.pipeline.downstream):
                    await wait_for_any(self.before, self.behind, beside=self.outgoing.task)

    async def _forward(self, microbatch: int) -> None:
        """One forward pass, whose outcome is sent on; at the last stage it is the loss."""
        pipeline, position = self.pipeline, self._position(microbatch)
        frame: ForwardFrame | None = self.before.take()
        tokens, activations = (self._text(position), None) if frame is None else (frame.tokens, frame.activations)
        started = monotonic()
        out = await pipeline.torch_thread.run(pipeline.forward, self.number(microbatch), tokens, activations)
        took = monotonic() - started

        def deliver(outcome: OnHost) -> None:
            self._add_seconds(microbatch, took if outcome.seconds is None else outcome.seconds)
            if isinstance(outcome.data, float):
                self.losses.append(outcome.data)
            elif pipeline.downstream is not None and outcome.data is not None:
                require_in_range(outcome.data, pipeline.rules.activations, pipeline.upstream)
                sent = ForwardFrame(position, outcome.data, tokens, pipeline.embedding_digest)
                send(pipeline.downstream, sent, pipeline.rules)
                if microbatch == 0:
                    self.sent = asyncio.get_running_loop().time()

        self.outgoing.take(out, deliver)

    async def _backward(self, microbatch: int) -> None:
        """One backward pass, whose outcome is sent back."""
        pipeline = self.pipeline
        frame: BackwardFrame | None = self.behind.take()
        gradients, started = None if frame is None else frame.gradients, monotonic()
        out = await pipeline.torch_thread.run(pipeline.backward, self.number(microbatch), gradients)
        took = monotonic() - started

        def deliver(outcome: OnHost) -> None:
            self._add_seconds(microbatch, took if outcome.seconds is None else outcome.seconds)
            if pipeline.upstream is not None and isinstance(outcome.data, bytes):
                require_in_range(outcome.data, pipeline.rules.gradients, pipeline.downstream or pipeline.upstream)
                send(pipeline.upstream, BackwardFrame(self._position(microbatch), outcome.data), pipeline.rules)

        self.outgoing.take(out, deliver)

    def _text(self, position: FramePosition) -> TokenIds:
        """Return the token ids of a microbatch at the first stage."""
        start, sequences = position.microbatch * self.pipeline.rules.sequences, self.pipeline.rules.sequences
        return self.batches[position.step][start : start + sequences]

    def _add_seconds(self, microbatch: int, seconds: float) -> None:
        number = self.number(microbatch)
        self.seconds[number] = self.seconds.get(number, 0.0) + seconds

    # What is expected

    def _schedule(self) -> Schedule:
        stage, stages, carried = self.pipeline.trainer.index, self.manifest.replicas.stages, self.carried
        depth = max(carried.depth or least_depth(stage, stages), self.late + 1)
        microbatches, more = self.manifest.inner.microbatches, None if self.late else 0
        return Schedule(stage, stages, microbatches, depth, carried.begun, more)

    def _position(self, microbatch: int) -> FramePosition:
        steps, number = divmod(microbatch, self.schedule.microbatches)
        return FramePosition(self.round, self.step + steps, number)

    def _expected_forward(self, microbatch: int) -> Expected:
        rules, position, digest = self.pipeline.rules, self._position(microbatch), self.pipeline.embedding_digest
        return Expected(rules.activations.messages, lambda messages: unpack_forward(messages, rules, position, digest))

    def _expected_backward(self, microbatch: int) -> Expected:
        rules, position = self.pipeline.rules, self._position(microbatch)
        return Expected(rules.gradients.messages, lambda messages: unpack_backward(messages, rules, position))
