"""Safetensors files, written and read tensor by tensor: none of them is ever in memory whole.

What is written has the bytes that `safetensors.torch.save` gives; what is read goes through the library's own parser.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from protocol.errors import ResourceError
from protocol.files import replacing

STORED_FORMATS = {torch.float32: "F32", torch.int32: "I32"}
"""The number formats that a peer keeps, by their names in the file."""

ALIGNMENT = 8
"""Tensors begin at a multiple of so many bytes."""

COPIED_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class TensorFile(Mapping[str, Tensor]):
    """The tensors in a file, by name: each is read anew, and is the caller's, when it is asked for."""

    path: Path
    names: tuple[str, ...]

    @staticmethod
    def open(path: Path) -> "TensorFile":
        """Look at the header of a file.

        Raises:
            OSError, SafetensorError: the file cannot be read, or is none.
        """
        with safe_open(path, "pt") as file:
            return TensorFile(path, tuple(file.keys()))

    def __getitem__(self, name: str) -> Tensor:
        """Raises ResourceError if the file cannot be read any longer."""
        if name not in self.names:
            raise KeyError(name)
        try:
            with safe_open(self.path, "pt") as file:
                tensor: Tensor = file.get_tensor(name).clone()
                return tensor
        except (OSError, SafetensorError) as error:
            raise ResourceError(f"cannot read {name} in {self.path}: {error}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> str:
    """Write tensors, on whatever device they are, to a file, and return its SHA-256 in hex. Those of another file are
    copied as they are there.

    Raises:
        ResourceError: the file cannot be written, as on a full disk.
    """
    sha256 = hashlib.sha256()
    with replacing(path) as file:
        for piece in _copied(tensors.path) if isinstance(tensors, TensorFile) else _encoded(tensors):
            sha256.update(piece)
            file.write(piece)
    return sha256.hexdigest()


def _copied(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(COPIED_BYTES):
            yield piece


def _encoded(tensors: Mapping[str, Tensor]) -> Iterator[bytes | memoryview]:
    """The header, and the bytes of each tensor."""
    entries, end = {}, 0
    for name in sorted(tensors):
        start, end = end, end + tensors[name].nbytes
        shape = list(tensors[name].shape)
        entries[name] = {"dtype": STORED_FORMATS[tensors[name].dtype], "shape": shape, "data_offsets": [start, end]}
    header = json.dumps(entries, ensure_ascii=False, separators=(",", ":")).encode()
    header += b" " * (-len(header) % ALIGNMENT)
    yield len(header).to_bytes(8, "little") + header
    for name in entries:
        yield tensors[name].detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data
