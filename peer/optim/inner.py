"""The inner step: AdamW, warm-up and cosine, clipping over the whole replica (paper, Table 9)."""

import math
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from protocol.errors import DivergedError
from protocol.manifest import Inner, Manifest


def adamw(parameters: Iterable[nn.Parameter], inner: Inner) -> torch.optim.AdamW:
    """AdamW over everything a stage trains.

    All of it decays: a compressed group therefore decays only T_S = Z Uᵀ of the token embedding, a
    datacenter replica all of TE.
    """
    return torch.optim.AdamW(
        parameters,
        lr=inner.learning_rate,
        betas=inner.betas,
        eps=inner.epsilon,
        weight_decay=inner.weight_decay,
        fused=True,
    )


def learning_rate(manifest: Manifest, step: int) -> float:
    """The rate of inner step `step`, counted from 0 over the whole run: linear warm-up, then cosine."""
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
    return sum(norm.item() ** 2 for norm in torch._foreach_norm(gradients))


def clip_factor(squared_norms: Iterable[float], clip: float) -> float:
    """What every gradient of the replica is multiplied by: min(1, clip / ‖g‖), ‖g‖ over all stages.

    The stages' squares are summed exactly, so that every place computes the same float.

    Raises:
        DivergedError: the norm is not a number.
    """
    total = math.fsum(squared_norms)
    if not math.isfinite(total):
        raise DivergedError("the gradient is not a number: this replica has diverged; a lower learning rate may help")
    return min(1.0, clip / (math.sqrt(total) + 1e-6))


def update(optimizer: torch.optim.AdamW, factor: float, rate: float) -> None:
    """Scale the gradients by `factor`, take one AdamW step at `rate`, and clear the gradients."""
    gradients: list[Tensor] = []
    for group in optimizer.param_groups:
        group["lr"] = rate
        gradients += [parameter.grad for parameter in group["params"] if parameter.grad is not None]
    if factor < 1.0:
        torch._foreach_mul_(gradients, factor)
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)


def optimizer_tensors(optimizer: torch.optim.AdamW) -> dict[str, Tensor]:
    """AdamW's moments and step counts, on the CPU, by number of parameter."""
    tensors: dict[str, Tensor] = {}
    for index, parameter in enumerate(parameter for group in optimizer.param_groups for parameter in group["params"]):
        for name, value in optimizer.state.get(parameter, {}).items():
            tensors[f"{index}.{name}"] = value.detach().cpu().clone()
    return tensors


def state_shapes(optimizer: torch.optim.AdamW) -> dict[str, tuple[int, ...]]:
    """What `optimizer_tensors` returns once the optimizer has taken a step: name → shape."""
    shapes: dict[str, tuple[int, ...]] = {}
    for index, parameter in enumerate(parameter for group in optimizer.param_groups for parameter in group["params"]):
        moment = tuple(parameter.shape)
        shapes |= {f"{index}.step": (), f"{index}.exp_avg": moment, f"{index}.exp_avg_sq": moment}
    return shapes


def steps_remembered(optimizer: torch.optim.AdamW) -> int:
    """How many steps are in AdamW's moments."""
    return max((int(state["step"].item()) for state in optimizer.state.values()), default=0)


def load_optimizer(optimizer: torch.optim.AdamW, tensors: Mapping[str, Tensor]) -> None:
    """Put back what `optimizer_tensors` took."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for key, value in tensors.items():
        index, name = key.split(".", 1)
        optimizer.state[parameters[int(index)]][name] = value.to(parameters[int(index)].device).clone()
