"""What Subspace Networks (arXiv 2506.01260) do to a group's step, and the paper drops (HET, Table 5).

Letters of shapes: V vocabulary, d = D width of the residual stream, k dimensions of the subspace.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from peer.compute.replica import WholeReplica
from peer.compute.trainer import StageTrainer
from peer.lab.switches import Switches
from peer.model.embedding import Embedding, require_shape, split
from peer.optim.inner import STATE, AdamW
from protocol.manifest import Inner

WRITERS = ("o_proj.weight", "down_proj.weight")
"""What writes into the residual stream: [d, inputs]."""


class SubspaceTable(Embedding):
    """T⊥[x] + T_S[x] with a dense T_S [V, d] to train, which begins every inner loop in the subspace."""

    basis_dk: Tensor
    anchor_Vd: Tensor
    start_Vd: Tensor

    def __init__(self, vocabulary: int, basis_dk: Tensor) -> None:
        super().__init__()
        empty_Vd = torch.empty(vocabulary, len(basis_dk), device=basis_dk.device)
        self.ts_Vd = nn.Parameter(empty_Vd)
        self.register_buffer("basis_dk", basis_dk, persistent=False)
        self.register_buffer("anchor_Vd", empty_Vd.clone(), persistent=False)
        self.register_buffer("start_Vd", empty_Vd.clone(), persistent=False)

    def forward(self, tokens_BL: Tensor) -> Tensor:
        return F.embedding(tokens_BL, self.anchor_Vd) + F.embedding(tokens_BL, self.ts_Vd)

    @torch.no_grad()
    def load(self, te_Vd: Tensor) -> None:
        require_shape(te_Vd, self.anchor_Vd)
        anchor_Vd = split(te_Vd, self.basis_dk)[1]
        self.anchor_Vd.copy_(anchor_Vd)
        self.ts_Vd.copy_(te_Vd - anchor_Vd)
        self.start_Vd.copy_(self.ts_Vd)

    @torch.no_grad()
    def moved(self) -> Tensor:
        return self.start_Vd - self.ts_Vd

    @torch.no_grad()
    def project(self) -> None:
        """T_S ← T_S U Uᵀ."""
        self.ts_Vd.copy_(self.ts_Vd @ self.basis_dk @ self.basis_dk.T)


@dataclass(slots=True)
class ColumnAdamW(AdamW):
    """AdamW whose second moment is one number for each column of the matrices in `constrained`.

    So a step is the first moment times a diagonal on the inputs' side: columns in a subspace stay in it.
    """

    constrained: set[int] = field(default_factory=set)
    """Places in `parameters`."""

    @torch.no_grad()
    def update(self, factor: float, rate: float) -> None:
        if not self.state:
            self.state = {name: [torch.zeros_like(each) for each in self.parameters] for name in STATE[1:]}
            self.state["step"] = [torch.zeros((), device=each.device) for each in self.parameters]
        first, second = self.inner.betas
        for i, parameter in enumerate(self.parameters):
            gradient = parameter.grad
            assert gradient is not None
            step, mean, square = (self.state[name][i] for name in ("step", "exp_avg", "exp_avg_sq"))
            gradient.mul_(factor)
            step += 1
            squared = gradient**2
            if i in self.constrained:
                squared = squared.mean(0, keepdim=True).expand_as(gradient)
            mean.lerp_(gradient, 1 - first)
            square.lerp_(squared, 1 - second)
            root = (square / (1 - second ** step.item())).sqrt().add_(self.inner.epsilon)
            parameter.mul_(1 - rate * self.inner.weight_decay)
            parameter.addcdiv_(mean, root, value=-rate / (1 - first ** step.item()))
            gradient.zero_()


def optimizer(stage: StageTrainer, switches: Switches) -> AdamW:
    """A new AdamW for one replica's stage."""
    inner: Inner = stage.manifest.inner
    if switches.second_moment == "elements" or stage.kind == "datacenter" or not stage.manifest.compressed:
        return AdamW(stage.parameters, inner)
    wanted = {id(parameter) for parameter in _writers(stage)}
    return ColumnAdamW(
        stage.parameters, inner, constrained={i for i, each in enumerate(stage.parameters) if id(each) in wanted}
    )


@torch.no_grad()
def after_step(group: WholeReplica, switches: Switches, basis_dk: Tensor) -> None:
    """What is put back into the subspace after an inner step of a group."""
    if switches.embedding == "project":
        for stage in group.stages:
            if isinstance(stage.embedding, SubspaceTable):
                stage.embedding.project()
    if switches.weight_projection:
        for stage in group.stages:
            for weight in _writers(stage):
                weight.copy_(basis_dk @ (basis_dk.T @ weight))


def _writers(stage: StageTrainer) -> Sequence[nn.Parameter]:
    """Those of a stage before a boundary: the last is free, as in the field's code."""
    if stage.last:
        return []
    return [parameter for name, parameter in stage.stage.named_parameters() if name.endswith(WRITERS)]
