"""How fast this machine computes its stage, before anybody waits for it: so that like goes with like from the start."""

import time

import torch

from peer.compute.payload import from_bytes, to_bytes
from peer.compute.trainer import StageTrainer
from protocol.frames import FrameRules
from protocol.records import MOST_TOKENS_PER_SECOND

PASSES, SECONDS = 3, 5.0
"""So many microbatches are tried, fewer where they take long; the first is slower than those behind it."""


def tokens_per_second(trainer: StageTrainer) -> float:
    """Of a microbatch forward and back, without its neighbours. The trainer has loaded a round, and is as before."""
    rules, device = FrameRules.of(trainer.manifest), trainer.device
    tokens_BM = torch.zeros(rules.sequences, trainer.manifest.model.context + 1, dtype=torch.int64)
    activations = None if trainer.first else from_bytes(bytes(rules.activations.size), rules.activations, device)
    gradients = None if trainer.last else from_bytes(bytes(rules.gradients.size), rules.gradients, device)
    tried, begun = list[float](), time.monotonic()
    while len(tried) < PASSES and time.monotonic() < begun + SECONDS:
        at = time.monotonic()
        out = trainer.forward(0, tokens_BM, activations)
        _ = out.item() if trainer.last else to_bytes(out)
        back = trainer.backward(0, gradients)
        _ = trainer.squared_norm() if back is None else to_bytes(back)  # either waits for the device
        tried.append(time.monotonic() - at)
    trainer.abandon()
    return rules.sequences * trainer.manifest.model.context / min(tried)


def told(speed: float) -> float:
    """A speed as a peer's record has it: two digits, and a number of the record's."""
    return min(float(f"{speed:.2g}"), MOST_TOKENS_PER_SECOND)
