"""The arithmetic of a replica, or a volunteer's stage: its number formats, and whether its layers are compiled.

Weights, gradients, moments and Δ are fp32 in any case, and so is every held-out loss, which peers compare.
"""

import importlib.util
import os
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Literal

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from protocol.errors import ResourceError

Precision = Literal["exact", "fp32", "bf16", "fp16"]
PrecisionName = Literal["auto", "fp32", "bf16", "fp16"]

MATH_ATTENTION_CONTEXT = 512
"""On the CPU, shorter sequences are faster as plain matrix products: the fused kernel took 38 % of a step backward."""

BF16_CAPABILITY = (8, 0)
"""CUDA devices from this compute capability on, Ampere, multiply bf16 on their tensor cores."""


FP16_CAPABILITY = (7, 0)
"""CUDA devices from this compute capability on, Volta and Turing, multiply fp16 on theirs."""

FUSED_ATTENTION = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]
"""Kernels that never make matrices of L × L. Torch takes cuDNN's where that is the fastest: on Hopper, in half of
FlashAttention's time."""

FACTORS = {"bf16": torch.bfloat16, "fp16": torch.float16}


def precision_on(name: PrecisionName, device: torch.device) -> Precision:
    """The precision that is asked for; of `auto`, bf16 where the device is good at it, fp16 where it has tensor cores
    for that alone."""
    if name != "auto":
        return name
    if good_at_bf16(device):
        return "bf16"
    fp16 = device.type == "cuda" and torch.cuda.get_device_capability(device) >= FP16_CAPABILITY
    return "fp16" if fp16 else "fp32"


def good_at_bf16(device: torch.device) -> bool:
    """Whether a device multiplies bf16 faster than fp32: CUDA devices since Ampere, Apple's, and CPUs with AMX or
    AVX512-BF16."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= BF16_CAPABILITY
    if device.type == "cpu":
        capable = torch.cpu.get_capabilities()
        return any(capable.get(name, False) for name in ("amx_bf16", "avx512_bf16"))
    return device.type == "mps"


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """`bf16` and `fp16` are autocast: matrix products and attention, nothing that is summed over steps. `fp32` is what
    an owner may ask for: on CUDA, the products of a training pass are TF32. `exact`, the lab's, is fp32 on every
    device."""

    precision: Precision = "exact"
    compiled: bool = False
    recompute: bool = False
    """Keep of each layer only its input, and compute its activations again in the backward pass: the same bits."""

    @contextmanager
    def __call__(self, device: torch.device, context: int, cached: bool = True) -> Iterator[None]:
        """Compute forward so within the block, on sequences of `context` tokens. `cached`: keep a copy in 16 bits of
        each weight for the length of the block, or of the outermost of such blocks."""
        if self.precision not in FACTORS:
            with self._products(device):
                yield
            return
        with (
            torch.autocast(device.type, FACTORS[self.precision], cache_enabled=cached),
            self._attention(device, context),
        ):
            yield

    @contextmanager
    def backward(self, device: torch.device, context: int) -> Iterator[None]:
        """Compute backward within the block, in the numbers in which the pass forward was: no autocast, which would
        round what that pass has kept in fp32. A layer that is computed again has its autocast, and needs its kernel of
        attention."""
        with torch.autocast(device.type, enabled=False), self._products(device), self._attention(device, context):
            yield

    def _products(self, device: torch.device) -> AbstractContextManager[None]:
        """The numbers of products whose factors are fp32."""
        return _tf32() if self.precision != "exact" and device.type == "cuda" else nullcontext()

    def _attention(self, device: torch.device, context: int) -> AbstractContextManager[None]:
        """The kernels that attention may have. In fp32 they are torch's choice, on CPUs the fused one."""
        if self.precision not in FACTORS:
            return nullcontext()
        fused = device.type != "cpu" or context >= MATH_ATTENTION_CONTEXT
        kernels = FUSED_ATTENTION if fused else []
        choice: AbstractContextManager[None] = sdpa_kernel([*kernels, SDPBackend.MATH])
        return choice

    def words(self, device: torch.device, microbatches: str = "") -> str:
        """Describe the arithmetic on a device, for its owner; and of what size `microbatches` are, where that is
        given."""
        numbers = {"exact": "fp32", "fp32": "TF32" if device.type == "cuda" else "fp32"}.get(
            self.precision, self.precision
        )
        compiled = ", compiled" if self.compiled else ""
        again = "; the backward pass computes each layer's activations again, to save memory" if self.recompute else ""
        by = f", in microbatches of {microbatches}" if microbatches else ""
        return f"training passes are computed in {numbers} on {device}{compiled}{by}{again}"

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


@contextmanager
def _tf32() -> Iterator[None]:
    """Let CUDA's tensor cores round the factors of fp32 products to TF32 within the block."""
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    try:
        yield
    finally:
        torch.backends.cuda.matmul.fp32_precision = before
