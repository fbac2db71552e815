"""A replica trained by autograd in one piece: what a pipeline of stages must equal.

The boundary is the equation inside the forward pass, torch's own clipping and AdamW around it.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from peer.model.stage import Stage
from peer.optim.inner import learning_rate
from protocol.manifest import Manifest


class OneProcess:
    """All stages as one module. With `u`, X̂ = (X − A[x]) U Uᵀ + A[x] is between stages: A is T⊥, or all of TE as it was
    at the start."""

    def __init__(self, manifest: Manifest, stages: list[dict[str, Tensor]], te: Tensor, u: Tensor | None) -> None:
        self.manifest = manifest
        self.stages = [Stage(manifest, index) for index in range(len(stages))]
        for stage, weights in zip(self.stages, stages, strict=True):
            stage.load(weights)
        self.u = u
        self.factored = u is not None and manifest.replicas.anchor == "complement"
        self.anchor = te.clone()
        self.embedding = nn.Parameter(te.clone())
        if u is not None and self.factored:
            self.anchor -= te @ u @ u.T
            self.embedding = nn.Parameter(te @ u)
        parameters = [parameter for stage in self.stages for parameter in stage.parameters()]
        self.parameters = [*parameters, self.embedding]
        inner = manifest.inner
        self.optimizer = torch.optim.AdamW(
            self.parameters, betas=inner.betas, eps=inner.epsilon, weight_decay=inner.weight_decay
        )

    def embed(self, tokens: Tensor) -> Tensor:
        rows = self.embedding[tokens]
        return self.anchor[tokens] + rows @ self.u.T if self.u is not None and self.factored else rows

    def loss(self, batch: Tensor) -> Tensor:
        """Mean cross-entropy of `batch` [sequences, L + 1]."""
        tokens, targets = batch[:, :-1], batch[:, 1:]
        x = self.embed(tokens)
        for index, stage in enumerate(self.stages):
            if index and self.u is not None:
                x = (x - self.anchor[tokens]) @ self.u @ self.u.T + self.anchor[tokens]
            x = stage(x, tokens)
        logits = F.linear(x, self.stages[-1].lm_head.weight)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())

    def inner_step(self, batch: Tensor, step: int) -> float:
        self.optimizer.zero_grad()
        loss = self.loss(batch)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.parameters, self.manifest.inner.clip)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.manifest, step)
        self.optimizer.step()
        return loss.item()
