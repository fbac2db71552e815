"""A volunteer whose payloads are false and well formed.

`noisy`: gradients with noise of a tenth of their norm. `biased`: gradients
with a tenth of their norm in a direction that stays for the round, the same for all tokens. `made-up`: one in twenty
payloads, forward or back, is noise of the norm that the true one has. The weights of its own stage it trains honestly.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from peer.compute.trainer import StageTrainer
from peer.model.subspace import Boundary

WRONG_BY = 0.1
MADE_UP = 1 / 20


@dataclass(frozen=True, slots=True, eq=False)
class FalseBoundary:
    """A boundary through which a liar sends. What it receives is what was sent."""

    true: Boundary
    kind: str
    numbers: torch.Generator
    """On the CPU, so that a seed tells the same lies on every device."""

    def encode(self, x_BLD: Tensor, tokens_BL: Tensor) -> Tensor:
        payload = self.true.encode(x_BLD, tokens_BL)
        return self._made_up(payload) if self.kind == "made-up" else payload

    def decode(self, payload: Tensor, tokens_BL: Tensor) -> Tensor:
        return self.true.decode(payload, tokens_BL)

    def encode_gradient(self, g_BLD: Tensor) -> Tensor:
        payload = self.true.encode_gradient(g_BLD)
        if self.kind == "made-up":
            return self._made_up(payload)
        if self.kind == "biased":
            again = torch.Generator().manual_seed(self.numbers.initial_seed())
            noise = self._noise(payload, (1, 1, payload.shape[-1]), again)
        else:
            noise = self._noise(payload, payload.shape, self.numbers)
        return (payload.float() + WRONG_BY * noise).to(payload.dtype)

    def decode_gradient(self, payload: Tensor) -> Tensor:
        return self.true.decode_gradient(payload)

    def _made_up(self, payload: Tensor) -> Tensor:
        if torch.rand((), generator=self.numbers) >= MADE_UP:
            return payload
        return self._noise(payload, payload.shape, self.numbers).to(payload.dtype)

    def _noise(self, like: Tensor, shape: Sequence[int], numbers: torch.Generator) -> Tensor:
        """Normal numbers in a shape that spreads over a payload's, as large as that in all."""
        noise: Tensor = torch.randn(shape, generator=numbers).to(like.device).expand(like.shape)
        size: Tensor = like.float().norm() / noise.norm()
        return noise * size


def falsify(stage: StageTrainer, kind: str, seed: Sequence[int]) -> None:
    """Let a stage send false payloads until it is loaded again."""
    numbers = torch.Generator().manual_seed(int(np.random.SeedSequence(seed).generate_state(1, np.uint64)[0] >> 1))
    stage.before = FalseBoundary(stage.before, kind, numbers)
    stage.behind = FalseBoundary(stage.behind, kind, numbers)
