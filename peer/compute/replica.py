"""A replica in one process: all stages in turn, no network. Datacenter replicas, and every replica of the lab."""

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from peer.compute.arithmetic import Arithmetic
from peer.compute.design import Design, Kind
from peer.compute.trainer import GridView, StageTrainer
from peer.optim.inner import clip_factor
from protocol.identity import Part
from protocol.manifest import Manifest


class Replica(Protocol):
    """All stages of one replica in training, in one process or in several (`peer/devices/parallel_replica.py`)."""

    def load(self, grids: Mapping[Part, GridView], ahead: Mapping[Part, GridView] | None = None) -> None:
        """Start a round from the outer state, or, of the parts in `ahead`, from there."""

    def warm_up(self) -> None:
        """Let what is compiled at its first use be compiled now. It is loaded, and stays so."""

    def inner_step(self, batch_SM: Tensor, step: float) -> float:
        """One inner step on `batch_SM` [sequences, L + 1], at place `step` of the run; its mean loss."""

    def moved(self) -> Mapping[Part, Mapping[str, Tensor]]:
        """Δ of every part of the model, on the CPU; to be used before the weights change again."""

    def forget_start(self) -> None:
        """Keep no longer the θ that the inner loop started from: its Δ is where it belongs."""

    def optimizer_tensors(self) -> dict[str, Tensor]:
        """The optimizer's state, to be written or copied before the next step."""

    def load_optimizer(self, tensors: Mapping[str, Tensor]) -> None:
        """Take up the optimizer's state where `optimizer_tensors` left it."""


class WholeReplica:
    """All stages of one replica. A `"group"` rounds and projects between stages exactly as the wire does."""

    def __init__(
        self,
        manifest: Manifest,
        kind: Kind,
        basis_DD: Tensor | None,
        device: torch.device,
        own_design: Design | None = None,
        arithmetic: Arithmetic | None = None,
    ) -> None:
        self.manifest = manifest
        self.device = device
        self.arithmetic = arithmetic or Arithmetic()
        self.stages = [
            StageTrainer(manifest, stage, kind, basis_DD, device, own_design, self.arithmetic)
            for stage in range(manifest.replicas.stages)
        ]

    def compile_layers(self) -> None:
        """Let torch compile every layer: minutes at first, and worth it for hours on a GPU. Changes the last bits."""
        for stage in self.stages:
            stage.stage.compile_layers()

    def load(self, grids: Mapping[Part, GridView], ahead: Mapping[Part, GridView] | None = None) -> None:
        """Start a round from the outer state, or, of the parts in `ahead`, from there."""
        for stage in self.stages:
            stage.load(grids, ahead)

    def warm_up(self) -> None:
        """Let what is compiled at its first use be compiled now."""
        if self.arithmetic.compiled:
            sizes = self.manifest.inner.microbatch, self.manifest.model.context + 1
            self.gradients(torch.zeros(sizes, dtype=torch.int64))
            for stage in self.stages:
                stage.abandon()

    def inner_step(self, batch_SM: Tensor, step: float) -> float:
        """One inner step on `batch_SM` [sequences, L + 1], at place `step` of the run (`peer.optim.inner`).

        Returns the mean loss over the microbatches, in nats per token.
        """
        loss = self.gradients(batch_SM)
        factor = clip_factor((stage.squared_norm() for stage in self.stages), self.manifest.inner.clip)
        for stage in self.stages:
            stage.update(factor, step)
        return loss

    def gradients(self, batch_SM: Tensor) -> float:
        """Add the gradients of a batch to what the stages have; its mean loss over the microbatches."""
        with self.arithmetic(self.device, self.manifest.model.context):  # weights are rounded once for all microbatches
            losses = [self._pass(number, microbatch) for number, microbatch in enumerate(self.microbatches(batch_SM))]
        read: list[float] = torch.stack(losses).tolist()  # at once: each reading makes the device wait for orders
        return sum(read) / len(read)

    def microbatches(self, batch_SM: Tensor) -> Sequence[Tensor]:
        """A batch in the pieces that go through the stages, [b, L + 1] each."""
        pieces: Sequence[Tensor] = batch_SM.split(self.manifest.inner.microbatch)
        return pieces

    def _pass(self, microbatch: int, tokens_BM: Tensor) -> Tensor:
        """One microbatch forward and back; its loss, which is not waited for."""
        payload: Tensor | None = None
        for stage in self.stages:
            payload = stage.forward(microbatch, tokens_BM, payload)
        assert payload is not None
        gradient: Tensor | None = None
        for stage in reversed(self.stages):
            gradient = stage.backward(microbatch, gradient)
        return payload

    def moved(self) -> Mapping[Part, Mapping[str, Tensor]]:
        """Δ of every part of the model, each tensor made when it is asked for."""
        return {part: tensors for stage in self.stages for part, tensors in stage.moved().items()}

    def forget_start(self) -> None:
        """Keep no longer the θ that the inner loop started from."""
        for stage in self.stages:
            stage.forget_start()

    def optimizer_tensors(self) -> dict[str, Tensor]:
        """The optimizer's state of all stages, to be written or copied before the next step."""
        return {name: tensor for stage in self.stages for name, tensor in stage.optimizer_tensors().items()}

    def load_optimizer(self, tensors: Mapping[str, Tensor]) -> None:
        """Take up the optimizer's state where `optimizer_tensors` left it."""
        for stage in self.stages:
            stage.load_optimizer(tensors)
