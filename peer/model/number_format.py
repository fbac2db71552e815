"""Numbers as they cross a boundary: rounded to floats of fewer bits, or to integers with a scale for each token.

Rounding is part of the mathematics, so that a run in one process rounds as a swarm does: what is packed here is what
the wire carries (`protocol/codec/frames.py`), and what is unpacked is what the receiver computes with.

Letters of shapes: B sequences, L tokens, k values of a token, w bytes of one.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from protocol.codec.frames import SCALE_BYTES, Payload
from protocol.tensor_formats import FORMATS

SMALLEST_SCALE = 1e-30
"""A scale below this divides nothing: its token is zeros."""


class NumberFormat(Protocol):
    """One way to write a tensor of floats."""

    def pack(self, z_BLk: Tensor) -> Tensor:
        """Pack numbers for the wire, contiguously."""

    def unpack(self, payload: Tensor) -> Tensor:
        """Unpack the receiver's numbers, fp32 [B, L, k]."""


@dataclass(frozen=True, slots=True)
class Floats:
    """[B, L, k] in `dtype`."""

    dtype: torch.dtype

    def pack(self, z_BLk: Tensor) -> Tensor:
        return z_BLk.to(self.dtype).contiguous()

    def unpack(self, payload: Tensor) -> Tensor:
        return payload.float()


@dataclass(frozen=True, slots=True)
class Integers:
    """Bytes [B, L, w]: of each token its scale and its cells. `width` is k."""

    wire: str
    width: int

    def pack(self, z_BLk: Tensor) -> Tensor:
        z_BLk = z_BLk.float()
        half = 1 << (FORMATS[self.wire].bits - 1)
        scale_BL1 = z_BLk.square().mean(-1, keepdim=True).sqrt().to(torch.bfloat16)
        steps_BL1 = (scale_BL1.float() * FORMATS[self.wire].step).clamp_min(SMALLEST_SCALE)
        cells_BLk = (z_BLk / steps_BL1).floor().clamp(-half, half - 1).add(half).to(torch.uint8)
        if self.wire == "int4":
            if self.width % 2:
                cells_BLk = torch.nn.functional.pad(cells_BLk, (0, 1))
            cells_BLk = cells_BLk[..., 0::2] | cells_BLk[..., 1::2] << 4
        return torch.cat((scale_BL1.contiguous().view(torch.uint8), cells_BLk), -1)

    def unpack(self, payload: Tensor) -> Tensor:
        half = 1 << (FORMATS[self.wire].bits - 1)
        lower_BL1, upper_BL1 = payload[..., :1].int(), payload[..., 1:SCALE_BYTES].int()
        scale_BL1 = (lower_BL1 << 16 | upper_BL1 << 24).view(torch.float32)
        cells_BLk = payload[..., SCALE_BYTES:]
        if self.wire == "int4":
            cells_BLk = torch.stack((cells_BLk & 15, cells_BLk >> 4), -1).flatten(-2)[..., : self.width]
        return (cells_BLk.float() - half + 0.5) * (scale_BL1 * FORMATS[self.wire].step)


DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
"""The torch types of the float formats that cross a boundary (`protocol/tensor_formats.py`)."""


def number_format(wire: str, width: int) -> NumberFormat:
    """The format of this name, for tokens of `width` values."""
    return Integers(wire, width) if FORMATS[wire].step else Floats(DTYPES[wire])


def to_bytes(payload: Tensor) -> bytes:
    """The row-major bytes of a payload: little-endian, as every machine is that torch runs on."""
    return payload.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()


def from_bytes(data: bytes, payload: Payload, device: torch.device) -> Tensor:
    """A payload of checked size (`protocol.codec.frames` has checked it) from its bytes."""
    tensor = torch.frombuffer(bytearray(data), dtype=DTYPES.get(payload.wire, torch.uint8))
    return tensor.reshape(payload.sequences, payload.context, -1).to(device)
