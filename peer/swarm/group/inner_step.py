"""One inner step of one stage: its microbatches forward and back, then AdamW with the replica's clip factor."""

import asyncio
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from peer.compute.schedule import Backward, Forward, Schedule, Weights, depth_for, least_depth, split_depth
from peer.compute.trainer import StageTrainer
from peer.data.batches import Batch
from peer.model.number_format import from_bytes, to_bytes
from peer.network.group import Link
from peer.swarm.group.control import Agreed, Control, Gradients
from peer.torch_thread import TorchThread
from protocol.clock import monotonic
from protocol.codec.frames import (
    BackwardFrame,
    ForwardFrame,
    FramePosition,
    FrameRules,
    Payload,
    pack_frame,
    unpack_backward,
    unpack_forward,
)
from protocol.errors import DivergedError
from protocol.net.tasks import Children
from protocol.schemas import pipeline_pb2 as pb

SHORTEST_SECONDS = 1e-6
"""That a clock can tell."""

TokenIds = npt.NDArray[np.int64]
Frame = TypeVar("Frame")
FrameReader = Callable[[list[pb.Frame], FramePosition], Frame]


class IncomingFrames(Generic[Frame]):
    """The frames of one neighbour in this step, in order: the next one is read and checked while the stage computes."""

    def __init__(self, link: Link, messages: int, places: Iterator[FramePosition], read: FrameReader[Frame]) -> None:
        """`messages` make a frame."""
        self.link = link
        self.count = messages
        self.read = read
        self.came: list[float] = []
        """When each frame was here, by the loop's clock."""
        self.places = places
        self.tasks = Children()
        self.task: asyncio.Task[Frame] | None = None
        self._ask()

    @property
    def here(self) -> bool:
        """Whether the next frame is, or the news that none will be."""
        return self.task is not None and self.task.done()

    def take(self) -> Frame:
        """The next frame, which is here.

        Raises:
            LostMemberError: the neighbour is gone.
            BreachError: it broke the protocol.
        """
        assert self.task is not None
        frame = self.task.result()
        self._ask()
        return frame

    def stop(self) -> None:
        """Read nothing more."""
        if self.task is not None and not self.task.cancel() and not self.task.cancelled():
            self.task.exception()  # nobody asked for it

    def _ask(self) -> None:
        place = next(self.places, None)
        self.task = self.tasks.spawn(self._next(place)) if place is not None else None

    async def _next(self, place: FramePosition) -> Frame:
        messages = [await self.link.receive() for _ in range(self.count)]
        self.came.append(asyncio.get_running_loop().time())
        with self.link.blamed():
            return await asyncio.to_thread(self.read, messages, place)


@dataclass(slots=True)
class Timing:
    """What the microbatches of this step take, in seconds: `passes` of each on the torch thread, and when the first was
    sent on."""

    passes: dict[int, float] = field(default_factory=dict)
    sent: float = 0.0

    def add(self, microbatch: int, seconds: float) -> None:
        """A pass of a microbatch took so long."""
        self.passes[microbatch] = self.passes.get(microbatch, 0.0) + seconds


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
    split: bool = False
    """Whether gradients of weights are left for when this stage would wait; its trainer must be of the same mind."""
    depth: int = 0
    """Microbatches in flight at most, by what the last step measured; 0 before the first: as many as 1F1B has."""
    passes: float = 0.0
    """Seconds that this stage's own passes of a microbatch took in the last step: their median."""
    speed: float = 0.0
    """Tokens a second that this stage's own passes of the last step made; 0 before the first."""
    waiting: Link | None = None
    """Whose frame is due now, while this stage has nothing to do."""
    passed: bool = False
    """This stage has passed all microbatches of the step, and the group has not agreed on its end yet."""

    async def run(self, round: int, step: int, batch: Batch | None, control: Control) -> Agreed:
        """Take inner step `step` (from 0) of `round` (from 1). `batch` [sequences, L + 1] is stage 0's.

        Raises:
            LostMemberError: a neighbour or the leader is gone; the weights are those before this step, once
                `abandon` has been called.
            BreachError: one of them broke the protocol.
        """
        manifest = self.trainer.manifest
        begun = monotonic()
        losses = await self._pass_all(round, step, batch)
        seconds = monotonic() - begun
        squared_norm = await self.torch_thread.run(self.trainer.squared_norm)
        loss = sum(losses) / len(losses) if losses else None
        self.passed = True
        agreed = await control.agree(round, step, Gradients(squared_norm, loss, self.passes, seconds))
        self.passed = False
        overall = (round - 1) * manifest.inner.steps + step
        await self.torch_thread.run(self.trainer.update, agreed.clip_factor, overall)
        return agreed

    async def _pass_all(self, round: int, step: int, batch: Batch | None) -> list[float]:
        """All microbatches forward and back; the losses, at the last stage."""
        stage, manifest = self.trainer.index, self.trainer.manifest
        stages, microbatches = manifest.replicas.stages, manifest.inner.microbatches
        depth = self.depth or least_depth(stage, stages)
        depth = split_depth(depth, stages, self.room) if self.split else depth
        todo = Schedule(stage, stages, microbatches, depth, self.split)
        before = self._incoming(self.upstream, self.rules.activations, round, step, self._read_forward)
        behind = self._incoming(self.downstream, self.rules.gradients, round, step, self._read_backward)
        timing, losses = Timing(), list[float]()
        try:
            while not todo.done:
                match todo.next(before is None or before.here, behind is None or behind.here):
                    case Forward(microbatch):
                        losses += await self._forward(FramePosition(round, step, microbatch), batch, before, timing)
                    case Backward(microbatch):
                        await self._backward(FramePosition(round, step, microbatch), behind, timing)
                    case Weights(microbatch):
                        with self._timed(microbatch, timing):
                            await self.torch_thread.run(self.trainer.weight_gradients, microbatch)
                    case None:
                        await self._wait(todo, before, behind)
        finally:
            for incoming in (before, behind):
                if incoming is not None:
                    incoming.stop()
        self.passes = max(median(timing.passes.values()), SHORTEST_SECONDS)
        self.speed = self.rules.sequences * manifest.model.context / self.passes
        if behind is not None:
            trip = behind.came[0] - timing.sent
            self.depth = depth_for(trip, self.passes, stage, stages, self.room)
        return losses

    def _incoming(
        self, link: Link | None, payload: Payload, round: int, step: int, read: FrameReader[Frame]
    ) -> IncomingFrames[Frame] | None:
        if link is None:
            return None
        places = (FramePosition(round, step, each) for each in range(self.trainer.manifest.inner.microbatches))
        return IncomingFrames(link, payload.messages, places, read)

    async def _wait(self, todo: Schedule, *neighbours: IncomingFrames[Any] | None) -> None:
        """Until another frame is here."""
        self.waiting = self.upstream if isinstance(todo.due, Forward) else self.downstream
        coming = [each.task for each in neighbours if each is not None and each.task is not None and not each.here]
        try:
            await asyncio.wait(coming, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.waiting = None

    async def abandon(self, reason: str) -> None:
        """Hang up, and forget the inner step in flight."""
        for link in (self.upstream, self.downstream):
            if link is not None:
                link.abort(reason)
        await self.torch_thread.run(self.trainer.abandon)

    async def _forward(
        self, place: FramePosition, batch: Batch | None, before: IncomingFrames[ForwardFrame] | None, timing: Timing
    ) -> list[float]:
        """One forward pass; [loss] at the last stage, else []."""
        if before is None:
            assert batch is not None
            start = place.microbatch * self.rules.sequences
            tokens, activations = batch[start : start + self.rules.sequences], None
        else:
            frame = before.take()
            tokens, activations = frame.tokens, frame.activations
        with self._timed(place.microbatch, timing):
            out = await self.torch_thread.run(self._compute_forward, place.microbatch, tokens, activations)
        if isinstance(out, float):
            return [out]
        if self.downstream is not None:
            self._require_in_range(out, self.rules.activations, self.upstream)
            self._send(self.downstream, ForwardFrame(place, out, tokens, self.embedding_digest))
            timing.sent = timing.sent or asyncio.get_running_loop().time()
        return []

    async def _backward(
        self, place: FramePosition, behind: IncomingFrames[BackwardFrame] | None, timing: Timing
    ) -> None:
        """One backward pass."""
        gradients = behind.take().gradients if behind is not None else None
        with self._timed(place.microbatch, timing):
            out = await self.torch_thread.run(self._compute_backward, place.microbatch, gradients)
        if self.upstream is not None and out is not None:
            self._require_in_range(out, self.rules.gradients, self.downstream or self.upstream)
            self._send(self.upstream, BackwardFrame(place, out))

    @contextmanager
    def _timed(self, microbatch: int, timing: Timing) -> Iterator[None]:
        begun = monotonic()
        yield
        timing.add(microbatch, monotonic() - begun)

    def _send(self, link: Link, frame: ForwardFrame | BackwardFrame) -> None:
        for message in pack_frame(frame, self.rules):
            link.send(message)

    def _read_forward(self, messages: list[pb.Frame], place: FramePosition) -> ForwardFrame:
        return unpack_forward(messages, self.rules, place, self.embedding_digest)

    def _read_backward(self, messages: list[pb.Frame], place: FramePosition) -> BackwardFrame:
        return unpack_backward(messages, self.rules, place)

    def _require_in_range(self, out: bytes, payload: Payload, source: Link | None) -> None:
        """What this stage made, mostly of what its neighbour `source` sent, must not look like a breach of its own.

        Raises:
            BreachError: it would: what was sent was too large to go on with.
            DivergedError: the same, and nobody sent it.
        """
        if not payload.in_range(out):
            if source is None:
                raise DivergedError("this stage's numbers left every range: the replica has diverged")
            raise source.breach("sent what this stage cannot go on with: its own values left their range")

    def _compute_forward(self, microbatch: int, tokens: TokenIds, activations: bytes | None) -> bytes | float:
        """On the torch thread: bytes in, bytes out; the loss at the last stage."""
        out = self.trainer.forward(
            microbatch, torch.from_numpy(tokens), self._payload(activations, self.rules.activations)
        )
        return out.item() if self.trainer.last else to_bytes(out)

    def _compute_backward(self, microbatch: int, gradients: bytes | None) -> bytes | None:
        """On the torch thread."""
        out = self.trainer.backward(microbatch, self._payload(gradients, self.rules.gradients))
        return None if out is None else to_bytes(out)

    def _payload(self, data: bytes | None, payload: Payload) -> Tensor | None:
        return None if data is None else from_bytes(data, payload, self.trainer.device)
