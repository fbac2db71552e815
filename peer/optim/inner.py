"""The inner step: AdamW, warm-up and cosine, clipping over the whole replica (paper, Table 9). `peer/optim/muon.py` has
the other optimizer, and `optimizer`, which makes the one that the manifest names."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from protocol.errors import DivergedError
from protocol.manifest import Manifest
from protocol.manifest_tables import Inner

MOMENTS = ("exp_avg", "exp_avg_sq")
ADAMW_STATE = ("step", *MOMENTS)
"""The state of AdamW for each parameter, by torch's names."""

OptimizerState = dict[str, list[Tensor]]
"""The state of an optimizer: by name, a tensor for each parameter."""


@dataclass(slots=True)
class AdamW:
    """AdamW over everything a stage trains, by torch's fused kernel. `state` is empty before the first step.

    All of it decays: a compressed group therefore decays only T_S = Z Uᵀ of the token embedding, a datacenter replica
    all of TE. It is not `torch.optim.AdamW` because that imports torch's compiler: a third of all that a volunteer
    computes until it is back after a crash.
    """

    parameters: list[nn.Parameter]
    inner: Inner
    state: OptimizerState = field(default_factory=dict)

    def begin(self) -> None:
        """Make the state before the first step, all zero; nothing if there is one."""
        if not self.state:
            shapes = self.shapes
            self.state = {
                name: [
                    torch.zeros(shapes[f"{i}.{name}"], device=parameter.device)
                    for i, parameter in enumerate(self.parameters)
                ]
                for name in ADAMW_STATE
            }

    @torch.no_grad()
    def update(self, factor: float, rate: float) -> None:
        """Scale the gradients by `factor`, take one step at `rate`, and clear the gradients."""
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        assert len(gradients) == len(self.parameters)
        self.begin()
        if factor < 1.0:
            torch._foreach_mul_(gradients, factor)
        adamw(
            [parameter.data for parameter in self.parameters],  # graphs in flight see their weights once more
            gradients,
            self.state["exp_avg"],
            self.state["exp_avg_sq"],
            [],
            self.state["step"],
            fused=True,
            amsgrad=False,
            beta1=self.inner.betas[0],
            beta2=self.inner.betas[1],
            lr=rate,
            weight_decay=self.inner.weight_decay,
            eps=self.inner.epsilon,
            maximize=False,
        )
        torch._foreach_zero_(gradients)

    def tensors(self) -> dict[str, Tensor]:
        """Its state, by number of parameter and name: the tensors themselves, which the next step changes."""
        return {f"{i}.{name}": tensor for name, of in self.state.items() for i, tensor in enumerate(of)}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Take up what `tensors` gave; nothing is no state, and leaves this one."""
        if tensors:
            devices = [parameter.device for parameter in self.parameters]
            self.state = {
                name: [tensors[f"{i}.{name}"].to(device, copy=True) for i, device in enumerate(devices)]
                for name in ADAMW_STATE
            }

    def resize(self, number: int, columns: int) -> None:
        """Give the moments of a parameter other columns: those that stay keep theirs, new ones begin at zero."""
        for name in MOMENTS if self.state else ():
            self.state[name][number] = resized(self.state[name][number], columns)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The names and shapes of `tensors` after a step."""
        return {
            f"{i}.{name}": () if name == "step" else tuple(parameter.shape)
            for i, parameter in enumerate(self.parameters)
            for name in ADAMW_STATE
        }

    @property
    def steps(self) -> int:
        """The number of steps in its moments."""
        return max((int(steps.item()) for steps in self.state.get("step", ())), default=0)


def resized(tensor: Tensor, columns: int) -> Tensor:
    """`tensor` [rows, …] with its first `columns`, and zeros in those that it has not."""
    return nn.functional.pad(tensor, (0, columns - tensor.shape[1]))


def place_in_run(manifest: Manifest, round: int, step: int, steps: int) -> float:
    """The position of inner step `step` (from 0) of `steps` in a round (from 1) in the run, for the learning rate:
    counted in steps of replicas that take H in a round. So all replicas end a round at the same rate, however many
    steps they take."""
    return (round - 1) * manifest.inner.steps + step * (manifest.inner.steps / steps)


def learning_rate(manifest: Manifest, step: float) -> float:
    """The rate at `step` of the run, counted from 0 (`place_in_run`): linear warm-up, then cosine."""
    inner = manifest.inner
    total = manifest.outer.rounds * inner.steps
    warmup = min(inner.warmup, total)
    if step < warmup:
        return inner.learning_rate * (step + 1) / warmup
    progress = min(1.0, (step - warmup) / max(1, total - warmup))
    cosine = (1 + math.cos(math.pi * progress)) / 2
    return inner.learning_rate * (inner.final_learning_rate + (1 - inner.final_learning_rate) * cosine)


def squared_norm(parameters: Iterable[nn.Parameter]) -> float:
    """Σ g² over one stage's gradients; the replica's norm is the root of the sum over its stages."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    norms: list[float] = torch.stack(torch._foreach_norm(gradients)).tolist()  # read from the device at once
    return sum(norm**2 for norm in norms)


def clip_factor(squared_norms: Iterable[float], clip: float) -> float:
    """The factor of every gradient of the replica: min(1, clip / ‖g‖), ‖g‖ over all stages.

    The stages' squares are summed exactly, so that every place computes the same float.

    Raises:
        DivergedError: the norm is not a number.
    """
    total = math.fsum(squared_norms)
    if not math.isfinite(total):
        raise DivergedError("the gradient is not a number: this replica has diverged; a lower learning rate may help")
    return min(1.0, clip / (math.sqrt(total) + 1e-6))


def stage_clip_factor(stage: int, squared_norm: float, before: Sequence[float], stages: int, clip: float) -> float:
    """The factor of the gradients of one stage of `stages` where the others' are not known yet: by the replica's norm
    with the squares that the others had in the step `before`, one for each stage. Where there was none, each stage's
    share of the allowed squared norm is as large as the others'.

    Raises:
        DivergedError: the norm is not a number.
    """
    others = [square for other_stage, square in enumerate(before) if other_stage != stage]
    return clip_factor([squared_norm, *others] if before else [squared_norm * stages], clip)
