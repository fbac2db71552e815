"""How a replica that is whole computes: in which numbers, and whether its layers are compiled.

Weights, gradients, moments and Δ are fp32 in any case, and so is every held-out loss, which peers compare.
"""

import importlib.util
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from protocol.errors import ResourceError

Precision = Literal["fp32", "bf16"]

MATH_ATTENTION_CONTEXT = 512
"""On the CPU, shorter sequences are faster as plain matrix products: the fused kernel took 38 % of a step backward."""


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """`bf16` is autocast: matrix products and attention, nothing that is summed over steps."""

    precision: Precision = "fp32"
    compiled: bool = False

    @contextmanager
    def __call__(self, device: torch.device, context: int, cached: bool = True) -> Iterator[None]:
        """Compute so within the block, on sequences of `context` tokens. `cached`: keep a bf16 copy of each weight from
        one microbatch to the next."""
        if self.precision == "fp32":
            yield
            return
        fused = device.type != "cpu" or context >= MATH_ATTENTION_CONTEXT
        kernels = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION] if fused else []
        with (
            torch.autocast(device.type, torch.bfloat16, cache_enabled=cached),
            sdpa_kernel([*kernels, SDPBackend.MATH]),
        ):
            yield

    def require(self, device: torch.device) -> None:
        """Check that this machine can compute so.

        Raises:
            ResourceError: torch has no compiler here.
        """
        if not self.compiled or device.type == "mps":
            return
        if device.type == "cuda" and importlib.util.find_spec("triton") is None:
            raise ResourceError("--compile: torch compiles for CUDA with triton, which is not here: pip install triton")
        if not any(map(shutil.which, (os.environ.get("CXX", "g++"), "clang++"))):
            raise ResourceError("--compile: torch compiles with g++, which is not here: apt-get install g++")
