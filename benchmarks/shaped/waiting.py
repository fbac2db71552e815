"""`hetpeer`, in which stages take their time and compute nothing: `python -m benchmarks.shaped.waiting SECONDS join …`.

A microbatch takes so many seconds forward and back, a third of them forward. What a stage sends on is as large as it
would be; its gradients are of chance, so its weights move, and contributions, sets and digests are real ones.
"""

import sys
import time
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from peer.cli.__main__ import main
from peer.compute.trainer import InFlight, StageTrainer
from peer.model.number_format import number_format


def waiting(seconds: float) -> Any:
    """In the block the passes of all stages wait instead of computing."""

    def sent(trainer: StageTrainer, wire: str) -> Tensor:
        inner, model = trainer.manifest.inner, trainer.manifest.model
        width = trainer.manifest.at(trainer.compression).k
        return number_format(wire, width).pack(torch.ones(inner.microbatch, model.context, width))

    def forward(trainer: StageTrainer, microbatch: int, tokens_BM: Tensor, payload: Tensor | None) -> Tensor:
        time.sleep(seconds / 3)
        trainer.in_flight[microbatch] = InFlight(tokens_BM[:, :-1], None, torch.zeros(()))
        return torch.ones(()) if trainer.last else sent(trainer, trainer.manifest.replicas.wires[0])

    def backward(trainer: StageTrainer, microbatch: int, payload: Tensor | None) -> Tensor | None:
        time.sleep(2 * seconds / 3)
        del trainer.in_flight[microbatch]
        for parameter in trainer.parameters:
            assert parameter.grad is not None
            parameter.grad.add_(torch.randn_like(parameter), alpha=1e-3)
        return None if trainer.first else sent(trainer, trainer.manifest.replicas.wires[1])

    return mock.patch.multiple(StageTrainer, forward=forward, backward=backward)


if __name__ == "__main__":
    with waiting(float(sys.argv.pop(1))):
        main()
