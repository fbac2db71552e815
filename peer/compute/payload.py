"""Tensors as wire bytes and back. Little-endian machines only, which is every machine torch runs on."""

import torch
from torch import Tensor

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


def to_bytes(payload: Tensor) -> bytes:
    """The row-major bytes of a payload."""
    return payload.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()


def from_bytes(data: bytes, shape: tuple[int, ...], wire: str, device: torch.device) -> Tensor:
    """A payload of checked size (`protocol.frames` has checked it) from its bytes."""
    return torch.frombuffer(bytearray(data), dtype=DTYPES[wire]).reshape(shape).to(device)
