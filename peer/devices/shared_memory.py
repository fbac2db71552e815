"""Tensors that processes of one machine share: a piece of memory without a name, handed on as a file descriptor.

Not torch's own sharing, which goes through /dev/shm: a container has 64 MB of that.
"""

import mmap
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

DTYPES = {"float32": torch.float32, "int64": torch.int64}

ALIGNMENT = 64

TensorLayout = Mapping[str, tuple[str, tuple[int, ...]]]
"""Name → dtype and shape, as JSON can say it."""


@dataclass(frozen=True, slots=True)
class Parcel:
    """Tensors at the places that their layout says. The memory lives as long as one of them does anywhere."""

    layout: TensorLayout
    tensors: dict[str, Tensor]
    handle: int


@contextmanager
def packed(layout: TensorLayout) -> Iterator[Parcel]:
    """New tensors, all zeros; others can be let have them within the block."""
    if sys.platform == "linux":
        handle = os.memfd_create("hetpeer")
    else:
        with tempfile.TemporaryFile() as file:
            handle = os.dup(file.fileno())
    try:
        os.ftruncate(handle, _end(layout))
        yield Parcel(layout, unpack_tensors(handle, layout), handle)
    finally:
        os.close(handle)


def unpack_tensors(handle: int, layout: TensorLayout) -> dict[str, Tensor]:
    """The tensors in the memory behind a file descriptor, which may be closed afterwards."""
    memory = mmap.mmap(handle, _end(layout))
    tensors, place = {}, 0
    for name, (dtype, shape) in layout.items():
        flat = torch.frombuffer(memory, dtype=DTYPES[dtype], count=prod(shape), offset=place)
        tensors[name] = flat.view(shape)
        place += _room(dtype, shape)
    return tensors


def layout_of(tensors: Mapping[str, Tensor]) -> TensorLayout:
    """The layout in which these find room."""
    return {name: (str(each.dtype).removeprefix("torch."), tuple(each.shape)) for name, each in tensors.items()}


def _end(layout: TensorLayout) -> int:
    return sum(_room(dtype, shape) for dtype, shape in layout.values())


def _room(dtype: str, shape: tuple[int, ...]) -> int:
    """Bytes of one tensor and of what is left free behind it."""
    return -(-DTYPES[dtype].itemsize * prod(shape) // ALIGNMENT) * ALIGNMENT
