"""Held-out loss of the outer state, in both forward modes.

The paper averages over replicas, so that half of a heterogeneous run evaluates without the bottleneck;
we report the two apart (reference: HET, Table 1 and its note).
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import torch
from torch import Tensor

from peer.compute.design import Boundaries, Design, design
from peer.compute.replica import WholeReplica
from peer.compute.trainer import GridView, load_stage
from peer.model.stage import Stage
from peer.optim.grid import to_float
from protocol.identity import EMBEDDING, Part, stage_part
from protocol.layout import EMBEDDING_TENSOR
from protocol.manifest import Manifest


class Evaluates(Protocol):
    """Has the held-out loss of outer states, from one process or from several (`peer/devices/parallel_replica.py`)."""

    manifest: Manifest

    def evaluate(self, grids: Mapping[Part, GridView]) -> tuple[float, float]:
        """(loss through the boundaries, plain loss) of this outer state, in nats per token."""


class Evaluator:
    """The whole model, for evaluation only, or in the weights of a replica that is between two rounds."""

    def __init__(
        self,
        manifest: Manifest,
        basis_DD: Tensor | None,
        held_out_SM: Tensor,
        device: torch.device,
        own_design: Design | None = None,
        replica: WholeReplica | None = None,
    ) -> None:
        """`held_out_SM` [sequences, L + 1] are token ids nobody trains on. `own_design` is the lab's of a group. With a
        `replica` each evaluation takes its weights, and it must load a round before it trains again."""
        self.manifest = manifest
        self.basis_DD = basis_DD
        group = own_design or design(manifest, "group", basis_DD, device)
        self.through = group.boundaries
        self.plain = design(manifest, "datacenter", None, device).boundaries
        self.held_out_SM = held_out_SM.to(device)
        self.device = device
        self.replica = replica
        if replica is not None:
            self.stages = [view.stage for view in replica.stages]
        else:
            own_stages = [Stage(manifest, stage).to(device) for stage in range(manifest.replicas.stages)]
            self.stages = [stage.requires_grad_(False) for stage in own_stages]

    def compile(self) -> None:
        """Let torch compile every layer."""
        for stage in self.stages:
            stage.compile_layers()

    def evaluate(self, grids: Mapping[Part, GridView]) -> tuple[float, float]:
        """(loss through the boundaries, plain loss) of this outer state, in nats per token."""
        te_VD = self.load(grids)
        with torch.no_grad(), self._uncompiled():
            return self._loss(te_VD, self.through(te_VD.clone())), self._loss(te_VD, self.plain(te_VD))

    def load(self, grids: Mapping[Part, GridView]) -> Tensor:
        """Take the stages' weights of this outer state. Returns its token embedding TE [V, d]."""
        if self.replica is not None:
            self.replica.forget_start()
        for index, stage in enumerate(self.stages):
            load_stage(stage, grids[stage_part(index)])
        return to_float(grids[EMBEDDING][EMBEDDING_TENSOR].to(self.device))

    def _uncompiled(self) -> AbstractContextManager[object]:
        """Compute without compiled layers in the block: compiled ones are for training, and held-out losses are
        computed as by all others."""
        compiled = self.replica is not None and self.replica.arithmetic.compiled
        return torch.compiler.set_stance("force_eager") if compiled else nullcontext()

    def _loss(self, te_VD: Tensor, boundaries: Boundaries) -> float:
        total = 0.0
        for tokens_BM in self.held_out_SM.split(self.manifest.inner.microbatch):
            total += len(tokens_BM) * self._microbatch_loss(te_VD, boundaries, tokens_BM)
        return total / len(self.held_out_SM)

    def _microbatch_loss(self, te_VD: Tensor, boundaries: Boundaries, tokens_BM: Tensor) -> float:
        tokens_BL = tokens_BM[:, :-1]
        x_BLD = te_VD[tokens_BL]
        for index, stage in enumerate(self.stages):
            if index:
                boundary = boundaries(index - 1)
                x_BLD = boundary.decode(boundary.encode(x_BLD, tokens_BL), tokens_BL)
            x_BLD = stage(x_BLD, tokens_BL)
        loss: Tensor = self.stages[-1].lm_head(x_BLD, tokens_BM[:, 1:])
        return loss.item()
