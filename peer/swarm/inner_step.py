"""One inner step of one stage: 1F1B over its microbatches, then AdamW with the replica's clip factor."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from peer.compute.payload import from_bytes, to_bytes
from peer.compute.schedule import Forward, one_forward_one_backward
from peer.compute.trainer import StageTrainer
from peer.data.batches import Batch
from peer.handoff import TorchThread
from peer.network.pipeline import Link
from peer.swarm.control import Agreed, Control
from protocol.errors import DivergedError
from protocol.frames import (
    BackwardFrame,
    ForwardFrame,
    FrameRules,
    Place,
    pack,
    unpack_backward,
    unpack_forward,
)
from protocol.schemas import pipeline_pb2 as pb

TokenIds = npt.NDArray[np.int64]


@dataclass(slots=True)
class PipelineStage:
    """A stage and its neighbours. `upstream` is None at the first stage, `downstream` at the last."""

    trainer: StageTrainer
    torch_thread: TorchThread
    rules: FrameRules
    upstream: Link | None
    downstream: Link | None
    embedding_digest: str = "00" * 32

    async def run(self, round: int, step: int, batch: Batch | None, control: Control) -> Agreed:
        """Take inner step `step` (from 0) of `round` (from 1). `batch` [sequences, L + 1] is stage 0's.

        Raises:
            LostMemberError: a neighbour or the leader is gone; the weights are those before this step, once
                `abandon` has been called.
            BreachError: one of them broke the protocol.
        """
        manifest = self.trainer.manifest
        losses: list[float] = []
        actions = one_forward_one_backward(self.trainer.index, manifest.replicas.stages, manifest.inner.microbatches)
        for action in actions:
            place = Place(round, step, action.microbatch)
            if isinstance(action, Forward):
                losses += await self._forward(place, batch)
            else:
                await self._backward(place)
        squared_norm = await self.torch_thread.run(self.trainer.squared_norm)
        loss = sum(losses) / len(losses) if losses else None
        agreed = await control.agree(round, step, squared_norm, loss)
        overall = (round - 1) * manifest.inner.steps + step
        await self.torch_thread.run(self.trainer.update, agreed.clip_factor, overall)
        return agreed

    async def abandon(self, reason: str) -> None:
        """Hang up, and forget the inner step in flight."""
        for link in (self.upstream, self.downstream):
            if link is not None:
                link.abort(reason)
        await self.torch_thread.run(self.trainer.abandon)

    async def _forward(self, place: Place, batch: Batch | None) -> list[float]:
        """One forward pass; [loss] at the last stage, else []."""
        tokens, activations = await self._receive_forward(place, batch)
        out = await self.torch_thread.run(self._compute_forward, place.microbatch, tokens, activations)
        if isinstance(out, float):
            return [out]
        if self.downstream is not None:
            self._require_in_range(out, self.upstream)
            self._send(self.downstream, ForwardFrame(place, out, tokens, self.embedding_digest))
        return []

    async def _receive_forward(self, place: Place, batch: Batch | None) -> tuple[TokenIds, bytes | None]:
        if self.upstream is None:
            assert batch is not None
            start = place.microbatch * self.rules.sequences
            return batch[start : start + self.rules.sequences], None
        messages = await self._receive(self.upstream)
        with self.upstream.blamed():
            frame = unpack_forward(messages, self.rules, place, self.embedding_digest)
        return frame.tokens, frame.activations

    async def _backward(self, place: Place) -> None:
        """One backward pass."""
        gradients = None
        if self.downstream is not None:
            messages = await self._receive(self.downstream)
            with self.downstream.blamed():
                gradients = unpack_backward(messages, self.rules, place).gradients
        out = await self.torch_thread.run(self._compute_backward, place.microbatch, gradients)
        if self.upstream is not None and out is not None:
            self._require_in_range(out, self.downstream or self.upstream)
            self._send(self.upstream, BackwardFrame(place, out))

    def _send(self, link: Link, frame: ForwardFrame | BackwardFrame) -> None:
        for message in pack(frame, self.rules):
            link.send(message)

    async def _receive(self, link: Link) -> list[pb.Frame]:
        """The messages of the next frame."""
        return [await link.receive() for _ in range(self.rules.messages)]

    def _require_in_range(self, out: bytes, source: Link | None) -> None:
        """What this stage made, mostly of what its neighbour `source` sent, must not look like a breach of its own.

        Raises:
            BreachError: it would: what was sent was too large to go on with.
            DivergedError: the same, and nobody sent it.
        """
        if not self.rules.in_range(out):
            if source is None:
                raise DivergedError("this stage's numbers left every range: the replica has diverged")
            raise source.breach("sent what this stage cannot go on with: its own values left their range")

    def _compute_forward(self, microbatch: int, tokens: TokenIds, activations: bytes | None) -> bytes | float:
        """On the torch thread: bytes in, bytes out; the loss at the last stage."""
        out = self.trainer.forward(microbatch, torch.from_numpy(tokens), self._payload(activations))
        return out.item() if self.trainer.last else to_bytes(out)

    def _compute_backward(self, microbatch: int, gradients: bytes | None) -> bytes | None:
        """On the torch thread."""
        out = self.trainer.backward(microbatch, self._payload(gradients))
        return None if out is None else to_bytes(out)

    def _payload(self, data: bytes | None) -> Tensor | None:
        if data is None:
            return None
        return from_bytes(data, self.rules.shape, self.rules.wire, self.trainer.device)
