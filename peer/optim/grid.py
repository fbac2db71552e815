"""The grid: outer state and pseudo-gradients as integers in units of 2⁻²⁶.

Integer sums have no order, so two peers with the same contributions hold the same bits on every CPU
and GPU (docs/design/outer-state.md). The range of an int32 is ±32; leaving it is an error, never silent.
"""

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor

from protocol.errors import DivergedError
from protocol.tensor_formats import INT32_MAX, UNITS_PER_ONE

FAR = "a weight moved further than ±32 in one round, or is not a number"
OUT_OF_RANGE = "left the grid's range of ±32"


def to_float(grid: Tensor) -> Tensor:
    """int32 units → float32 weights. Multiplying by a power of two is exact."""
    return grid.to(torch.float32, copy=True).div_(UNITS_PER_ONE)


def to_units(values: Tensor) -> Tensor:
    """float32 → int64 units, rounded half to even.

    Raises:
        DivergedError: a value is outside ±32 or not finite.
    """
    scaled = values.to(torch.float64) * UNITS_PER_ONE
    if not bool((scaled.abs() <= INT32_MAX).all()):
        raise DivergedError(FAR)
    return scaled.round().to(torch.int64)


def to_int32(values: Tensor, what: str) -> Tensor:
    """Narrow int64 units to the int32 they are kept in.

    Raises:
        DivergedError: a value does not fit.
    """
    if values.numel() and int(values.abs().max()) > INT32_MAX:
        raise DivergedError(f"{what} {OUT_OF_RANGE}")
    return values.to(torch.int32)


def grid_digest(tensors: Mapping[str, Tensor]) -> str:
    """Hex SHA-256 of a part's grid: name, shape and little-endian int32 values of each tensor in turn."""
    state = hashlib.sha256()
    for name, tensor in tensors.items():
        state.update(f"{name} {tuple(tensor.shape)}\n".encode())
        state.update(tensor.detach().cpu().contiguous().numpy().astype("<i4", copy=False).data)
    return state.hexdigest()
