"""Tensors in safetensors files, and the JSON beside them, that a stranger may have made: found, checked, and read one
at a time. Nothing is unpickled."""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from protocol.errors import UserError
from protocol.layout import Shape
from protocol.tensor_formats import FORMATS
from protocol.toml_tables import MOST_CHARACTERS

JSON_BYTES = 2**25
"""The largest config, index or header: those of a model of 1024 layers have 1 MiB."""

STORED = {each.stored: each for each in FORMATS.values() if each.stored}
"""Number formats of weights, by the names that safetensors has for them."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor in a safetensors file: `start` is its first byte there."""

    path: Path
    dtype: str
    shape: Shape
    start: int

    def read(self) -> NDArray[np.float32]:
        """Read the tensor's values.

        Raises:
            UserError: the file cannot be read, or is shorter than it was.
        """
        kind = "u" if self.dtype == "BF16" else "f"  # bf16, which numpy has not, is the upper half of a float32
        count, dtype = math.prod(self.shape), np.dtype(f"<{kind}{STORED[self.dtype].bits // 8}")
        try:
            with self.path.open("rb") as file:
                file.seek(self.start)
                data = file.read(count * dtype.itemsize)
        except OSError as error:
            raise UserError(f"cannot read {self.path}: {error.strerror}") from None
        if len(data) != count * dtype.itemsize:
            raise UserError(f"{self.path} ends within a tensor")
        values = np.frombuffer(data, dtype).reshape(self.shape)
        if self.dtype == "BF16":
            return (values.astype(np.uint32) << 16).view(np.float32)
        return values.astype(np.float32)


def tensors_in(path: Path) -> dict[str, Stored]:
    """Find the tensors of one safetensors file. The library checks that the file's header is well-formed, and that
    tensors neither overlap nor leave the file; it has no way to tell where they are.

    Raises:
        UserError: the file cannot be read, or is no safetensors file.
    """
    try:
        with safe_open(path, "np"):
            pass
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > JSON_BYTES:
                raise UserError(f"{path} has a header of {length} bytes, more than {JSON_BYTES}")
            header = json.loads(file.read(length))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from None
    except (SafetensorError, ValueError, RecursionError) as error:
        said = " ".join(str(error).split())  # it may quote the file
        raise UserError(f"{path} is no safetensors file: {said}"[:MOST_CHARACTERS]) from None
    header.pop("__metadata__", None)
    return {
        name: Stored(path, said["dtype"], tuple(said["shape"]), 8 + length + said["data_offsets"][0])
        for name, said in header.items()
    }


def read_json(path: Path) -> dict[str, Any]:
    """Read the one JSON object that a file holds.

    Raises:
        UserError: the file cannot be read, or holds none, or is too large.
    """
    try:
        with path.open("rb") as file:
            data = file.read(JSON_BYTES + 1)
        document = json.loads(data) if len(data) <= JSON_BYTES else None
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not valid JSON: {error}"[:MOST_CHARACTERS]) from None
    if not isinstance(document, dict):
        raise UserError(f"{path} holds no JSON object of {JSON_BYTES} bytes at most")
    return document
