"""How fast a run goes, in tokens and as a share of what the machine can."""

import time

import torch

PEAK_SIZE = {"cpu": 1024, "cuda": 8192, "mps": 2048}
PEAK_TRIES = 8


def peak_operations(device: torch.device, dtype: torch.dtype) -> float:
    """Operations a second of a large square matrix product: the best of a few."""
    side = PEAK_SIZE.get(device.type, 1024)
    left, right = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
    best = float("inf")
    for _ in range(PEAK_TRIES):
        _wait(device)
        started = time.perf_counter()
        torch.mm(left, right)
        _wait(device)
        best = min(best, time.perf_counter() - started)
    return 2.0 * side**3 / best


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
