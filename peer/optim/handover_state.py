"""The bytes of a handover: error feedback and the optimizer's state in one safetensors file. What comes from another is
checked.

error_feedback.<part>.<tensor>    int32, in units of 2⁻²⁶
optimizer.<key>                   moments and counts, as a checkpoint has them
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from peer.optim.bounds import check_moments, largest_value
from peer.optim.grid import to_int32
from peer.optim.outer import Grid
from protocol.errors import FormatError
from protocol.identity import Part
from protocol.layout import Shape, part_layout
from protocol.manifest import Manifest

ERROR_FEEDBACK, OPTIMIZER = "error_feedback.", "optimizer."


@dataclass(frozen=True, slots=True)
class HandoverState:
    """Error feedback of the parts that a volunteer authors, and its optimizer's state (empty: it has never trained)."""

    error_feedback: Mapping[Part, Grid]
    optimizer: Mapping[str, Tensor]

    @property
    def empty(self) -> bool:
        """Whether there is nothing to hand over."""
        return not self.optimizer and not any(
            bool(tensor.any()) for grid in self.error_feedback.values() for tensor in grid.values()
        )


def pack_state(handed_over: HandoverState) -> bytes:
    """Serialize the state for the wire."""
    tensors = {f"{OPTIMIZER}{key}": tensor for key, tensor in handed_over.optimizer.items()}
    for part, grid in handed_over.error_feedback.items():
        tensors |= {f"{ERROR_FEEDBACK}{part}.{name}": tensor for name, tensor in grid.items()}
    blob: bytes = save(tensors)
    return blob


def unpack_state(blob: bytes, parts: list[Part], manifest: Manifest, moments: Mapping[str, Shape]) -> HandoverState:
    """Check what another peer made: exactly the tensors of `parts`, and the optimizer's state of `moments` or none.

    Raises:
        FormatError: it is anything else.
    """
    try:
        tensors: dict[str, Tensor] = load(blob)
    except (SafetensorError, ValueError, KeyError, RuntimeError) as error:
        raise FormatError(f"a bequest that is no safetensors file: {error}") from None
    optimizer = {key.removeprefix(OPTIMIZER): tensors.pop(key) for key in [*tensors] if key.startswith(OPTIMIZER)}
    error_feedback = {}
    for part in parts:
        layout = part_layout(manifest, part)
        grid = {name: tensors.pop(f"{ERROR_FEEDBACK}{part}.{name}", None) for name in layout}
        error_feedback[part] = {name: _checked(name, tensor, layout[name]) for name, tensor in grid.items()}
    if tensors:
        raise FormatError(f"a bequest with tensors that belong to no part of this stage: {min(tensors)[:60]}")
    if optimizer:
        check_moments(optimizer, moments, manifest)
    return HandoverState(error_feedback, optimizer)


def _checked(name: str, tensor: Tensor | None, shape: Shape) -> Tensor:
    if tensor is None or tensor.dtype != torch.int32 or tuple(tensor.shape) != shape:
        raise FormatError(f"a bequest without the error feedback of {name} as int32 of shape {shape}")
    return tensor


def added(own: Grid, given: Grid, manifest: Manifest, part: Part, round: int) -> Grid:
    """own + given, exactly.

    Raises:
        FormatError: the sum is larger than honest error feedback can be in this round, so that what is sent of it would
            be refused by all.
    """
    total: Grid = {}
    for name, tensor in own.items():
        most = largest_value(manifest, name, tuple(tensor.shape), round)
        bound = most // 2  # the other half is for what may be put back
        sums = tensor.to(torch.int64) + given[name].to(torch.int64)
        if int(sums.abs().max()) > bound:
            raise FormatError(f"a bequest whose error feedback of {name} is larger than honest work makes it")
        total[name] = sums.to(torch.int32)
    return total


def returned(own: Grid, blob: bytes, part: Part) -> Grid:
    """own + what this peer itself had set aside, which its successor has declined.

    Raises:
        DivergedError: the sum left the grid's range.
    """
    tensors: dict[str, Tensor] = load(blob)
    name = f"{ERROR_FEEDBACK}{part}."
    return {
        tensor_name: to_int32(
            tensor.to(torch.int64) + tensors[name + tensor_name].to(torch.int64), "the error feedback"
        )
        if name + tensor_name in tensors
        else tensor
        for tensor_name, tensor in own.items()
    }
