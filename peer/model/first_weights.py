"""The tensors that a run begins with, read from its files. The run id pins their bytes, which were a stranger's to
choose: names, shapes and formats are compared with the layout before anything is computed with them."""

from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from protocol.errors import ResourceError
from protocol.identity import Part
from protocol.layout import Layout, part_layout
from protocol.manifest import Manifest
from protocol.run.run_files import BASIS, genesis_file, header_bytes

BASIS_TENSOR = "basis"


def read_part(directory: Path, manifest: Manifest, part: Part) -> dict[str, Tensor]:
    """The first weights of a part, int32, in the order of its layout.

    Raises:
        ResourceError: the file cannot be read, or has other tensors.
    """
    return read_tensors(directory / genesis_file(part), part_layout(manifest, part), torch.int32)


def read_basis(directory: Path, manifest: Manifest) -> Tensor:
    """U, float32 [d, d].

    Raises:
        ResourceError: the file cannot be read, or has other tensors.
    """
    layout: Layout = {BASIS_TENSOR: (manifest.model.d, manifest.model.d)}
    return read_tensors(directory / BASIS, layout, torch.float32)[BASIS_TENSOR]


def read_tensors(path: Path, layout: Layout, dtype: torch.dtype) -> dict[str, Tensor]:
    """Exactly these tensors, of one format. A header that is longer than theirs can be is not parsed."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
        if length > header_bytes(layout):
            raise ResourceError(f"{path} has a header of {length} bytes, where {header_bytes(layout)} are enough")
        tensors: dict[str, Tensor] = load_file(path)
    except OSError as error:
        raise ResourceError(f"cannot read {path}: {error.strerror or error}") from None
    except SafetensorError as error:
        raise ResourceError(f"{path} is no safetensors file: {' '.join(str(error).split())[:200]}") from None
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if shapes != layout or any(tensor.dtype != dtype for tensor in tensors.values()):
        raise ResourceError(f"{path} has other tensors than the run's manifest says: its operator made it wrongly")
    return {name: tensors[name] for name in layout}
