"""What Apple's GPUs lack, on any machine: PyTorch's own table says which operator has a kernel for MPS."""

import functools
from pathlib import Path

import torch
import torchgen
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torchgen.gen import parse_native_yaml
from torchgen.model import DispatchKey, NativeFunction

TABLE = Path(torchgen.__file__).parent / "packaged" / "ATen" / "native"


@functools.cache
def operators() -> dict[str, bool]:
    """Name and overload of each of PyTorch's operators → whether it runs on MPS: by a kernel of its own, by that of the
    variant with `out`, or by others that it calls."""
    parsed = parse_native_yaml(str(TABLE / "native_functions.yaml"), str(TABLE / "tags.yaml"))
    kernels = parsed.backend_indices[DispatchKey.MPS]
    by_name = {str(each.func.name): each for each in parsed.native_functions}

    def runs(each: NativeFunction) -> bool:
        delegate = each.structured_delegate
        return (
            kernels.has_kernel(each)
            or each.has_composite_implicit_autograd_kernel
            or each.has_composite_explicit_autograd_kernel
            or each.has_composite_explicit_autograd_non_functional_kernel
            or (delegate is not None and kernels.has_kernel(by_name[str(delegate)]))
        )

    return {name: runs(each) for name, each in by_name.items()}


class AppleOnly(TorchDispatchMode):
    """Within the block, what MPS could not compute raises: an operator without a kernel for it, and a float64.

    Attention is to be the one of plain matrix products: which kernel torch takes depends on the device.
    """

    seen: set[str]

    def __init__(self) -> None:
        super().__init__()
        self.seen = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        name = str(func).removeprefix("aten.").removesuffix(".default")
        assert operators()[name], f"MPS has no {name}"
        self.seen.add(name)
        made = func(*args, **(kwargs or {}))
        for each in made if isinstance(made, tuple | list) else (made,):
            assert not isinstance(each, Tensor) or each.dtype != torch.float64, (
                f"{name} makes a float64, which MPS lacks"
            )
        return made
