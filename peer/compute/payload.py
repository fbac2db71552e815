"""Tensors as wire bytes and back. Little-endian machines only, which is every machine torch runs on."""

import torch
from torch import Tensor

from peer.model.number_format import DTYPES
from protocol.codec.payloads import Payload


def to_bytes(payload: Tensor) -> bytes:
    """The row-major bytes of a payload."""
    return payload.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()


def from_bytes(data: bytes, payload: Payload, device: torch.device) -> Tensor:
    """A payload of checked size (`protocol.codec.frames` has checked it) from its bytes."""
    tensor = torch.frombuffer(bytearray(data), dtype=DTYPES.get(payload.wire, torch.uint8))
    return tensor.reshape(payload.sequences, payload.context, -1).to(device)
